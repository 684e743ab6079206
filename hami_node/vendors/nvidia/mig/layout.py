"""What a card in MIG mode can hold, what is on it, and what of that its node says. Pure.

It can hold geometries (2.5 to 2.9), or profiles with placements (2.10).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.choices import ListedGeometries, ListedInstance
from hami_node.vendors.nvidia.mode import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlacement:
    """Memory slices [start, start + size) of a card; annotations may leave out a 0."""

    start: int = 0
    size: int = 0

    def overlaps(self, other: MigPlacement) -> bool:
        """True when both use the same memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A kind of MIG instance that a card can hold (generation 2.10)."""

    name: str
    memory_mib: int
    cores: int
    slice_count: int
    placements: tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigTemplate:
    """An entry of a geometry (generation 2.8): `count` instances of the same size."""

    name: str
    memory_mib: int
    cores: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigLayout:
    """`Device.detail`: the instances that a card in MIG mode can hold.

    A card has profiles (2.10) or templates, which are geometries of instances (2.8).
    """

    profiles: tuple[MigProfile, ...] = ()
    templates: tuple[tuple[MigTemplate, ...], ...] = ()


NO_LAYOUT: Final = MigLayout()
"""The layout of a card that registered no instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSlot:
    """`Grant.part` in the 2.8 form: an entry of an expanded geometry, `UUID[template-slot]`."""

    template: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """`Grant.part` in the 2.10 form: an instance of a profile at a placement."""

    profile: str
    placement: MigPlacement


def is_of(layout: MigLayout, part: Hashable) -> bool:
    """False for an instance of another division; a card without a layout may have any."""
    if layout == NO_LAYOUT:
        return True
    if isinstance(part, TemplateSlot):
        if part.template >= len(layout.templates):
            return False
        geometry = layout.templates[part.template]
        return part.slot < len(geometry) or entry_of(geometry, part.slot) is not None
    return isinstance(part, MigInstance) and any(
        part.placement in profile.placements for profile in layout.profiles
    )


def entry_of(geometry: tuple[MigTemplate, ...], slot: int) -> MigTemplate | None:
    """The entry behind a position of the expanded geometry: every entry occurs `count` times."""
    for entry in geometry:
        if slot < entry.count:
            return entry
        slot -= entry.count
    return None


def entry_for(
    geometry: tuple[MigTemplate, ...], slot: int, *, memory_mib: int, cores: int
) -> MigTemplate | None:
    """The entry that a grant means by a slot; None where the amounts contradict it.

    For the first pod on an idle card 2.8 and 2.9 write the position of the entry, not that of its
    first slot; then the amounts tell which it is. Source: HAMi 2.8 nvidia/device.go
    CustomFilterRule.
    """
    likely = [entry_of(geometry, slot), *geometry[slot : slot + 1]]
    meant = [entry for entry in likely if entry is not None and entry.memory_mib == memory_mib]
    exact = [entry for entry in meant if entry.cores == cores]
    return next(iter([*exact, *meant]), None)


def geometries_of(
    model: str, known: Sequence[ListedGeometries]
) -> tuple[tuple[MigTemplate, ...], ...]:
    """The first geometries that are listed for a model; () for none.

    Source: HAMi 2.8 nvidia/device.go GetNodeDevices.
    """
    for entry in known:
        if any(part in model for part in entry.models):
            return tuple(tuple(map(_template_of, group)) for group in entry.allowed_geometries)
    return ()


def _template_of(listed: ListedInstance) -> MigTemplate:
    return MigTemplate(
        name=listed.name, memory_mib=listed.memory, cores=listed.core, count=listed.count
    )


