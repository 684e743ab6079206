"""NVML calls that hang: bounded for every caller, and one card's hang costs one card."""

from __future__ import annotations

import threading

import pytest

from hami_node.errors import DriverUnavailable
from tests.nvml_stub.control import UUIDS, Stub
from tests.unit.vendors.nvidia.nvml.conftest import Open, wait_healthy

LIMIT_S = 0.15
PER_CARD = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetRemappedRows",
)


def pass_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "nvml-pass"}


@pytest.mark.parametrize("function", PER_CARD)
def test_hanging_card_costs_one_card_until_it_answers(
    start: Open, stub: Stub, function: str
) -> None:
    backend = start(call_limit_s=LIMIT_S)
    before = backend.scan()
    stub.show(f"hang {function} 1 60")
    cards = backend.scan()
    assert [found.healthy for found in cards] == [True, False, True]
    assert [found.uuid for found in cards] == list(UUIDS[:3])
    named = function.removesuffix("_v2").removesuffix("_v3")
    assert cards[1].unhealthy_reason == (
        f"NVML call {named} has not answered for more than {LIMIT_S} s"
    )
    assert backend.scan() == cards
    assert list(backend._worker.hung()) == [1]
    stub.show()
    assert wait_healthy(backend, [True, True, True])
    assert backend.scan() == before
    assert not backend._worker.hung()


def test_card_that_hangs_from_the_start_is_reported(start: Open, stub: Stub) -> None:
    stub.show("hang nvmlDeviceGetHandleByIndex_v2 0 60")
    backend = start(call_limit_s=LIMIT_S)
    assert [found.uuid for found in backend.scan()] == list(UUIDS[1:3])
    (fault,) = backend.nameless_faults()
    assert fault.startswith("card 0: NVML call nvmlDeviceGetHandleByIndex has not answered")


def test_all_cards_hanging_takes_one_thread_each_and_no_more(start: Open, stub: Stub) -> None:
    others = pass_threads()
    backend = start(call_limit_s=LIMIT_S, interval_s=0.05)
    backend.scan()
    stub.show("hang nvmlDeviceGetUUID * 60")
    assert wait_healthy(backend, [False, False, False])
    for _ in range(5):
        backend.wait_for_event(LIMIT_S)
        backend.scan()
    assert len(pass_threads() - others) == 4
    assert backend.last_pass_age_s() < 30
    stub.show()
    assert wait_healthy(backend, [True, True, True])


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_hanging_driver_is_unavailable_and_comes_back(
    start: Open, stub: Stub, function: str
) -> None:
    stub.show(f"hang {function} * 60")
    backend = start(call_limit_s=LIMIT_S, scan_limit_s=2 * LIMIT_S)
    named = function.removesuffix("_v2").removesuffix("WithFlags")
    for _ in range(2):
        with pytest.raises(DriverUnavailable, match=f"{named} has not answered for more than"):
            backend.scan()
    assert backend.last_pass_age_s() >= LIMIT_S
    stub.show()
    assert backend.wait_for_event(10)
    assert len(backend.scan()) == 3


def test_slow_first_pass_says_what_it_waits_for(start: Open, stub: Stub) -> None:
    stub.show("hang nvmlDeviceGetName 0 60")
    backend = start(call_limit_s=60, scan_limit_s=0.05)
    with pytest.raises(DriverUnavailable, match=r"first pass \(in nvmlDeviceGetName\)"):
        backend.scan()
    stub.show()
    assert backend.wait_for_event(10)
    assert len(backend.scan()) == 3


def test_close_does_not_wait_for_a_call_that_hangs(start: Open, stub: Stub) -> None:
    backend = start(call_limit_s=LIMIT_S)
    backend.scan()
    stub.show("hang nvmlDeviceGetName 1 60")
    backend.scan()
    given_back = stub.calls("nvmlShutdown")
    backend.close()
    assert stub.calls("nvmlShutdown") == given_back


def test_driver_is_not_opened_again_under_a_call_that_hangs(start: Open, stub: Stub) -> None:
    backend = start(call_limit_s=LIMIT_S)
    backend.scan()
    stub.show("hang nvmlDeviceGetName 1 60")
    backend.scan()
    given_back = stub.calls("nvmlShutdown")
    stub.show("hang nvmlDeviceGetName 1 60", "fail nvmlDeviceGetCount_v2 * 999")
    with pytest.raises(DriverUnavailable, match="nvmlDeviceGetCount"):
        backend.scan()
    stub.show("hang nvmlDeviceGetName 1 60", "fail nvmlDeviceGetUUID 2 9")
    assert [found.healthy for found in backend.scan()] == [True, False, False]
    assert stub.calls("nvmlShutdown") == given_back
