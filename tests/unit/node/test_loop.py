"""The daemon's loop: steps look when they are due, and none holds up the others for long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hami_node.errors import KubeError
from hami_node.node import loop as loop_module
from hami_node.node.loop import Loop, Step
from tests.fakes.clock import PacedClock
from tests.fakes.waiting import eventually
from tests.reliability import shows

LIMIT_S = 10.0


@contextmanager
def running(*steps: Step, factor: float = 20.0) -> Iterator[Loop]:
    """A loop in a thread of its own; it has ended after the block."""
    loop, stop = Loop(steps, PacedClock(factor)), threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        yield loop
    finally:
        stop.set()
        loop.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


class Looks:
    """Counts passes; each asks for the next one after `wait_s`."""

    def __init__(self, wait_s: float | None = None, work: Callable[[], object] = int) -> None:
        self.count, self.ends = 0, 0
        self._wait_s, self._work = wait_s, work

    def __call__(self) -> float | None:
        self.count += 1
        self._work()
        return self._wait_s

    def end(self) -> None:
        self.ends += 1


def test_every_step_looks_at_once_and_again_after_its_own_time() -> None:
    often, once = Looks(0.5), Looks(None)
    with running(Step("often", often), Step("once", once)):
        eventually(lambda: often.count > 3, LIMIT_S)
        assert once.count == 1


def test_change_wakes_those_that_are_told_and_a_name_only_its_own() -> None:
    told, named = Looks(), Looks()
    with running(Step("told", told), Step("named", named, follows_changes=False)) as loop:
        eventually(lambda: (told.count, named.count) == (1, 1), LIMIT_S)
        loop.wake()
        eventually(lambda: told.count == 2, LIMIT_S)
        loop.wake("named")
        eventually(lambda: named.count == 2, LIMIT_S)
        assert told.count == 2


def test_changes_that_come_together_are_looked_at_once() -> None:
    looks = Looks()
    with running(Step("a", looks, settle_s=5.0)) as loop:
        eventually(lambda: looks.count == 1, LIMIT_S)
        for _ in range(50):
            loop.wake()
        eventually(lambda: looks.count == 2, LIMIT_S)
        time.sleep(0.4)  # 8 s of this clock
        assert looks.count == 2


def test_change_during_a_pass_is_looked_at_after_it() -> None:
    begun, released = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert released.wait(LIMIT_S)

    looks = Looks(work=work)
    with running(Step("a", looks)) as loop:
        assert begun.wait(LIMIT_S)
        loop.wake()
        released.set()
        eventually(lambda: looks.count == 2, LIMIT_S)


@pytest.mark.parametrize(
    ("error", "message"),
    [(KubeError("away"), "step_failed"), (ValueError("a bug"), "step_broken")],
    ids=["expected", "bug"],
)
def test_step_that_raises_is_tried_again_later_and_costs_no_other(
    error: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    others = Looks(1.0)

    def fail() -> float | None:
        failed.append(others.count)
        if len(failed) < 3:
            raise error
        return None

    failed: list[int] = []
    steps = Step("bad", fail), Step("good", others)
    with caplog.at_level(logging.WARNING), running(*steps) as loop:
        eventually(lambda: bool(failed), LIMIT_S)
        for _ in range(20):
            loop.wake()  # a change is no reason to hurry after a failure
        eventually(lambda: len(failed) == 3, LIMIT_S)
    assert [record.message for record in caplog.records] == [message, message]
    assert failed[1] >= 1
    assert failed[2] > failed[1]


@shows(
    "N4",
    fault="a step of the daemon's loop hangs: a disk, the driver or the API server does not answer",
    happens="the other steps wait half a second for it and go on; it is looked at again when it "
    "returns, and never runs twice at once",
)
def test_step_that_hangs_holds_nobody_up_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_module, "LIMIT_S", 0.05)
    released, others = threading.Event(), Looks(0.5)
    hanging = Looks(0.5, work=lambda: released.wait(LIMIT_S))
    steps = Step("disk", hanging, end=hanging.end), Step("other", others)
    with running(*steps):
        eventually(lambda: others.count > 5 and "step_hangs" in caplog.messages, LIMIT_S)
        assert hanging.count == 1
        released.set()
        eventually(lambda: hanging.count > 1, LIMIT_S)
    assert hanging.ends == 1
    assert caplog.messages.count("step_hangs") == 1


def test_step_that_still_hangs_at_the_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "LIMIT_S", 0.05)
    released, others = threading.Event(), Looks(0.5)
    hanging = Looks(0.5, work=lambda: released.wait(LIMIT_S))
    steps = (
        Step("disk", hanging, end=hanging.end),
        Step("o", others, end=others.end),
    )
    with running(*steps):
        eventually(lambda: others.count > 1, LIMIT_S)
    assert (hanging.ends, others.ends) == (0, 1)
    released.set()


def test_node_without_a_thread_left_costs_a_pass_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, start, refusals = Looks(0.5), threading.Thread.start, [3]

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "a" and refusals[0]:
            refusals[0] -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with running(Step("a", looks, longest_pause_s=1.0)):
        eventually(lambda: looks.count > 1, LIMIT_S)
    assert refusals == [0]
