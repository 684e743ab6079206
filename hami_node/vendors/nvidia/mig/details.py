"""`Device.detail` of NVIDIA cards: what the driver says on their own node, what they offer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.mig.found import CardProfile, MigCard, MigDevice
from hami_node.vendors.nvidia.mig.layout import (
    NO_LAYOUT,
    KnownGeometries,
    MigInstance,
    MigLayout,
    TemplateSlot,
    entry_for,
    geometries_of,
    is_of,
)
from hami_node.vendors.nvidia.mode import Mode


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


def with_known_layout(device: Device, known: Sequence[KnownGeometries]) -> Device:
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
