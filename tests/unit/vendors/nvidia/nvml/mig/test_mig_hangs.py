"""MIG calls that hang, take long or fail: real pynvml and the real worker over the stand-in."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import pytest

from hami_node.clock import Deadline
from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.driver import MigDriver, MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import MigCard, MigDevice, MigPlacement
from hami_node.vendors.nvidia.nvml.backend import NvmlBackend
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS, Stub
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.conftest import Open
from tests.unit.vendors.nvidia.nvml.mig_calls import in_mig_mode

HUNG: Final = Uuid(UUIDS[0])
WELL: Final = Uuid(UUIDS[1])
PROFILE: Final = 9
PLACE: Final = MigPlacement(start=4, size=4)
CALL_LIMIT_S: Final = 0.2
AMPLE_S: Final = 30.0
NAMELESS: Final = MigDevice(uuid="", gpu_instance_id=2, compute_instance_id=0)
ids: Iterator[int] = count(1)

MAKE_GI = "make a GPU instance"
MAKE_CI = "make a compute instance"
DESTROY_CI = "destroy a compute instance"
DESTROY_GI = "destroy a GPU instance"
STEPS: Final = (MAKE_GI, MAKE_CI, DESTROY_CI, DESTROY_GI)
CHANGED_BY: Final = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
"""The one call of each step that changes the card."""


def soon(seconds: float = AMPLE_S) -> Deadline:
    return Deadline.after(seconds, time.monotonic)


def do(mig: MigDriver, step: str, card: Uuid = HUNG, deadline: Deadline | None = None) -> None:
    due = deadline or soon()
    if step == MAKE_GI:
        mig.make_gpu_instance(card, PROFILE, PLACE, due)
    elif step == MAKE_CI:
        mig.make_compute_instance(card, 2, due)
    elif step == DESTROY_CI:
        mig.destroy_compute_instance(card, NAMELESS, due)
    else:
        mig.destroy_gpu_instance(card, 2, due)


def until(mig: MigDriver, step: str, card: Uuid = HUNG) -> None:
    """All steps before this one."""
    for earlier in STEPS[: STEPS.index(step)]:
        do(mig, earlier, card)


def shape(card: MigCard) -> list[tuple[int, tuple[int, ...], str]]:
    return [
        (i.gpu_instance_id, i.compute_instance_ids, i.device.uuid if i.device else "")
        for i in card.instances
    ]


def truth(stub: Stub, card: Uuid = HUNG) -> list[tuple[int, tuple[int, ...], str]]:
    return [(i.gi, tuple(c.id for c in i.compute), i.uuid) for i in stub.mig.instances(card)]


@pytest.fixture
def backend(stub: Stub, start: Open) -> NvmlBackend:
    """Two of three cards are in MIG mode; a call hangs soon."""
    stub.write(*in_mig_mode(0, 1))
    backend = start(call_limit_s=CALL_LIMIT_S)
    backend.scan()
    return backend


def is_well(backend: NvmlBackend, card: Uuid) -> bool:
    return next(d.healthy for d in backend.scan() if d.uuid == card)


@shows(
    "M14",
    fault="an NVML call that makes or destroys a MIG instance hangs",
    happens="its caller is told in time, the card is out until the call returns, instances of "
    "other cards are made and destroyed meanwhile, and then the card shows what became of it",
)
@pytest.mark.parametrize(("step", "call"), [*zip(STEPS, CHANGED_BY, strict=True)], ids=STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_hazard_14_a_hanging_call_costs_its_card_and_no_other(
    backend: NvmlBackend, stub: Stub, step: str, call: str, when: str
) -> None:
    mig = backend.mig
    until(mig, step)
    stub.write(*in_mig_mode(0, 1), f"nth {next(ids)} {call} 0 1 {when} hang 60")
    began_s = time.monotonic()
    with pytest.raises(MigError, match="has not answered") as refusal:
        do(mig, step)
    assert time.monotonic() - began_s < AMPLE_S / 2, "long before the caller's deadline"
    assert refusal.value.reason is MigFailure.UNANSWERED
    assert not is_well(backend, HUNG)
    with pytest.raises(MigError):
        mig.look(HUNG, soon())
    for other in STEPS:
        do(mig, other, WELL)
    assert is_well(backend, WELL)
    stub.write(*in_mig_mode(0, 1))
    eventually(lambda: is_well(backend, HUNG), AMPLE_S)
    assert shape(mig.look(HUNG, soon())) == truth(stub)


def test_hazard_14_a_slow_call_is_waited_for(backend: NvmlBackend, stub: Stub) -> None:
    stub.write(*in_mig_mode(0, 1), f"hang changes * {CALL_LIMIT_S / 4}")
    for step in STEPS:
        do(backend.mig, step)
    assert truth(stub) == []
    assert all(is_well(backend, card) for card in (HUNG, WELL))


@shows(
    "G4",
    fault="an NVML call that divides a card into MIG instances hangs, or takes longer than the "
    "caller can wait",
    happens="the caller gets an error in time, the other cards are read and divided as before, and "
    "the card is out until the call returns",
    lost="instances of that card meanwhile",
)
def test_hazard_14_the_answer_is_due_before_the_slow_call_is(stub: Stub, start: Open) -> None:
    stub.write(*in_mig_mode(0, 1))
    backend = start(call_limit_s=AMPLE_S)
    backend.scan()
    mig = backend.mig
    calls = len(stub.mig.changes(HUNG))
    stub.write(*in_mig_mode(0, 1), "hang changes 0 60")
    began_s = time.monotonic()
    with pytest.raises(MigError) as refusal:
        do(mig, MAKE_GI, deadline=soon(0.3))
    assert time.monotonic() - began_s < AMPLE_S / 2
    assert refusal.value.reason is MigFailure.UNANSWERED
    stub.write(*in_mig_mode(0, 1))
    eventually(lambda: len(stub.mig.changes(HUNG)) > calls, AMPLE_S)
    for other in STEPS:
        do(mig, other, WELL)
    assert shape(mig.look(HUNG, soon())) == truth(stub), "it went on, and that is seen"


def test_hazard_14_calls_for_a_hanging_card_pile_up_nowhere(
    backend: NvmlBackend, stub: Stub
) -> None:
    stub.write(*in_mig_mode(0, 1), "hang changes 0 60")
    for _ in range(5):
        with pytest.raises(MigError) as refusal:
            do(backend.mig, MAKE_GI)
        assert refusal.value.reason is MigFailure.UNANSWERED
    threads = [t for t in threading.enumerate() if t.name == "nvml-pass"]
    assert len(threads) <= 2, "the one that hangs, and the one that goes on"
    assert stub.calls("nvmlDeviceCreateGpuInstanceWithPlacement") > 0
    stub.write(*in_mig_mode(0, 1))
    eventually(lambda: len(truth(stub)) == 1, AMPLE_S)
    assert len(stub.mig.changes(HUNG)) == 1, "what was refused meanwhile was never begun"


def test_passes_go_on_however_many_calls_come(stub: Stub, start: Open) -> None:
    backend = start(interval_s=0.01, call_limit_s=CALL_LIMIT_S)
    backend.scan()
    is_over = threading.Event()

    def always_busy() -> None:
        while not is_over.is_set():
            with contextlib.suppress(MigError):  # of a busy machine
                backend.mig.look(WELL, soon())

    callers = [threading.Thread(target=always_busy) for _ in range(4)]
    passes = stub.calls("nvmlDeviceGetCount_v2")
    for caller in callers:
        caller.start()
    try:
        eventually(lambda: stub.calls("nvmlDeviceGetCount_v2") >= passes + 3, AMPLE_S)
    finally:
        is_over.set()
        for caller in callers:
            caller.join(AMPLE_S)


def test_end_of_the_daemon_ends_the_wait_for_a_call_that_hangs(stub: Stub, start: Open) -> None:
    stub.write(*in_mig_mode(0, 1))
    backend = start(call_limit_s=AMPLE_S)
    backend.scan()
    stub.write(*in_mig_mode(0, 1), "hang changes 0 60")
    refusals: list[MigError] = []

    def wait() -> None:
        with pytest.raises(MigError) as refusal:
            do(backend.mig, MAKE_GI)
        refusals.append(refusal.value)

    calls = stub.calls(CHANGED_BY[0])
    caller = threading.Thread(target=wait)
    caller.start()
    eventually(lambda: stub.calls(CHANGED_BY[0]) > calls, AMPLE_S)
    closing = threading.Thread(target=backend.close)
    closing.start()
    caller.join(AMPLE_S)
    (refused,) = refusals
    assert "the daemon ends" in str(refused)
    with pytest.raises(MigError, match="the daemon ends"):
        do(backend.mig, MAKE_GI, WELL)
    stub.write(*in_mig_mode(0, 1))
    closing.join(AMPLE_S)


def positions(stub: Stub, mig: MigDriver, step: str) -> int:
    """How many NVML calls of its card a step makes."""
    line = f"count-{next(ids)}"
    stub.write(*in_mig_mode(0, 1), f"nth {line} * 0 100000 before fail 1")
    do(mig, step)
    return stub.mig.counted(line)


def attempted(stub: Stub, work: Callable[[], Any], *lines: str) -> MigError | None:
    stub.write(*in_mig_mode(0, 1), *lines)
    try:
        work()
    except MigError as e:
        return e
    finally:
        stub.write(*in_mig_mode(0, 1))
    return None


@shows(
    "G1",
    fault="any NVML call on the way of making or destroying a MIG instance fails, before or after "
    "it has done its work",
    happens="the step fails with a reason, never claims what is not so, touches nothing else on "
    "the card, and can be finished after a look",
)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("code", [23, 999])
def test_every_call_of_a_step_fails_once(
    start: Open, stub: Stub, step: str, when: str, code: int
) -> None:
    stub.write(*in_mig_mode(0, 1))
    backend = start(call_limit_s=AMPLE_S)  # nothing hangs here, however busy the machine is
    backend.scan()
    mig = backend.mig
    foreign = stub.mig.make(HUNG, "2g.10gb", 0)
    until(mig, step)
    before = truth(stub)
    last = positions(stub, mig, step)
    assert last >= 3
    for position in range(1, last + 1):
        stub.mig.reset()
        stub.mig.make(HUNG, "2g.10gb", 0, mig_uuid=foreign.uuid)
        until(mig, step)
        line = f"nth {next(ids)} * 0 {position} {when} fail {code}"
        error = attempted(stub, lambda: do(mig, step), line)
        backend.scan()
        assert shape(mig.look(HUNG, soon())) == truth(stub)
        assert foreign in stub.mig.instances(HUNG)
        is_done = [row[:2] for row in truth(stub)] != [row[:2] for row in before]
        if error is None:
            assert is_done, position
        elif when == "before" and error.reason is not MigFailure.UNANSWERED:
            assert not is_done, f"{position}: {error}"
        if not is_done:
            do(mig, step)
