from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from hami_node.errors import NotLeading
from hami_node.extender.binding.bind_queue import MAX_WAITING, BindQueue
from tests.fakes.waiting import eventually


def never() -> bool:
    return False


class QueueCaller:
    """A thread that takes its turn and keeps it until released."""

    def __init__(self, turns: BindQueue, name: str, order: list[str]) -> None:
        self.end, self.asked = threading.Event(), threading.Event()

        def is_late() -> bool:
            self.asked.set()
            return False

        def body() -> None:
            with turns.turn("n1", is_late) as is_ours:
                assert is_ours
                order.append(name)
                assert self.end.wait(10.0)

        self.thread = threading.Thread(target=body)
        self.thread.start()

    def finish(self) -> None:
        self.end.set()
        self.thread.join(10.0)
        assert not self.thread.is_alive()


def test_turns_of_a_node_come_one_by_one_in_order_of_arrival() -> None:
    turns, order = BindQueue(), list[str]()
    first = QueueCaller(turns, "first", order)
    eventually(lambda: order == ["first"])
    second = QueueCaller(turns, "second", order)
    assert second.asked.wait(10.0)
    third = QueueCaller(turns, "third", order)
    assert third.asked.wait(10.0)
    assert order == ["first"]
    first.finish()
    eventually(lambda: order == ["first", "second"])
    second.finish()
    eventually(lambda: order == ["first", "second", "third"])
    third.finish()
    assert turns.waiting() == 0


def test_turn_at_another_node_is_free() -> None:
    turns = BindQueue()
    with turns.turn("n1", never) as first, turns.turn("n2", never) as second:
        assert (first, second) == (True, True)


def test_late_call_gets_no_turn_and_leaves_the_queue() -> None:
    turns = BindQueue()
    with turns.turn("n1", never):
        with turns.turn("n1", lambda: True) as is_ours:
            assert not is_ours
        assert turns.waiting() == 1
    assert turns.waiting() == 0


def test_call_that_loses_the_lead_leaves_the_queue() -> None:
    turns = BindQueue()

    def lost() -> bool:
        raise NotLeading("replica b decides")

    with turns.turn("n1", never):
        with pytest.raises(NotLeading), turns.turn("n1", lost):
            raise AssertionError("no turn was due")
        assert turns.waiting() == 1


def test_turn_that_ends_in_an_error_is_given_on() -> None:
    turns = BindQueue()
    with pytest.raises(ValueError, match="broken"), turns.turn("n1", never):
        raise ValueError("broken")
    with turns.turn("n1", lambda: True) as is_ours:
        assert is_ours


def test_turn_is_refused_at_once_where_many_wait() -> None:
    turns = BindQueue()
    with ExitStack() as waiting:
        for _ in range(MAX_WAITING):
            waiting.enter_context(turns.turn("n1", lambda: True))
        with turns.turn("n1", never) as is_ours:
            assert not is_ours
        with turns.turn("n2", never) as is_ours:
            assert is_ours
    assert turns.waiting() == 0
