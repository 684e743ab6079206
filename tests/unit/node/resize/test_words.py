"""What a node says of its resized containers."""

from __future__ import annotations

import json
import threading

from hami_node.model import Node
from hami_node.node.resize.words import ResizedWords, words_of
from hami_node.record.ledger import Entry, ResizeNote
from hami_node.wire import names
from tests.fakes.ledgers import an_entry, grants_text

DONE = ResizeNote(id="a-1")
OPEN = ResizeNote(id="a-2", before=an_entry().grants)


def test_only_what_is_over_is_said() -> None:
    entries = [
        an_entry("never"),
        an_entry("open", resize=OPEN),
        an_entry("done", resize=DONE),
        an_entry("done", "b", resize=ResizeNote(id="a-3", refusal="no")),
        an_entry("unclear", "", resize=DONE),
    ]
    grants = grants_text(an_entry())
    assert json.loads(words_of(entries)) == {
        "uid-done": {"main": ["a-1", "NVIDIA", grants], "b": ["a-3", "NVIDIA", grants]}
    }


def test_nothing_is_said_before_the_record_is_read_nor_where_nothing_can_be_resized() -> None:
    entries: list[Entry] = []
    node = Node(name="n1")
    loaded = threading.Event()
    words = ResizedWords(lambda: entries, loaded.is_set)
    assert words.desired(node, 0) == {}
    loaded.set()
    assert words.desired(node, 0) == {names.NODE_RESIZED: "{}"}
    entries.append(an_entry(resize=DONE))
    assert "a-1" in str(words.desired(node, 0))
    assert (words.heartbeat(node, 0), words.shutdown(node)) == ({}, {})
    unable = ResizedWords(lambda: entries, loaded.is_set, is_able=False)
    assert unable.desired(node, 0) == {names.NODE_RESIZED: None}
