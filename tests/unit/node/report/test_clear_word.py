from __future__ import annotations

from collections.abc import Collection

import pytest

from hami_node.model import Node, Uuid
from hami_node.node.report.clear_word import ClearWord
from hami_node.wire import names


class Cards:
    """Cards that wait for a reset; remembers what it was asked."""

    def __init__(self, *waiting: str) -> None:
        self.waiting = [Uuid(uuid) for uuid in waiting]
        self.asked: list[Collection[Uuid] | None] = []

    def clear(self, uuids: Collection[Uuid] | None) -> tuple[Uuid, ...]:
        self.asked.append(uuids)
        return tuple(uuid for uuid in self.waiting if uuids is None or uuid in uuids)


def node(text: str | None) -> Node:
    return Node(name="n1", annotations={} if text is None else {names.NODE_CLEAR_ERRORS: text})


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("GPU-1", {"GPU-1"}),
        (" GPU-1 ,GPU-2,", {"GPU-1", "GPU-2"}),
        ("all", None),
        ("GPU-1,all", None),
        ("", set()),
        ("rubbish;" * 100, {"rubbish;" * 100}),
    ],
)
def test_word_reaches_every_vendor_and_goes(text: str, asked: set[str] | None) -> None:
    first, second = Cards("GPU-1"), Cards()
    word = ClearWord([first.clear, second.clear])
    assert word.desired(node(text), 0.0) == {names.NODE_CLEAR_ERRORS: None}
    assert first.asked == second.asked == [asked]


def test_word_that_cant_be_taken_off_acts_once() -> None:
    cards = Cards("GPU-1")
    word = ClearWord([cards.clear])
    for _ in range(5):
        word.desired(node("GPU-1"), 0.0)
    assert len(cards.asked) == 1
    word.desired(node(None), 0.0)
    word.desired(node("GPU-1"), 0.0)
    assert len(cards.asked) == 2


def test_no_word_no_act() -> None:
    cards = Cards("GPU-1")
    word = ClearWord([cards.clear])
    word.desired(node(None), 0.0)
    assert cards.asked == []
    assert word.heartbeat(node("all"), 0.0) == word.shutdown(node("all")) == {}
