"""What NVML says of cards in MIG mode: profiles, instances, devices; and when it is read again."""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar

from hami_node.errors import DeviceLost
from hami_node.model import Uuid
from hami_node.ports import Clock
from hami_node.vendors.nvidia.mig.layout import (
    CardProfile,
    FoundInstance,
    MigCard,
    MigDevice,
    MigPlacement,
)
from hami_node.vendors.nvidia.nvml.calls import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_OFFERED,
    NOT_SUPPORTED,
    CallFailed,
    CardGone,
    NvmlCalls,
    of_one_card,
)
from hami_node.vendors.nvidia.nvml.cards import MAX_MEMORY_MIB, MigModes
from hami_node.vendors.nvidia.nvml.use import processes_on

T = TypeVar("T")

INSTANCES_S: Final = 5.0
"""Others may make and destroy instances at any time."""
PROFILES_S: Final = 60.0
"""Sizes differ from driver to driver, and a driver may be replaced under a running daemon."""
RIGHTS: Final = (
    "the daemon has no rights for MIG: apply daemonset/overlays/mig, which gives it CAP_SYS_ADMIN "
    "and NVIDIA_MIG_CONFIG_DEVICES=all (or let it read "
    "/proc/driver/nvidia/capabilities/mig/config)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dated(Generic[T]):
    """Something read in these modes; until then, on the monotonic clock, it needn't be again."""

    modes: MigModes
    value: T
    until_s: float


class MigReader:
    """Reads MIG for passes and jobs. Only the worker's thread uses it."""

    def __init__(self, clock: Clock) -> None:
        """Knows nothing yet."""
        self._clock = clock
        self._profiles: dict[Uuid, _Dated[ProfilesRead]] = {}
        self._cards: dict[Uuid, _Dated[MigCard]] = {}

    def forget(self) -> None:
        """The driver's session is a new one, perhaps with another driver."""
        self._profiles.clear()
        self._cards.clear()

    def note_change(self, uuid: Uuid) -> None:
        """The card's instances are about to change: the next pass reads them again."""
        self._cards.pop(uuid, None)

    def scan(self, card: AskedCard, uuid: Uuid, modes: MigModes) -> MigCard:
        """The card for a pass, without processes; read again only when that is due.

        Raises:
            CardGone, DriverUnavailable: the card or the driver is lost. Whatever else is wrong is
                the card's `problem`.
        """
        now_s, known = self._clock.monotonic(), self._cards.get(uuid)
        if known is not None and known.modes == modes and now_s < known.until_s:
            return known.value
        try:
            found = self._read(card, uuid, modes, with_processes=False)
        except CardGone:
            raise
        except DeviceLost as e:
            kept = self._profiles.get(uuid)
            found = MigCard(
                is_enabled=True,
                is_pending=modes.is_pending,
                profiles=kept.value.profiles if kept else (),
                problem=_explained(e),
            )
        self._cards[uuid] = _Dated(modes=modes, value=found, until_s=now_s + INSTANCES_S)
        return found

    def look(self, card: AskedCard, uuid: Uuid, modes: MigModes) -> MigCard:
        """The card as it is now, with the processes on its instances.

        Raises:
            DeviceLost: it can't be read in full.
        """
        found = self._read(card, uuid, modes, with_processes=True)
        if found.restriction:
            raise CallFailed("not all of the card may be seen", NO_PERMISSION)
        return found

    def profiles_of(self, card: AskedCard, uuid: Uuid, modes: MigModes) -> ProfilesRead:
        """The card's profiles, read again from time to time. Raises DeviceLost."""
        now_s, known = self._clock.monotonic(), self._profiles.get(uuid)
        if known is None or known.modes != modes or now_s >= known.until_s:
            self._profiles.pop(uuid, None)
            read = read_profiles(card)
            known = _Dated(modes=modes, value=read, until_s=now_s + PROFILES_S)
            self._profiles[uuid] = known
        return known.value

    def _read(
        self, card: AskedCard, uuid: Uuid, modes: MigModes, *, with_processes: bool
    ) -> MigCard:
        if not modes.is_enabled:
            return MigCard(is_enabled=False, is_pending=modes.is_pending)
        with of_one_card():
            read = self.profiles_of(card, uuid, modes)
            restriction = RIGHTS if read.is_restricted else ""
            try:
                instances = _instances(card, read, with_processes)
            except CallFailed as e:
                if not _lacks_rights(e):
                    raise
                restriction, instances = RIGHTS, visible_instances(card, read.profiles)
        return MigCard(
            is_enabled=True,
            is_pending=modes.is_pending,
            profiles=read.profiles,
            instances=instances,
            restriction=restriction,
        )


def _instances(
    card: AskedCard, read: ProfilesRead, with_processes: bool
) -> tuple[FoundInstance, ...]:
    if read.is_restricted:
        return visible_instances(card, read.profiles)
    try:
        return read_instances(card, read.profiles, with_processes=with_processes)
    except (CallFailed, Impossible) as e:
        if isinstance(e, CardGone) or _lacks_rights(e):
            raise
        # it looks like this, too, while others make and destroy some
        return read_instances(card, read.profiles, with_processes=with_processes)


def _lacks_rights(error: DeviceLost) -> bool:
    return isinstance(error, CallFailed) and error.code == NO_PERMISSION


def _explained(error: DeviceLost) -> str:
    return f"{error}: {RIGHTS}" if _lacks_rights(error) else str(error)


# -- the instances that exist on a card, whoever made them -----------------------------------------
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


# -- MIG devices: NVML's handle of a compute instance, and what it says of itself ------------------
MAX_INSTANCE_ID: Final = 4095
_NO_DEVICE: Final = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """A MIG device and its handle, which is good for this pass or job only."""

    device: MigDevice
    handle: Any


class Devices:
    """The MIG devices of a card within one pass or job; the card is walked over once at most."""

    def __init__(self, card: AskedCard) -> None:
        """Asks nothing yet."""
        self._card = card
        self._walked: Mapping[tuple[int, int], HeldDevice] | None = None

    def of(
        self, compute_handle: object, gpu_instance_id: int, compute_instance_id: int
    ) -> HeldDevice | None:
        """The one of a compute instance; None where the driver shows none.

        Raises:
            DeviceLost, DriverUnavailable: see `NvmlCalls.ask`; or a UUID that can't be one.
        """
        info = self._card.ask("nvmlComputeInstanceGetInfo_v2", compute_handle)
        # nvml.h calls that handle the card's
        found = _held(self._card, info.device) if info.device else None
        wanted = (gpu_instance_id, compute_instance_id)
        if found is not None and _numbers(found.device) == wanted:
            return found
        return self.walked().get(wanted)

    def walked(self) -> Mapping[tuple[int, int], HeldDevice]:
        """All, by their GPU instance and compute instance; raises as `of`."""
        if self._walked is None:
            self._walked = {_numbers(found.device): found for found in _walk(self._card)}
        return self._walked


def _walk(card: AskedCard) -> Iterator[HeldDevice]:
    count = card.ask("nvmlDeviceGetMaxMigDeviceCount", card.handle)
    for i in range(within(count, 0, MAX_LISTED, "MIG devices")):
        handle = card.ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, i, absent=_NO_DEVICE)
        found = None if handle is None else _held(card, handle)
        if found is not None:
            yield found


