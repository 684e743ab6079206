"""Jobs on the worker's thread: in order, between passes, and answered in time whatever hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from hami_node.clock import Deadline
from hami_node.vendors.nvidia.driver.library import DriverLibrary
from hami_node.vendors.nvidia.nvml.calls import NvmlCalls
from hami_node.vendors.nvidia.nvml.worker import JobUnanswered, PassWorker
from tests.fakes.clock import RealClock
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS, Stub
from tests.reliability import shows

LIMIT_S = 0.15
AMPLE_S = 30.0


def within(seconds: float) -> Deadline:
    return Deadline.after(seconds, RealClock().monotonic)


class Rig:
    """A worker over the stand-in, whose pass asks every card for its UUID."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.passes = 0
        self.is_in_pass, self.may_pass = threading.Event(), threading.Event()
        self.may_pass.set()
        self.worker = PassWorker(
            RealClock(),
            self._one_pass,
            lambda _: None,
            interval_s=lambda: 30.0,
            call_limit_s=LIMIT_S,
        )

    def _one_pass(self, calls: NvmlCalls) -> int:
        self.open(calls)
        self.is_in_pass.set()
        assert self.may_pass.wait(AMPLE_S)
        for card in range(3):
            if card not in self.worker.hung():
                calls.ask("nvmlDeviceGetHandleByIndex", card, card=card)
        self.passes += 1
        return self.passes

    def stay_in_pass(self) -> None:
        self.may_pass.clear()
        self.worker.request()
        assert self.is_in_pass.wait(AMPLE_S)

    def open(self, calls: NvmlCalls) -> None:
        calls.load(DriverLibrary(self.stub.library))
        calls.ask("nvmlInit")

    def uuid(self, card: int, seconds: float = AMPLE_S) -> str:
        def work(calls: NvmlCalls) -> str:
            self.open(calls)
            handle = calls.ask("nvmlDeviceGetHandleByIndex", card, card=card)
            return str(calls.ask("nvmlDeviceGetUUID", handle, card=card))

        return self.worker.do(card, work, within(seconds))


@pytest.fixture
def rig(stub: Stub) -> Iterator[Rig]:
    made = Rig(stub)
    yield made
    stub.show()
    made.may_pass.set()
    assert made.worker.stop(AMPLE_S)


def in_background(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except JobUnanswered as e:
            outcome.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_job_answers_before_any_pass_was_asked_for(rig: Rig) -> None:
    assert rig.uuid(1) == UUIDS[1]
    assert rig.passes == 0


def test_what_ends_the_work_reaches_its_caller_and_nobody_else(rig: Rig) -> None:
    def work(_: NvmlCalls) -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        rig.worker.do(0, work, within(AMPLE_S))
    assert rig.uuid(0) == UUIDS[0]
    assert rig.worker.wait(rig.worker.request(), AMPLE_S)


def test_jobs_come_before_the_next_pass_in_their_order(rig: Rig) -> None:
    rig.stay_in_pass()
    seen: list[tuple[int, int]] = []
    threads = []
    for number in range(3):

        def work(_: NvmlCalls, number: int = number) -> None:
            seen.append((number, rig.passes))

        threads.append(in_background(partial(rig.worker.do, number, work, within(AMPLE_S)))[0])
        while len(rig.worker._jobs) <= number:
            assert threads[-1].is_alive()
    ticket = rig.worker.request()
    rig.may_pass.set()
    assert rig.worker.wait(ticket, AMPLE_S)
    for thread in threads:
        thread.join(AMPLE_S)
    assert seen == [(0, 1), (1, 1), (2, 1)]
    assert rig.passes == 2


def test_passes_go_on_however_many_jobs_come(rig: Rig) -> None:
    worker = PassWorker(
        RealClock(),
        rig._one_pass,
        lambda _: None,
        interval_s=lambda: 0.01,
        call_limit_s=LIMIT_S,
    )
    is_over = threading.Event()

    def always_busy() -> None:
        while not is_over.is_set():
            worker.do(0, lambda _: is_over.wait(0.002), within(AMPLE_S))

    threads = [threading.Thread(target=always_busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: rig.passes >= 3)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(AMPLE_S)
        assert worker.stop(AMPLE_S)


def test_job_that_is_not_begun_in_time_is_dropped(rig: Rig) -> None:
    rig.stay_in_pass()
    done: list[int] = []
    with pytest.raises(JobUnanswered, match="nothing was begun"):
        rig.worker.do(0, lambda _: done.append(0), within(0.05))
    rig.may_pass.set()
    assert rig.uuid(0) == UUIDS[0]
    assert not done


@shows(
    "G4",
    fault="an NVML call that divides a card into MIG instances hangs, or takes longer than the "
    "caller can wait",
    happens="the caller gets an error in time, the other cards are read and divided as before, and "
    "the card is out until the call returns",
    lost="instances of that card meanwhile",
)
def test_hanging_job_costs_its_card_until_it_returns(rig: Rig, stub: Stub) -> None:
    assert rig.worker.wait(rig.worker.request(), AMPLE_S)
    stub.show("hang nvmlDeviceGetUUID 1 60")
    with pytest.raises(JobUnanswered, match=f"GetUUID has not answered for more than {LIMIT_S} s"):
        rig.uuid(1)
    assert list(rig.worker.hung()) == [1]
    with pytest.raises(JobUnanswered, match="nvmlDeviceGetUUID has not answered"):
        rig.uuid(1)
    assert rig.uuid(2) == UUIDS[2]
    assert rig.worker.wait(rig.worker.request(), AMPLE_S)
    stub.show()
    eventually(lambda: not rig.worker.hung())
    assert rig.uuid(1) == UUIDS[1]


def test_hanging_session_is_answered_for_in_time(rig: Rig, stub: Stub) -> None:
    stub.show("hang nvmlInitWithFlags * 60")
    with pytest.raises(JobUnanswered, match="nvmlInit has not answered"):
        rig.uuid(1, 1.0)
    stub.show()
    assert rig.uuid(1) == UUIDS[1]


def test_end_of_the_worker_ends_the_wait(rig: Rig, stub: Stub) -> None:
    stub.show("hang nvmlDeviceGetUUID 1 60")
    rig.worker._call_limit_s = AMPLE_S
    waiting, refusal = in_background(lambda: rig.uuid(1))
    eventually(lambda: (call := rig.worker.current()) and call.function == "nvmlDeviceGetUUID")
    assert not rig.worker.stop(0.01)
    waiting.join(AMPLE_S)
    assert isinstance(refusal[0], JobUnanswered)
    with pytest.raises(JobUnanswered, match="the daemon ends"):
        rig.uuid(0)
    stub.show()
