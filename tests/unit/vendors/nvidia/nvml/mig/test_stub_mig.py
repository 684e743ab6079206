"""The rules of real hardware that the stand-in has, asked through the real pynvml.

The adapter's tests show the rest of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.nvml_stub.control import UUIDS, Stub, card
from tests.unit.vendors.nvidia.nvml.mig_calls import (
    IN_USE,
    INVALID,
    NO_PERMISSION,
    NO_ROOM,
    NOT_SUPPORTED,
    code,
    create,
    device,
    in_mig_mode,
    places,
    whole,
)


def test_placements_that_overlap_conflict(nvml: Any) -> None:
    create(nvml, 9, 4, 4)
    assert code(nvml, lambda: create(nvml, 0, 0, 8)) == NO_ROOM
    assert code(nvml, lambda: create(nvml, 19, 5, 1)) == NO_ROOM
    assert code(nvml, lambda: create(nvml, 19, 7, 1)) == INVALID, "no place of that profile"
    assert code(nvml, lambda: create(nvml, 19, 0, 2)) == INVALID
    assert code(nvml, lambda: create(nvml, 99, 0, 1)) == INVALID
    create(nvml, 20, 0, 1)
    assert code(nvml, lambda: create(nvml, 20, 1, 1)) == NO_ROOM, "media engines exist once"
    create(nvml, 19, 1, 1)


def test_ids_come_back_and_uuids_do_not(nvml: Any, stub: Stub) -> None:
    seen = []
    for _ in range(3):
        gi, ci = whole(nvml, 0, 0, 8, 4)
        told = nvml.nvmlComputeInstanceGetInfo(ci)
        seen.append((nvml.nvmlGpuInstanceGetInfo(gi).id, told.id, *stub.mig.uuids(UUIDS[0])))
        nvml.nvmlComputeInstanceDestroy(ci)
        nvml.nvmlGpuInstanceDestroy(gi)
    assert {(gi, ci) for gi, ci, _ in seen} == {(0, 0)}
    assert len({uuid for _, _, uuid in seen}) == 3


def test_nothing_is_supported_with_the_mode_off(nvml: Any) -> None:
    off = device(nvml, 1)
    assert nvml.nvmlDeviceGetMigMode(off) == [0, 0]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(off) == 0
    calls: list[Callable[[], object]] = [
        lambda: nvml.nvmlDeviceGetGpuInstanceProfileInfo(off, 0),
        lambda: places(nvml, 19, 1),
        lambda: nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(off, 19),
        lambda: create(nvml, 19, 0, 1, 1),
        lambda: nvml.nvmlDeviceGetGpuInstanceById(off, 0),
        lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(off, 0),
        lambda: nvml.nvmlDeviceGetAttributes_v2(off),
        lambda: nvml.nvmlDeviceGetGpuInstanceId(off),
    ]
    assert {code(nvml, call) for call in calls} == {NOT_SUPPORTED}


def test_a_card_in_mig_mode_has_no_utilisation(nvml: Any) -> None:
    whole(nvml, 9, 4, 4, 2)
    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device(nvml), 0)
    for asked in (device(nvml), handle):
        assert code(nvml, partial(nvml.nvmlDeviceGetUtilizationRates, asked)) == NOT_SUPPORTED
    assert code(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle)) == NOT_SUPPORTED
    assert nvml.nvmlDeviceGetUtilizationRates(device(nvml, 1)).gpu == 0


@pytest.mark.parametrize(
    ("rights", "codes"),
    [
        ("root", (0, 0, 0)),
        ("config", (NO_PERMISSION, 0, 0)),
        ("monitor", (NO_PERMISSION, NO_PERMISSION, 0)),
        ("none", (NO_PERMISSION, NO_PERMISSION, NO_PERMISSION)),
    ],
)
def test_rights_are_root_for_modes_and_capabilities_for_the_rest(
    nvml: Any, stub: Stub, rights: str, codes: tuple[int, ...]
) -> None:
    stub.write(*in_mig_mode(0), f"rights {rights}")
    assert (
        code(nvml, lambda: nvml.nvmlDeviceSetMigMode(device(nvml, 1), 1)),
        code(nvml, lambda: create(nvml, 19, 0, 1)),
        code(nvml, lambda: places(nvml, 19)),
    ) == codes
    assert nvml.nvmlDeviceGetMigMode(device(nvml)) == [1, 1]
    assert nvml.nvmlDeviceGetGpuInstanceProfileInfo(device(nvml), 0).id == 19


def test_handles_of_what_is_gone_are_invalid_and_reused(nvml: Any, stub: Stub) -> None:
    gi, ci = whole(nvml, 9, 4, 4, 2)
    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device(nvml), 0)
    stub.mig.destroy(UUIDS[0], 2)
    assert code(nvml, lambda: nvml.nvmlDeviceGetUUID(handle)) == INVALID
    assert code(nvml, lambda: nvml.nvmlGpuInstanceDestroy(gi)) == INVALID
    assert code(nvml, lambda: nvml.nvmlComputeInstanceDestroy(ci)) == INVALID
    made = stub.mig.make(UUIDS[0], "3g.20gb", 4)
    assert nvml.nvmlDeviceGetUUID(handle) == made.uuid


@pytest.mark.parametrize(
    ("words", "activation", "modes"),
    [
        ({}, 0, [1, 1]),
        ({"clients": 1}, IN_USE, [0, 1]),
        ({"processes": 4711}, IN_USE, [0, 1]),
        ({"name": '"NVIDIA H200"', "clients": 1}, 0, [1, 1]),
        ({"activation": 16}, 16, [0, 1]),
    ],
    ids=["idle", "client", "process", "newer-card-with-a-client", "reset-required"],
)
def test_mode_is_recorded_and_in_force_only_on_an_idle_card(
    nvml: Any, stub: Stub, words: dict[str, object], activation: int, modes: list[int]
) -> None:
    stub.write(card(0, **words))
    assert nvml.nvmlDeviceSetMigMode(device(nvml), 1) == activation
    assert nvml.nvmlDeviceGetMigMode(device(nvml)) == modes


def test_mode_off_takes_idle_instances_and_waits_for_busy_ones(nvml: Any, stub: Stub) -> None:
    whole(nvml, 9, 4, 4, 2)
    (uuid,) = stub.mig.uuids(UUIDS[0])
    stub.mig.run(uuid, 4711)
    assert nvml.nvmlDeviceSetMigMode(device(nvml), 0) == IN_USE
    assert nvml.nvmlDeviceGetMigMode(device(nvml)) == [1, 0]
    stub.mig.end(uuid)
    assert nvml.nvmlDeviceSetMigMode(device(nvml), 0) == 0
    assert nvml.nvmlDeviceSetMigMode(device(nvml), 1) == 0
    assert stub.mig.instances(UUIDS[0]) == ()


def test_a_line_nth_befalls_only_that_call_and_once_for_all(nvml: Any, stub: Stub) -> None:
    stub.write(
        *in_mig_mode(0),
        "nth first nvmlDeviceCreateGpuInstanceWithPlacement 0 2 before fail 999",
        "nth later changes * 4 after fail 15",
    )
    codes = [code(nvml, partial(create, nvml, 19, at, 1)) for at in range(5)]
    assert codes == [0, 999, 0, 15, 0]
    made = [i.start for i in stub.mig.instances(UUIDS[0])]
    assert sorted(made) == [0, 2, 3, 4], "what failed before did nothing, what failed after did it"
    stub.write(*in_mig_mode(0), "nth first changes * 2 before fail 999")
    assert code(nvml, lambda: create(nvml, 19, 1, 1)) == 0