def _held(card: AskedCard, handle: object) -> HeldDevice | None:
    """None for a handle that is no MIG device's, or no longer."""
    is_mig = card.ask("nvmlDeviceIsMigDeviceHandle", handle, absent=_NO_DEVICE)
    if is_mig is None or is_mig.value != 1:
        return None
    uuid = card.ask("nvmlDeviceGetUUID", handle, absent=_NO_DEVICE)
    numbers = [
        card.ask(function, handle, absent=_NO_DEVICE)
        for function in ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")
    ]
    if uuid is None or None in numbers:
        return None
    gpu_instance_id, compute_instance_id = (
        within(number, 0, MAX_INSTANCE_ID, "an instance's number") for number in numbers
    )
    device = MigDevice(
        uuid=mig_uuid(uuid),
        gpu_instance_id=gpu_instance_id,
        compute_instance_id=compute_instance_id,
    )
    return HeldDevice(device=device, handle=handle)


def _numbers(device: MigDevice) -> tuple[int, int]:
    return device.gpu_instance_id, device.compute_instance_id


# -- the profiles of a card, by NVML's own names and numbers: no model, no size is known here ------
_INFO: Final = "nvmlDeviceGetGpuInstanceProfileInfo"
_OLD: Final = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})
_NONE: Final = frozenset({NOT_SUPPORTED})
_NAMED, _NAMELESS = 2, 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,31}", re.ASCII)
_MAX_ID: Final = 2**16
_MAX_SLICES: Final = 32
_MAX_MULTIPROCESSORS: Final = 4096
_KINDS: Final = (
    ({7, 8}, "+me"),
    ({10, 11, 12, 17}, "+gfx"),
    ({13, 14}, "-me"),
    ({15, 16}, "+me.all"),
)
"""What the name of a profile ends in, by its position in the driver's list. Source: nvml.h."""
_EIGHTHS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesRead:
    """Profiles, and whether the daemon may know their placements."""

    profiles: tuple[CardProfile, ...]
    is_restricted: bool = False


