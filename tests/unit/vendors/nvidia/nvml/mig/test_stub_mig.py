"""The stand-in's MIG, asked through the real pynvml: the rules that real hardware has."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from functools import partial
from typing import Any

import pytest

from tests.nvml_stub.control import UUIDS, Stub, card
from tests.nvml_stub.mig import ALL_MODELS, profiles_of
from tests.unit.vendors.nvidia.nvml.mig_calls import (
    IN_USE,
    INVALID,
    NO_PERMISSION,
    NO_ROOM,
    NOT_FOUND,
    NOT_SUPPORTED,
    code,
    create,
    device,
    in_mig_mode,
    mig_devices,
    places,
    whole,
)


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.key)
def test_every_profile_of_every_model_is_reported_as_listed(
    nvml: Any, stub: Stub, model: Any
) -> None:
    stub.write(card(0, mig="enabled", model=model.key))
    parent, found = device(nvml), {}
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(parent, number)
        except nvml.NVMLError_NotSupported:
            continue
        by_id = nvml.nvmlDeviceGetGpuInstanceProfileInfoById(parent, info.id)
        assert by_id.name == info.name
        old = nvml.nvmlDeviceGetGpuInstanceProfileInfo(parent, number, version=1)
        assert (old.id, old.memorySizeMB) == (info.id, info.memorySizeMB)
        found[info.name] = (number, info.id, info.sliceCount, info.instanceCount)
        listed = profiles_of(model.key)[info.name.removeprefix("MIG ")]
        assert info.memorySizeMB == listed.memory_mib
        assert info.multiprocessorCount == listed.multiprocessors
        assert places(nvml, info.id) == [(start, listed.size) for start in listed.starts]
    assert found == {
        f"MIG {p.name}": (p.number, p.id, p.slices, p.instances)
        for p in profiles_of(model.key).values()
    }
    beyond = nvml.NVML_GPU_INSTANCE_PROFILE_COUNT
    ask = nvml.nvmlDeviceGetGpuInstanceProfileInfo
    assert code(nvml, lambda: ask(parent, beyond)) == INVALID


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA A30", "A30"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100 80GB PCIe", "A100-80"),
        ("NVIDIA H100 80GB HBM3", "H100-80"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
    ],
)
def test_a_model_is_known_by_its_name(nvml: Any, stub: Stub, name: str, model: str) -> None:
    stub.write(card(0, mig="enabled", name=f'"{name}"'))
    info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(device(nvml), 0)
    assert info.name.removeprefix("MIG ") in profiles_of(model)
    made = stub.mig.make(UUIDS[0], info.name.removeprefix("MIG "), 0)
    assert list(mig_devices(nvml).values()) == [made.uuid]


def test_a_driver_reports_other_names_and_numbers(nvml: Any, stub: Stub) -> None:
    stub.write(
        *in_mig_mode(0, 1),
        "profile 0 1g.5gb memory_mib=4608 name=1g.4gb",
        "profile * 7g.40gb multiprocessors=96",
        "profile 1 1g.10gb gone=1",
    )
    ask = nvml.nvmlDeviceGetGpuInstanceProfileInfo
    info = ask(device(nvml), 0)
    assert (info.name, info.memorySizeMB, info.id) == ("MIG 1g.4gb", 4608, 19)
    assert ask(device(nvml, 1), 0).name == "MIG 1g.5gb"
    assert ask(device(nvml, 1), 4).multiprocessorCount == 96
    assert code(nvml, lambda: ask(device(nvml, 1), 9)) == NOT_SUPPORTED
    assert ask(device(nvml), 9).name == "MIG 1g.10gb"


def test_an_instance_is_made_found_and_destroyed(nvml: Any, stub: Stub) -> None:
    parent = device(nvml)
    gi = create(nvml, 14, 2, 2)
    info = nvml.nvmlGpuInstanceGetInfo(gi)
    assert (info.id, info.profileId) == (4, 14)
    assert (info.placement.start, info.placement.size) == (2, 2)
    assert mig_devices(nvml) == {}, "without a compute instance it is no MIG device"
    offered = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, 1, 0)
    assert (offered.id, offered.sliceCount, offered.name) == (1, 2, "MIG 2g.10gb")
    part = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, 0, 0)
    assert (part.name, part.instanceCount) == ("MIG 1c.2g.10gb", 2)
    ci = nvml.nvmlGpuInstanceCreateComputeInstance(gi, offered.id)
    told = nvml.nvmlComputeInstanceGetInfo(ci)
    assert nvml.nvmlDeviceIsMigDeviceHandle(told.device).value == 1
    uuid = nvml.nvmlDeviceGetUUID(told.device)
    assert mig_devices(nvml) == {0: uuid}
    assert stub.mig.uuids(UUIDS[0]) == (uuid,)
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    assert nvml.nvmlDeviceGetGpuInstanceId(handle) == 4
    assert nvml.nvmlDeviceGetComputeInstanceId(handle) == 0
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA A100-SXM4-40GB MIG 2g.10gb"
    assert nvml.nvmlDeviceGetMemoryInfo(handle).total == 9856 << 20
    facts = nvml.nvmlDeviceGetAttributes_v2(handle)
    assert (facts.multiprocessorCount, facts.memorySizeMB) == (28, 9856)
    assert (facts.gpuInstanceSliceCount, facts.computeInstanceSliceCount) == (2, 2)
    above = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    assert nvml.nvmlDeviceGetUUID(above) == UUIDS[0]
    assert nvml.nvmlDeviceIsMigDeviceHandle(parent).value == 0
    assert code(nvml, lambda: nvml.nvmlGpuInstanceDestroy(gi)) == IN_USE, "a CI is left"
    nvml.nvmlComputeInstanceDestroy(ci)
    assert mig_devices(nvml) == {}
    nvml.nvmlGpuInstanceDestroy(gi)
    assert stub.mig.instances(UUIDS[0]) == ()
    assert code(nvml, lambda: nvml.nvmlDeviceGetGpuInstanceById(parent, 4)) == NOT_FOUND
    assert code(nvml, lambda: nvml.nvmlDeviceGetHandleByUUID(uuid)) == NOT_FOUND
    assert [(c.function, c.result) for c in stub.mig.changes(UUIDS[0])] == [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 0),
        ("nvmlGpuInstanceCreateComputeInstance", 0),
        ("nvmlGpuInstanceDestroy", IN_USE),
        ("nvmlComputeInstanceDestroy", 0),
        ("nvmlGpuInstanceDestroy", 0),
    ]
    assert stub.mig.changes(UUIDS[1]) == ()


def test_placements_that_overlap_conflict(nvml: Any) -> None:
    create(nvml, 9, 4, 4)
    assert code(nvml, lambda: create(nvml, 0, 0, 8)) == NO_ROOM
    assert code(nvml, lambda: create(nvml, 19, 5, 1)) == NO_ROOM
    assert code(nvml, lambda: create(nvml, 19, 7, 1)) == INVALID, "no place of that profile"
    assert code(nvml, lambda: create(nvml, 19, 0, 2)) == INVALID
    assert code(nvml, lambda: create(nvml, 99, 0, 1)) == INVALID
    create(nvml, 5, 0, 4)
    parent = device(nvml)
    assert code(nvml, lambda: nvml.nvmlDeviceCreateGpuInstance(parent, 19)) == NO_ROOM
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(parent, 19) == 0


def test_the_slices_of_a_blackwell_workstation_card(nvml: Any, stub: Stub) -> None:
    name = '"NVIDIA RTX PRO 6000 Blackwell Server Edition"'
    stub.write(card(0, mig="enabled", name=name))
    gi = create(nvml, 14, 9, 3)
    assert nvml.nvmlGpuInstanceGetInfo(gi).id == 6
    create(nvml, 5, 0, 6)
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device(nvml), 14) == 1
    assert code(nvml, lambda: create(nvml, 5, 6, 6)) == NO_ROOM


def test_media_engines_exist_once(nvml: Any) -> None:
    create(nvml, 20, 0, 1)
    assert code(nvml, lambda: create(nvml, 20, 1, 1)) == NO_ROOM
    create(nvml, 19, 1, 1)


def test_capacity_counts_free_places_of_the_profile(nvml: Any) -> None:
    ask, parent = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, device(nvml)
    assert [ask(parent, p) for p in (19, 14, 9, 5, 0, 20, 15)] == [7, 3, 2, 1, 1, 1, 4]
    create(nvml, 14, 2, 2)
    assert [ask(parent, p) for p in (19, 14, 9, 5, 0, 20, 15)] == [5, 2, 1, 0, 0, 1, 3]


def test_instances_are_listed_by_profile_only(nvml: Any) -> None:
    create(nvml, 14, 0, 2)
    create(nvml, 20, 4, 1)
    create(nvml, 19, 5, 1)
    listed = {}
    for profile in (19, 14, 20, 9):
        array, count = (nvml.c_nvmlGpuInstance_t * 7)(), nvml.c_uint(0)
        nvml.nvmlDeviceGetGpuInstances(device(nvml), profile, array, byref(count))
        listed[profile] = [nvml.nvmlGpuInstanceGetInfo(array[i]).id for i in range(count.value)]
    assert listed == {19: [12], 14: [3], 20: [11], 9: []}


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


def test_uuids_may_come_back_or_have_the_old_form(nvml: Any, stub: Stub) -> None:
    stub.write(*in_mig_mode(0), "uuids same")
    uuids = set()
    for _ in range(2):
        gi, ci = whole(nvml, 9, 4, 4, 2)
        uuids |= set(stub.mig.uuids(UUIDS[0]))
        nvml.nvmlComputeInstanceDestroy(ci)
        nvml.nvmlGpuInstanceDestroy(gi)
    assert len(uuids) == 1
    stub.write(*in_mig_mode(0), "uuids old")
    whole(nvml, 9, 4, 4, 2)
    assert list(mig_devices(nvml).values()) == [f"MIG-{UUIDS[0]}/2/0"]


def test_both_forms_of_a_uuid_are_found(nvml: Any, stub: Stub) -> None:
    whole(nvml, 9, 4, 4, 2)
    by_form = [
        nvml.nvmlDeviceGetHandleByUUID(text)
        for text in (*stub.mig.uuids(UUIDS[0]), f"MIG-{UUIDS[0]}/2/0")
    ]
    assert [nvml.nvmlDeviceGetGpuInstanceId(handle) for handle in by_form] == [2, 2]


def test_a_process_keeps_its_instance_and_no_other(nvml: Any, stub: Stub) -> None:
    busy, busy_ci = whole(nvml, 9, 4, 4, 2)
    (uuid,) = stub.mig.uuids(UUIDS[0])
    stub.mig.run(uuid, 4711, used_mib=512)
    assert code(nvml, lambda: nvml.nvmlComputeInstanceDestroy(busy_ci)) == IN_USE
    assert code(nvml, lambda: nvml.nvmlGpuInstanceDestroy(busy)) == IN_USE
    other, other_ci = whole(nvml, 14, 0, 2, 1)
    nvml.nvmlComputeInstanceDestroy(other_ci)
    nvml.nvmlGpuInstanceDestroy(other)
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    for asked in (handle, device(nvml)):
        (process,) = nvml.nvmlDeviceGetComputeRunningProcesses_v3(asked)
        assert (process.pid, process.gpuInstanceId, process.computeInstanceId) == (4711, 2, 0)
    assert nvml.nvmlDeviceGetMemoryInfo(handle).used == 512 << 20
    stub.mig.end(uuid)
    nvml.nvmlComputeInstanceDestroy(busy_ci)
    nvml.nvmlGpuInstanceDestroy(busy)


def test_a_lingering_instance_is_in_use_after_its_compute_instance(nvml: Any, stub: Stub) -> None:
    stub.write(*in_mig_mode(0, lingers=1))
    gi, ci = whole(nvml, 9, 4, 4, 2)
    nvml.nvmlComputeInstanceDestroy(ci)
    assert code(nvml, lambda: nvml.nvmlGpuInstanceDestroy(gi)) == IN_USE
    nvml.nvmlGpuInstanceDestroy(gi)


def test_parts_of_an_instance_are_devices_of_their_own(nvml: Any, stub: Stub) -> None:
    gi = create(nvml, 9, 0, 4)
    for _ in range(3):
        nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)
    assert code(nvml, lambda: nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)) == NO_ROOM
    assert sorted(mig_devices(nvml).values()) == sorted(stub.mig.uuids(UUIDS[0]))
    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device(nvml), 1)
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"
    assert nvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount == 14
    nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(gi, 1))
    array, count = (nvml.c_nvmlComputeInstance_t * 7)(), nvml.c_uint(0)
    nvml.nvmlGpuInstanceGetComputeInstances(gi, 0, array, byref(count))
    found = [nvml.nvmlComputeInstanceGetInfo(array[i]).id for i in range(count.value)]
    assert found == [0, 2]
    assert code(nvml, lambda: nvml.nvmlGpuInstanceGetComputeInstanceById(gi, 1)) == NOT_FOUND
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0) == 1
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 1) == 0


def test_indices_may_have_gaps_and_another_order(nvml: Any, stub: Stub) -> None:
    whole(nvml, 9, 4, 4, 2)
    whole(nvml, 14, 0, 2, 1)
    in_order = mig_devices(nvml)
    assert list(in_order) == [0, 1]
    stub.write(*in_mig_mode(0), "indices gaps")
    assert mig_devices(nvml) == {6: in_order[0], 5: in_order[1]}
    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device(nvml), 6)
    assert nvml.nvmlDeviceGetIndex(handle) == 6


def test_the_info_of_a_compute_instance_may_name_the_card(nvml: Any, stub: Stub) -> None:
    _, ci = whole(nvml, 9, 4, 4, 2)
    stub.write(*in_mig_mode(0), "compute_info card")
    told = nvml.nvmlComputeInstanceGetInfo(ci)
    assert nvml.nvmlDeviceIsMigDeviceHandle(told.device).value == 0


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


def test_newer_cards_report_profiles_with_the_mode_off(nvml: Any, stub: Stub) -> None:
    stub.write(card(0, name='"NVIDIA H100 80GB HBM3"'), card(1), card(2, mig="unsupported"))
    info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(device(nvml), 0)
    assert info.name == "MIG 1g.10gb"
    fields = [
        nvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED,
        nvml.NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE,
    ]
    told = [nvml.nvmlDeviceGetFieldValues(device(nvml, i), fields) for i in range(3)]
    assert [[v.value.uiVal for v in values] for values in told[:2]] == [[1, 1], [0, 0]]
    assert [v.nvmlReturn for v in told[2]] == [NOT_SUPPORTED, NOT_SUPPORTED]
    assert code(nvml, lambda: nvml.nvmlDeviceGetMigMode(device(nvml, 2))) == NOT_SUPPORTED


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
