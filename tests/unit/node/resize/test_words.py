"""What a node says of its resized containers."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from hami_node.model import Node
from hami_node.node.resize.keeper import INTERVAL_S
from hami_node.node.resize.words import ResizedWords, words_of
from hami_node.record.ledger import Entry, ResizeNote
from hami_node.wire import names
from tests.fakes.ledgers import an_entry
from tests.fakes.waiting import eventually
from tests.unit.node.resize.desk import NodeDesk, part

DONE = ResizeNote(id="a-1")
OPEN = ResizeNote(id="a-2", before="x")


def test_only_what_is_over_is_said() -> None:
    entries = [
        an_entry("never"),
        an_entry("open", resize=OPEN),
        an_entry("done", resize=DONE),
        an_entry("done", "b", resize=ResizeNote(id="a-3", refusal="no")),
        an_entry("unclear", "", resize=DONE),
    ]
    grants = an_entry().grants
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


def test_keeper_sleeps_until_it_is_woken_and_ends_when_told(tmp_path: Path) -> None:
    desk = NodeDesk(tmp_path)
    stop = threading.Event()
    thread = threading.Thread(target=desk.keeper.run, args=(stop,), daemon=True)
    thread.start()
    desk.approve("a", part(7000))
    desk.keeper.wake()
    eventually(lambda: desk.state("a").get("state") == "done", 10.0)
    stop.set()
    desk.keeper.wake()
    thread.join(10.0)
    assert not thread.is_alive()


def test_pod_that_changes_all_the_time_makes_nobody_read_files(tmp_path: Path) -> None:
    desk, stop = NodeDesk(tmp_path), threading.Event()
    desk.approve("a", part(5000))
    desk.keeper.look()
    desk.containers["a"].tamper(9000)
    thread = threading.Thread(target=desk.keeper.run, args=(stop,), daemon=True)
    thread.start()
    try:
        eventually(lambda: desk.containers["a"].limit_mib() == 5000, 10.0)
        desk.containers["a"].tamper(9000)
        desk.approve("b", part(3500))
        desk.keeper.wake()
        eventually(lambda: desk.state("b").get("state") == "done", 10.0)
        assert desk.containers["a"].limit_mib() == 9000
        desk.clock.advance(INTERVAL_S)
        desk.keeper.wake()
        eventually(lambda: desk.containers["a"].limit_mib() == 5000, 10.0)
    finally:
        stop.set()
        desk.keeper.wake()
        thread.join(10.0)