def read_profiles(card: AskedCard) -> ProfilesRead:
    """All that the card has, the revisions too. Check: nvidia-smi mig -lgip -lgipp.

    Raises:
        DeviceLost: see `NvmlCalls.ask`; or numbers or names that can't be right.
    """
    found: dict[int, CardProfile] = {}
    is_restricted = False
    for name, info in _named(card):
        number = within(info.id, 0, _MAX_ID, "a profile's id")
        try:
            placements = _placements(card, number)
        except CallFailed as e:
            if e.code != NO_PERMISSION:
                raise
            placements, is_restricted = (), True
        found[number] = CardProfile(
            name=name,
            id=number,
            memory_mib=within(info.memorySizeMB, 1, MAX_MEMORY_MIB, "a profile's memory"),
            slice_count=within(info.sliceCount, 1, _MAX_SLICES, "a profile's slices"),
            multiprocessors=within(
                info.multiprocessorCount, 1, _MAX_MULTIPROCESSORS, "a profile's multiprocessors"
            ),
            instance_count=within(info.instanceCount, 1, MAX_LISTED, "a profile's instances"),
            placements=placements,
        )
    profiles = tuple(found.values())
    if not profiles or max(Counter(profile.name for profile in profiles).values()) > 1:
        raise impossible("profiles")
    return ProfilesRead(profiles=profiles, is_restricted=is_restricted)


def _named(card: AskedCard) -> Iterator[tuple[str, Any]]:
    """Each profile with its name; where the driver has none, by the sizes of all."""
    form = _form(card)
    found = list(_listed(card, form))
    memory_mib = 0 if form == _NAMED else _memory_mib(card, [info for _, info in found])
    for position, info in found:
        if form == _NAMED:
            yield _sound_name(info.name.removeprefix("MIG ")), info
        else:
            yield _name_by_size(info, position, memory_mib), info


def _listed(card: AskedCard, form: int) -> Iterator[tuple[int, Any]]:
    for position in range(MAX_LISTED):
        try:
            info = card.ask(_INFO, card.handle, position, form, absent=_NONE)
        except CallFailed as e:
            if e.code == INVALID_ARGUMENT:
                return
            raise
        if info is not None:
            yield position, info


def _form(card: AskedCard) -> int:
    """Drivers before 510 don't name their profiles."""
    try:
        card.ask(_INFO, card.handle, 0, _NAMED, absent=_NONE)
    except CallFailed as e:
        return _NAMELESS if e.code in _OLD else _NAMED
    return _NAMED


def _sound_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise impossible("a profile's name")
    return name


