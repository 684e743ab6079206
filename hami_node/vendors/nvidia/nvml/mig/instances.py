"""The instances that exist on a card, whoever made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from hami_node.vendors.nvidia.mig.found import CardProfile, FoundInstance
from hami_node.vendors.nvidia.mig.layout import MigPlacement
from hami_node.vendors.nvidia.nvml.calls import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    CallFailed,
)
from hami_node.vendors.nvidia.nvml.mig.asked import MAX_LISTED, AskedCard, impossible, within
from hami_node.vendors.nvidia.nvml.mig.devices import MAX_INSTANCE_ID, Devices, HeldDevice
from hami_node.vendors.nvidia.nvml.mig.profiles import placement_of
from hami_node.vendors.nvidia.nvml.use import processes_on

_GONE: Final = frozenset({NOT_FOUND, INVALID_ARGUMENT})
"""What a handle answers whose instance has gone since it was listed."""
_SHARED_ENGINES: Final = 0
_UNVERSIONED: Final = 1
UNKNOWN_PLACEMENT: Final = MigPlacement()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A compute instance."""

    handle: object
    slice_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One reading of a card; `kinds`: compute instances by GPU instance's profile, as they come."""

    card: AskedCard
    profiles: Sequence[CardProfile]
    devices: Devices
    kinds: dict[int, dict[int, int]] = field(default_factory=dict)


def read_instances(
    card: AskedCard, profiles: Sequence[CardProfile], *, with_processes: bool
) -> tuple[FoundInstance, ...]:
    """All GPU instances, by their number. Check: nvidia-smi mig -lgi -lci; nvidia-smi -L.

    Raises:
        DeviceLost: see `NvmlCalls.ask`; or instances that can't exist, or not at once.
    """
    reading = _Reading(card=card, profiles=profiles, devices=Devices(card))
    found: dict[int, FoundInstance] = {}
    for profile in profiles:
        for handle in card.listed("nvmlDeviceGetGpuInstances", card.handle, profile.id):
            instance = _instance(reading, handle, with_processes=with_processes)
            if instance is not None:
                found[instance.gpu_instance_id] = instance
    instances = tuple(found[number] for number in sorted(found))
    _assert_possible(instances)
    return instances


def _instance(reading: _Reading, handle: object, *, with_processes: bool) -> FoundInstance | None:
    """None for one that has gone in the meantime."""
    card = reading.card
    info = card.ask("nvmlGpuInstanceGetInfo", handle, absent=_GONE)
    if info is None:
        return None
    number = within(info.id, 0, MAX_INSTANCE_ID, "an instance's number")
    profile = next((known for known in reading.profiles if known.id == info.profileId), None)
    parts = sorted(_compute_instances(reading, handle, info.profileId).items())
    held = [reading.devices.of(part.handle, number, part_number) for part_number, part in parts]
    is_whole = len(parts) == 1 and profile and parts[0][1].slice_count == profile.slice_count
    return FoundInstance(
        gpu_instance_id=number,
        profile=profile.name if profile else "",
        profile_id=int(info.profileId),
        placement=placement_of(info.placement),
        compute_instance_ids=tuple(part_number for part_number, _ in parts),
        device=held[0].device if is_whole and held[0] else None,
        processes=_processes(card, held) if with_processes else None,
    )


def compute_profiles(card: AskedCard, gpu_instance: object) -> Iterator[tuple[int, int]]:
    """Id and slices of each kind of compute instance that a GPU instance can hold."""
    for position in range(MAX_LISTED):
        try:
            info = card.ask(
                "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                gpu_instance,
                position,
                _SHARED_ENGINES,
                _UNVERSIONED,
                absent=frozenset({NOT_SUPPORTED}),
            )
        except CallFailed as e:
            if e.code == INVALID_ARGUMENT:
                return
            raise
        if info is not None:
            yield int(info.id), int(info.sliceCount)


def _compute_instances(
    reading: _Reading, gpu_instance: object, profile_id: int
) -> dict[int, _Part]:
    card, found = reading.card, {}
    slices = reading.kinds.get(profile_id)
    if slices is None:
        slices = reading.kinds[profile_id] = dict(compute_profiles(card, gpu_instance))
    for kind in slices:
        for handle in card.listed("nvmlGpuInstanceGetComputeInstances", gpu_instance, kind):
            info = card.ask("nvmlComputeInstanceGetInfo_v2", handle, absent=_GONE)
            if info is not None:
                number = within(info.id, 0, MAX_INSTANCE_ID, "an instance's number")
                found[number] = _Part(handle=handle, slice_count=slices.get(info.profileId, 0))
    return found


def _processes(card: AskedCard, held: Sequence[HeldDevice | None]) -> frozenset[int] | None:
    """Of all compute instances; None where one can't be asked."""
    found: set[int] = set()
    for device in held:
        pids = processes_on(card.calls, device.handle, card.index) if device else None
        if pids is None:
            return None
        found |= pids
    return frozenset(found)


def _assert_possible(instances: Sequence[FoundInstance]) -> None:
    """Raises DeviceLost: two share a memory slice or a UUID."""
    places = sorted((found.placement.start, found.placement.size) for found in instances)
    uuids = [found.device.uuid for found in instances if found.device]
    if any(start + size > then for (start, size), (then, _) in pairwise(places)):
        raise impossible("overlapping instances")
    if len(set(uuids)) < len(uuids):
        raise impossible("MIG devices with one UUID")


def visible_instances(
    card: AskedCard, profiles: Sequence[CardProfile]
) -> tuple[FoundInstance, ...]:
    """The instances that can be seen without rights: those with a MIG device, without their place.

    Raises:
        DeviceLost: see `NvmlCalls.ask`; or a UUID that can't be one.
    """
    found: dict[int, FoundInstance] = {}
    for (number, part), held in sorted(Devices(card).walked().items()):
        profile = _profile_of(card, held, profiles)
        is_only = number not in found
        found[number] = FoundInstance(
            gpu_instance_id=number,
            profile=profile.name if profile else "",
            profile_id=profile.id if profile else -1,
            placement=UNKNOWN_PLACEMENT,
            compute_instance_ids=(*(() if is_only else found[number].compute_instance_ids), part),
            device=held.device if is_only and profile else None,
        )
    return tuple(found.values())


def _profile_of(
    card: AskedCard, held: HeldDevice, profiles: Sequence[CardProfile]
) -> CardProfile | None:
    """By the name that the device has of it, else by slices and memory; None for part of one."""
    name = card.ask("nvmlDeviceGetName", held.handle)
    text = name if isinstance(name, str) else name.decode(errors="replace")
    _, has_name, kind = text.partition(" MIG ")
    if has_name:
        return next((known for known in profiles if known.name == kind), None)
    facts = card.ask("nvmlDeviceGetAttributes_v2", held.handle)
    size = (facts.gpuInstanceSliceCount, facts.memorySizeMB)
    alike = [known for known in profiles if (known.slice_count, known.memory_mib) == size]
    is_whole = facts.computeInstanceSliceCount == facts.gpuInstanceSliceCount
    return alike[0] if len(alike) == 1 and is_whole else None