# -- MIG as the driver reports it for one card: modes, profiles, and the instances that exist ------
_NAME: Final = re.compile(r"(\d{1,2}g)\.(\d{1,4})gb(\+[a-z0-9.]{1,16})?\Z", re.ASCII)
_NEAR_GB: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A MIG device: one compute instance over all of a GPU instance. 0 is a valid number."""

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProfile:
    """A kind of GPU instance that a card can hold, by NVML's own name and id.

    Attributes:
        name: such as 1g.10gb or 1g.10gb+me, without the word MIG.
        id: what NVML takes to make one; unique on the card, but not in the world.
        memory_mib: what an instance really has.
        slice_count: compute slices.
        multiprocessors: of an instance.
        instance_count: the most that the card can hold at once.
        placements: all legal ones, free or not.
    """

    name: str
    id: int
    memory_mib: int
    slice_count: int
    multiprocessors: int
    instance_count: int
    placements: tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInstance:
    """A GPU instance that exists on a card, whoever made it.

    Attributes:
        profile: the name; "" where the driver lists no such profile.
        compute_instance_ids: () for a GPU instance whose making, or destruction, is half done.
        device: its MIG device; None without one.
        placement: of size 0 where the daemon may not know it (`MigCard.restriction`).
        processes: PIDs that run on it; None where that could not be read, or was not asked for.
    """

    gpu_instance_id: int
    profile: str
    profile_id: int
    placement: MigPlacement
    compute_instance_ids: tuple[int, ...] = ()
    device: MigDevice | None = None
    processes: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigCard:
    """A card that has MIG, as the driver reports it now.

    Attributes:
        is_enabled: in MIG mode now.
        is_pending: the mode that the card will have after its next reset.
        profiles: those of the card; () while they can't be read, as with the mode off.
        instances: all that exist; () with the mode off.
        problem: why profiles or instances could not be read; "" if they were.
        restriction: why the daemon may not make instances, nor see where they are and those that
            are half made; "" where it may. Only instances with a device are known then.
    """

    is_enabled: bool
    is_pending: bool
    profiles: tuple[CardProfile, ...] = ()
    instances: tuple[FoundInstance, ...] = ()
    problem: str = ""
    restriction: str = ""


def profile_named(name: str, profiles: Sequence[CardProfile]) -> CardProfile | None:
    """The profile that a geometry means by a name; None for none.

    The number of gigabytes in a name is rounded, by each driver differently: where nothing has the
    very name, the one with as many slices and all but as many gigabytes is meant.
    """
    exact = next((each for each in profiles if each.name == name), None)
    wanted = _NAME.match(name)
    if exact is not None or wanted is None:
        return exact
    near = [
        each
        for each in profiles
        if (found := _NAME.match(each.name))
        and (found[1], found[3]) == (wanted[1], wanted[3])
        and abs(int(found[2]) - int(wanted[2])) <= _NEAR_GB
    ]
    return near[0] if len(near) == 1 else None


# -- `Device.detail` of NVIDIA cards: what the driver says on their own node, what they offer ------
@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCard:
    """`Device.detail` on the card's own node.

    Attributes:
        minor: the number in its device node's name; None where it is unknown.
        mig: what the driver says of its MIG mode; None for a card without MIG.
        allowed: the profiles that the settings offer of it.
        layout: the instances that it offers: profiles without the places that are taken.
        ours: GPU instances that this daemon has made, or makes, for a container on record.
        stale: GPU instances that it has made, and that nobody should hold any more.
        waits_for: why no instances can be made on it now, or why it has not the mode that the
            settings ask for; "" where neither is so, or nobody has tried yet.
    """

    minor: int | None
    mig: MigCard | None = None
    allowed: tuple[CardProfile, ...] = ()
    layout: MigLayout = NO_LAYOUT
    ours: frozenset[int] = frozenset()
    stale: frozenset[int] = frozenset()
    waits_for: str = ""


def minor_of(device: Device) -> int | None:
    """The number in the name of the card's device node, `/dev/nvidia<minor>`; None if unknown."""
    return device.detail.minor if isinstance(device.detail, DriverCard) else None


def minors_of(cards: Iterable[Device]) -> Mapping[Uuid, int]:
    """The numbers of the cards' device nodes; where two cards have one, it is no card's."""
    found = [(card.uuid, minor) for card in cards if (minor := minor_of(card)) is not None]
    counts = Counter(minor for _, minor in found)
    return {uuid: minor for uuid, minor in found if counts[minor] == 1}


def layout_of(device: Device) -> MigLayout:
    """The instances that a card can hold."""
    if isinstance(device.detail, DriverCard):
        return device.detail.layout
    return device.detail if isinstance(device.detail, MigLayout) else NO_LAYOUT


def mig_of(device: Device) -> MigCard | None:
    """What the driver says of the card's MIG mode, on its own node; None elsewhere."""
    return device.detail.mig if isinstance(device.detail, DriverCard) else None


def with_known_layout(device: Device, known: Sequence[ListedGeometries]) -> Device:
    """The card with the first geometries listed for its model, unless it registered its own."""
    if device.mode != Mode.MIG or layout_of(device) != NO_LAYOUT:
        return device
    templates = geometries_of(device.model, known)
    return replace(device, detail=MigLayout(templates=templates)) if templates else device


def can_hold(device: Device, part: Hashable) -> bool:
    """False for an instance that the card can't hold, whatever is offered of it now.

    On its own node the driver decides: a place that is not offered any more may still be held.
    """
    mig = mig_of(device)
    if isinstance(part, MigInstance) and mig is not None and mig.profiles:
        return any(part.placement in profile.placements for profile in mig.profiles)
    return is_of(layout_of(device), part)


def is_instance(device: Device, memory_mib: int, part: Hashable) -> bool:
    """True when the card can hold exactly this instance, with that much memory.

    Whether its place is free now, its own node decides, who can say by whom it is taken.
    """
    layout = layout_of(device)
    if isinstance(part, TemplateSlot):
        if part.template >= len(layout.templates):
            return False
        geometry = layout.templates[part.template]
        return entry_for(geometry, part.slot, memory_mib=memory_mib, cores=0) is not None
    if isinstance(part, MigDevice):
        return part.uuid in device.ids
    allowed = device.detail.allowed if isinstance(device.detail, DriverCard) else ()
    return isinstance(part, MigInstance) and any(
        (profile.name, profile.memory_mib) == (part.profile, memory_mib)
        and part.placement in profile.placements
        for profile in allowed or layout.profiles
    )


def closed(card: Device, why: str) -> Device:
    """The card, unhealthy for this reason unless it has one of its own; as it is for ""."""
    return replace(card, healthy=False, unhealthy_reason=why) if why and card.healthy else card


def cores_of(multiprocessors: int, most: int) -> int:
    """Percent of the card's, rounded up. Source: HAMi 2.10 register.go:209-254."""
    return -(-100 * multiprocessors // most) if most > 0 else 0
