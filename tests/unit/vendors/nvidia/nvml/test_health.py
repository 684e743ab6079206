"""XID events: which take a card out, and how it comes back."""

from __future__ import annotations

import threading

import pytest

from hami_node.model import Uuid
from hami_node.vendors.nvidia.nvml.xid_ledger import XidLedger, XidPolicy
from tests.nvml_stub.control import Stub, sequence
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.conftest import ManualClock, Open, wait_healthy, wait_listening

CARD = Uuid("GPU-1")
POLICY = XidPolicy(clean_passes=3, quiet_s=10)


NEVER = XidPolicy(clean_passes=1, quiet_s=3600)


def judge(ledger: XidLedger, *, has_answered: bool = True) -> str:
    return ledger.fault_text(CARD, has_answered=has_answered, policy=POLICY)


@pytest.mark.parametrize(
    ("policy", "critical"),
    [
        (XidPolicy(), {48, 74, 79, 95, 119}),
        (XidPolicy(ignored=frozenset({48})), {13, 74, 79, 95, 119}),
        (XidPolicy(critical=frozenset({79})), {79}),
        (XidPolicy(ignored=frozenset({79}), critical=frozenset({79, 13})), {13}),
    ],
    ids=["default", "own ignored", "own critical", "ignored wins"],
)
def test_lists_decide_which_xids_are_critical(policy: XidPolicy, critical: set[int]) -> None:
    assert {x for x in (13, 48, 74, 79, 95, 119) if policy.is_critical(x)} == critical


def test_critical_xid_names_its_meaning() -> None:
    ledger = XidLedger(ManualClock())
    assert ledger.enter(CARD, 61, POLICY)
    assert judge(ledger) == (
        "critical XID 61: microcontroller breakpoint or warning; "
        "healthy again after 10 s without another"
    )


@pytest.mark.parametrize("number", [-1, 65536, 2**64 - 1])
def test_number_that_no_xid_has_is_counted_as_one(number: int) -> None:
    ledger = XidLedger(ManualClock())
    ledger.enter(CARD, number, POLICY)
    assert ledger.counts() == {(CARD, 0): 1}


def test_card_returns_after_clean_passes_and_quiet_time() -> None:
    clock = ManualClock()
    ledger = XidLedger(clock)
    ledger.enter(CARD, 61, POLICY)
    assert [bool(judge(ledger)) for _ in range(5)] == [True] * 5
    clock.at_s += 10
    assert judge(ledger) == ""
    assert judge(ledger) == ""


def test_card_does_not_return_before_it_has_answered_often_enough() -> None:
    clock = ManualClock()
    ledger = XidLedger(clock)
    ledger.enter(CARD, 61, POLICY)
    clock.at_s += 100
    assert judge(ledger)
    assert judge(ledger)
    assert judge(ledger, has_answered=False)
    assert [bool(judge(ledger)) for _ in range(3)] == [True, True, False]


def seconds_out(ledger: XidLedger, clock: ManualClock, policy: XidPolicy = POLICY) -> int:
    """How long the card is out while it answers, judged each second."""
    for second in range(100_000):
        if not ledger.fault_text(CARD, has_answered=True, policy=policy):
            return second
        clock.at_s += 1
    pytest.fail("the card never came back")


@shows(
    "N9",
    fault="a card has the same error again each time that it is back",
    happens="it comes back after 10 s, 20 s, 40 s and so on up to an hour; after a quiet day after "
    "10 s again",
)
def test_card_that_fails_again_and_again_stays_out_longer() -> None:
    clock = ManualClock()
    ledger, out = XidLedger(clock), list[int]()
    for _ in range(11):
        ledger.enter(CARD, 61, POLICY)
        out.append(seconds_out(ledger, clock))
        clock.at_s += 60
    assert out == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
    clock.at_s += 24 * 3600
    ledger.enter(CARD, 61, POLICY)
    assert seconds_out(ledger, clock) == 10


@pytest.mark.parametrize("code", [3, 4, 15, 999])
def test_card_that_cannot_register_costs_its_own_events_only(
    start: Open, stub: Stub, code: int
) -> None:
    stub.show(f"fail nvmlDeviceRegisterEvents 0 {code}")
    backend = start(xids=NEVER)
    wait_listening(backend, stub)
    stub.show(f"xid {next(sequence)} 0 79", f"xid {next(sequence)} 2 79")
    assert wait_healthy(backend, [True, True, False])


@pytest.mark.parametrize("code", [1, 15, 20, 999])
@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_events_that_fail_are_listened_to_again(
    start: Open, stub: Stub, function: str, code: int
) -> None:
    backend = start(xids=NEVER)
    stub.show(f"fail {function} * {code}")
    asked = stub.calls(function)
    assert all(found.healthy for found in backend.scan())
    tick = threading.Event()
    for _ in range(500):
        if stub.calls(function) > asked:
            break
        tick.wait(0.01)
    stub.show()
    wait_listening(backend, stub)
    stub.show(f"xid {next(sequence)} 1 79")
    assert wait_healthy(backend, [True, False, True])


def test_events_are_heard_after_the_driver_was_reloaded(start: Open, stub: Stub) -> None:
    backend = start(xids=NEVER)
    wait_listening(backend, stub)
    stub.show("generation 2")
    wait_listening(backend, stub)
    stub.show("generation 2", f"xid {next(sequence)} 2 95")
    assert wait_healthy(backend, [True, True, False])


def test_watch_that_is_off_registers_nothing(start: Open, stub: Stub) -> None:
    made = stub.calls("nvmlEventSetCreate")
    start(xids=XidPolicy(is_on=False)).scan()
    assert stub.calls("nvmlEventSetCreate") == made
