"""Passes over cards in MIG mode: what they cost, and whom a bad one costs."""

from __future__ import annotations

import pytest

from hami_node.vendors.nvidia.nvml.xid_ledger import XidPolicy
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import Stub, card, sequence
from tests.nvml_stub.mig import MigHardware
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.conftest import Open
from tests.unit.vendors.nvidia.nvml.mig.conftest import A100, H100, Rig, numbered, within

MIG_CALLS = (
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
)
LIMIT_S = 0.15


def health(rig: Rig) -> list[bool]:
    return [found.healthy for found in rig.backend.scan()]


def test_cards_without_mig_cost_one_question(start: Open, stub: Stub) -> None:
    stub.write(card(0), card(1, mig="unsupported"))
    before = [stub.calls(function) for function in MIG_CALLS]
    backend, modes = start(), stub.calls("nvmlDeviceGetMigMode")
    for _ in range(3):
        backend.scan()
    assert [stub.calls(function) for function in MIG_CALLS] == before
    assert stub.calls("nvmlDeviceGetMigMode") == modes + 6


@shows(
    "G6",
    fault="an NVML call about the instances of a card hangs during a pass over the cards",
    happens="that card is unhealthy with the call as its reason until it returns; the others are "
    "read, divided and served",
)
def test_hang_in_a_pass_costs_that_card(start: Open, stub: Stub, hardware: MigHardware) -> None:
    function = "nvmlDeviceGetGpuInstances"
    made = hardware.make(A100, "1g.5gb", 0)
    rig = Rig(start(call_limit_s=LIMIT_S), stub, hardware)
    assert health(rig) == [True, True, True]
    rig.driver.destroy_compute_instance(A100, numbered(made.gi), within())
    rig.show(f"hang {function} 0 60")
    eventually(lambda: health(rig) == [False, True, True])
    assert function in rig.backend.scan()[0].unhealthy_reason
    profile = next(known for known in rig.scan(H100).profiles if known.name == "1g.10gb")
    rig.driver.make_gpu_instance(H100, profile.id, profile.placements[0], within())
    rig.show()
    eventually(lambda: health(rig) == [True, True, True])
    assert len(rig.look().instances) == 1


def test_job_opens_a_session_that_the_driver_has_closed(rig: Rig) -> None:
    rig.show("generation 3")
    with pytest.raises(Exception, match="code 1"):
        rig.look()
    eventually(lambda: health(rig) == [True, True, True])
    assert rig.look().is_enabled
    rig.show()
    rig.backend.scan()


def test_events_are_heard_after_a_change_of_the_mode(
    start: Open, stub: Stub, hardware: MigHardware
) -> None:
    hardware.set_mode(H100, 0)
    rig = Rig(start(xids=XidPolicy(), interval_s=0.05), stub, hardware)
    assert health(rig) == [True, True, True]
    waits = stub.calls("nvmlEventSetWait_v2")
    eventually(lambda: stub.calls("nvmlEventSetWait_v2") > waits)
    sets = stub.calls("nvmlEventSetCreate")
    freed = stub.calls("nvmlEventSetFree")
    assert rig.driver.set_mode(H100, is_enabled=True, deadline=within()) == ""
    assert stub.calls("nvmlEventSetFree") > freed, (
        "or the driver would count us among those who use it"
    )
    eventually(lambda: stub.calls("nvmlEventSetCreate") > sets)
    rig.show(f"xid {next(sequence)} 1 79")
    eventually(lambda: health(rig) == [True, False, True])
    sets = stub.calls("nvmlEventSetCreate")
    hardware.set_mode(A100, 0)
    eventually(lambda: stub.calls("nvmlEventSetCreate") > sets)
