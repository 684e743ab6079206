"""What a node says of its resized containers."""

from __future__ import annotations

import json

from hami_node.node.resizes import words_of
from hami_node.record.ledger import ResizeNote
from tests.fakes.ledgers import an_entry, grants_text


def test_only_what_is_over_is_said() -> None:
    done = ResizeNote(id="a-1")
    entries = [
        an_entry("never"),
        an_entry("open", resize=ResizeNote(id="a-2", before=an_entry().grants)),
        an_entry("done", resize=done),
        an_entry("done", "b", resize=ResizeNote(id="a-3", refusal="no")),
        an_entry("unclear", "", resize=done),
    ]
    grants = grants_text(an_entry())
    assert json.loads(words_of(entries)) == {
        "uid-done": {"main": ["a-1", "NVIDIA", grants], "b": ["a-3", "NVIDIA", grants]}
    }
