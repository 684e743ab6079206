"""The stand-in's MIG modes, and what ends instances, asked through the real pynvml."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nvml_stub.control import UUIDS, Stub, card
from tests.unit.vendors.nvidia.nvml.mig_calls import (
    IN_USE,
    INVALID,
    NO_ROOM,
    code,
    create,
    device,
    mig_devices,
    whole,
)


def test_the_mode_of_a_busy_ampere_card_stays_pending(nvml: Any, stub: Stub) -> None:
    stub.write(card(0), card(1, clients=1), card(2, processes=4711))
    assert nvml.nvmlDeviceSetMigMode(device(nvml, 0), 1) == 0
    assert nvml.nvmlDeviceSetMigMode(device(nvml, 1), 1) == IN_USE
    assert nvml.nvmlDeviceSetMigMode(device(nvml, 2), 1) == IN_USE
    modes = [nvml.nvmlDeviceGetMigMode(device(nvml, i)) for i in range(3)]
    assert modes == [[1, 1], [0, 1], [0, 1]]
    stub.mig.reboot()
    modes = [nvml.nvmlDeviceGetMigMode(device(nvml, i)) for i in range(3)]
    assert modes == [[1, 1], [1, 1], [1, 1]]


def test_the_mode_of_a_newer_card_needs_no_idle_clients(nvml: Any, stub: Stub) -> None:
    stub.write(card(0, name='"NVIDIA H200"', clients=1), card(1, activation=16))
    assert nvml.nvmlDeviceSetMigMode(device(nvml, 0), 1) == 0
    assert nvml.nvmlDeviceSetMigMode(device(nvml, 1), 1) == 16
    assert nvml.nvmlDeviceGetMigMode(device(nvml, 1)) == [0, 1]


def test_mode_off_takes_idle_instances_and_waits_for_busy_ones(nvml: Any, stub: Stub) -> None:
    whole(nvml, 9, 4, 4, 2)
    (uuid,) = stub.mig.uuids(UUIDS[0])
    stub.mig.run(uuid, 4711)
    assert nvml.nvmlDeviceSetMigMode(device(nvml), 0) == IN_USE
    assert nvml.nvmlDeviceGetMigMode(device(nvml)) == [1, 0]
    stub.mig.end(uuid)
    assert nvml.nvmlDeviceSetMigMode(device(nvml), 0) == 0
    assert nvml.nvmlDeviceGetMigMode(device(nvml)) == [0, 0]
    assert nvml.nvmlDeviceSetMigMode(device(nvml), 1) == 0
    assert stub.mig.instances(UUIDS[0]) == ()


def test_a_reboot_takes_all_instances_and_on_newer_cards_the_mode(nvml: Any, stub: Stub) -> None:
    whole(nvml, 9, 4, 4, 2)
    stub.mig.reboot()
    assert nvml.nvmlDeviceGetMigMode(device(nvml)) == [1, 1]
    assert stub.mig.instances(UUIDS[0]) == ()
    stub.mig.reboot(is_mode_kept=False)
    assert nvml.nvmlDeviceGetMigMode(device(nvml)) == [0, 0]


def test_handles_of_what_is_gone_are_invalid(nvml: Any, stub: Stub) -> None:
    gi, ci = whole(nvml, 9, 4, 4, 2)
    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device(nvml), 0)
    stub.mig.destroy(UUIDS[0], 2)
    assert code(nvml, lambda: nvml.nvmlDeviceGetUUID(handle)) == INVALID
    assert code(nvml, lambda: nvml.nvmlGpuInstanceDestroy(gi)) == INVALID
    assert code(nvml, lambda: nvml.nvmlComputeInstanceDestroy(ci)) == INVALID
    made = stub.mig.make(UUIDS[0], "3g.20gb", 4)
    assert nvml.nvmlDeviceGetUUID(handle) == made.uuid, "handles are reused"


def test_somebody_else_makes_and_destroys(nvml: Any, stub: Stub) -> None:
    half = stub.mig.make(UUIDS[0], "2g.10gb", 0, is_whole=False)
    made = stub.mig.make(UUIDS[0], "1g.5gb+me", 4)
    with pytest.raises(ValueError, match="does not fit"):
        stub.mig.make(UUIDS[0], "3g.20gb", 4)
    assert list(mig_devices(nvml).values()) == [made.uuid]
    assert code(nvml, lambda: create(nvml, 14, 0, 2)) == NO_ROOM
    found = nvml.nvmlDeviceGetGpuInstanceById(device(nvml), half.gi)
    nvml.nvmlGpuInstanceDestroy(found)
    stub.mig.destroy(UUIDS[0], made.gi, is_whole=False)
    assert [(i.profile, i.compute) for i in stub.mig.instances(UUIDS[0])] == [("1g.5gb+me", ())]
    assert {c.function for c in stub.mig.changes()} == {
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceDestroy",
    }