def _memory_mib(card: AskedCard, profiles: Sequence[Any]) -> int:
    """The card's; without the right to ask for it all but that, which its largest profile has."""
    absent = NOT_OFFERED | {NO_PERMISSION}
    info = card.ask("nvmlDeviceGetMemoryInfo", card.handle, absent=absent)
    largest = max((int(profile.memorySizeMB) for profile in profiles), default=0)
    total = largest if info is None else int(info.total) >> 20
    return within(total, 1, MAX_MEMORY_MIB, "a card's memory")


def _name_by_size(info: Any, position: int, card_mib: int) -> str:  # noqa: ANN401
    """As newer drivers name it: its memory is so many eighths of the card's GiB."""
    eighths = math.ceil(int(info.memorySizeMB) * _EIGHTHS / card_mib)
    memory_gb = math.floor(math.ceil(card_mib / 1024) * eighths / _EIGHTHS + 0.5)
    kind = next((ending for positions, ending in _KINDS if position in positions), "")
    return f"{int(info.sliceCount)}g.{memory_gb}gb{kind}"


def _placements(card: AskedCard, profile_id: int) -> tuple[MigPlacement, ...]:
    """All legal ones, lowest first."""
    function, count = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint(0)
    card.ask(function, card.handle, profile_id, None, ctypes.byref(count))
    within(count.value, 0, MAX_LISTED, "placements")
    listed = (Placement * MAX_LISTED)()
    card.ask(function, card.handle, profile_id, listed, ctypes.byref(count))
    found = {
        placement_of(listed[i]) for i in range(within(count.value, 0, MAX_LISTED, "placements"))
    }
    return tuple(sorted(found, key=lambda place: (place.start, place.size)))


def placement_of(answer: Any) -> MigPlacement:  # noqa: ANN401
    """Memory slices that a card can have. Raises DeviceLost."""
    size = within(answer.size, 1, _MAX_SLICES, "a placement")
    return MigPlacement(start=within(answer.start, 0, _MAX_SLICES - size, "a placement"), size=size)


# -- NVML for one card: its calls, its lists, and answers that can't be right ----------------------
MAX_LISTED: Final = 64
"""No card has more profiles, instances or placements."""
_UUID: Final = re.compile(r"MIG-[A-Za-z0-9-]{8,80}", re.ASCII)


class Impossible(DeviceLost):
    """The driver's answers can't be right, or not all at once."""


class Placement(ctypes.Structure):
    """nvmlGpuInstancePlacement_t."""

    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCard:
    """A card that is asked within one pass or job: its handle is good for no longer."""

    calls: NvmlCalls
    index: int
    handle: Any

    def ask(self, function: str, *args: object, absent: frozenset[int] = frozenset()) -> Any:  # noqa: ANN401
        """See `NvmlCalls.ask`."""
        return self.calls.ask(function, *args, card=self.index, absent=absent)

    def listed(self, function: str, owner: object, kind: int) -> list[Any]:
        """The handles of all instances of a profile.

        Raises:
            DeviceLost: see `NvmlCalls.ask`; or more than there can be.
        """
        handles, count = (ctypes.c_void_p * MAX_LISTED)(), ctypes.c_uint(MAX_LISTED)
        self.ask(function, owner, kind, handles, ctypes.byref(count))
        found = handles[: within(count.value, 0, MAX_LISTED, "instances")]
        return [ctypes.c_void_p(handle) for handle in found]


def within(value: Any, lowest: int, highest: int, what: str) -> int:  # noqa: ANN401
    """The number. Raises Impossible: no card can have such a one."""
    number = int(value)
    if not lowest <= number <= highest:
        raise impossible(what)
    return number


def impossible(what: str) -> Impossible:
    """An answer that can't be right."""
    return Impossible(f"the driver reports {what} that can't be right (nvidia-smi mig -lgip -lgi)")


def mig_uuid(answer: str | bytes) -> str:
    """Raises Impossible: no MIG device can have such a UUID."""
    text = answer if isinstance(answer, str) else answer.decode(errors="replace")
    if not _UUID.fullmatch(text):
        raise impossible("a UUID of a MIG device")
    return text
