"""Memory: the collector looks seldom while much is read, and freed memory is given back."""

from __future__ import annotations

import gc
import weakref

import pytest

from hami_node.extender import memory


def test_collector_looks_seldom_while_much_is_read_and_as_usual_afterwards() -> None:
    usual = gc.get_threshold()
    with memory.collecting_seldom():
        assert gc.get_threshold() > usual
        assert gc.isenabled(), "a cluster that never answers must not keep garbage for ever"
    assert gc.get_threshold() == usual


def test_what_is_there_is_not_looked_at_again_once_settled() -> None:
    usual = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        memory.settle()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() > (700, 10, 10)
        assert gc.isenabled()
        with memory.collecting_seldom():
            pass
        assert gc.get_threshold() > (700, 10, 10)
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


def test_what_was_settled_while_much_was_read_stays_so() -> None:
    """Else the collector would look at all that was read as soon as that is over."""
    usual = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        with memory.collecting_seldom():
            memory.settle()
            settled = gc.get_threshold()
        assert gc.get_threshold() == settled > (700, 10, 10)
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


def test_memory_is_given_back_without_an_error_whatever_the_c_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(memory.give_back(), bool)
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert memory.give_back() is False


def test_what_is_young_and_refers_to_itself_is_freed_before_memory_goes_back() -> None:
    """A closed connection and its reader know each other; the collector may be minutes away."""
    usual = gc.isenabled()
    gc.disable()
    try:
        closed = Knot()
        ended = weakref.ref(closed)
        del closed
        assert ended() is not None
        memory.give_back()
        assert ended() is None
    finally:
        if usual:
            gc.enable()


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_settling_does_without_an_option_that_the_c_library_does_not_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """musl has no mallopt."""
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    usual = gc.get_threshold()
    try:
        memory.settle()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)
