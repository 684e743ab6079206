"""Which MIG instance of a card serves an ask: geometries (2.8) and profiles with placements (2.10).

A card that registers geometries follows 2.8, a card with profiles follows 2.10. Instances in
use are never moved: a geometry is chosen only while nothing runs in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from hami_node.engine.usage import Charge, DeviceUsage, Taken
from hami_node.model import Device
from hami_node.vendors.nvidia.mig.layout import (
    MigDevice,
    MigInstance,
    MigLayout,
    MigPlacement,
    MigProfile,
    TemplateSlot,
    can_hold,
    layout_of,
    mig_of,
)
from hami_node.vendors.nvidia.names import POD_MIG_ALLOCATIONS

FROM_THE_TOP: Final = ("1g.", "3g.")
"""Profiles placed at the highest free start; the others take the lowest. Source: HAMi 2.10
nvidia/mig_topology.go:26-80."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigUse:
    """`DeviceUsage.parts`: the instances of a card that are in use.

    Attributes:
        template: position of the geometry in use (2.8); None while none is chosen.
        slots: positions in the expanded geometry that are in use (2.8).
        placements: memory slices in use (2.10).
        devices: MIG devices in use that others have made, whose places may be unknown.
    """

    template: int | None = None
    slots: frozenset[int] = frozenset()
    placements: tuple[MigPlacement, ...] = ()
    devices: tuple[MigDevice, ...] = ()


MIXED: Final = (
    "instances of a geometry ([geometry-slot], HAMi up to 2.9) and by place (rows, 2.10) are "
    "granted on one card: let the pods of one kind end"
)
NOTHING_USED: Final = MigUse()
"""The use of a card without instances."""


def use_of(card: DeviceUsage) -> MigUse:
    """The instances of a card that are in use."""
    return card.parts if isinstance(card.parts, MigUse) else NOTHING_USED


def choices(card: DeviceUsage, memory_mib: int) -> Iterator[Taken]:
    """The instances that hold an ask of this size and are free; the first is what it gets.

    The others are for a namespace whose quota does not admit the first.
    """
    if layout_of(card.device).templates:
        return _slots(card, memory_mib)
    return _placements(card, memory_mib)


def with_instances(card: DeviceUsage, charge: Charge, *, is_mig: bool) -> DeviceUsage:
    """The card with the instances of a charge recorded, and why they can't be right.

    Source: HAMi 2.10 A43.
    """
    used = use_of(card)
    slots = [part for part in charge.parts if isinstance(part, TemplateSlot)]
    devices = tuple(part for part in charge.parts if isinstance(part, MigDevice))
    places = (part.placement for part in charge.parts if isinstance(part, MigInstance))
    templates = {part.template for part in slots}
    if used.template is not None:
        templates.add(used.template)
    new = MigUse(
        slots=frozenset(part.slot for part in slots),
        placements=(*places, *_places_of(card.device, devices)),
        devices=devices,
    )
    now = MigUse(
        template=min(templates, default=None),
        slots=used.slots | new.slots,
        placements=used.placements + new.placements,
        devices=used.devices + new.devices,
    )
    named = len(set(slots)) + len(charge.parts) - len(slots)
    if not is_mig:
        why = "a MIG instance is granted on a card that is not in MIG mode"
    elif named < charge.grants:
        why = (
            "a grant on a card in MIG mode names no instance: neither as [geometry-slot] nor in a "
            f"row of {POD_MIG_ALLOCATIONS} that can be read"
        )
    elif now.slots and now.placements:
        why = MIXED
    elif len(templates) > 1:
        why = "instances of two geometries are granted"
    else:
        why = _why_impossible(card.device, charge, used, new) or _why_unclear(card.device, now)
    return replace(card, parts=now, contradiction=card.contradiction or why)


def _why_impossible(device: Device, charge: Charge, used: MigUse, new: MigUse) -> str:
    made = (part for part in charge.parts if not isinstance(part, MigDevice))  # those exist
    if not all(can_hold(device, part) for part in made):
        return "an instance is granted that the card's geometries or profiles don't have"
    if (
        used.slots & new.slots
        or _any_overlap(used.placements, new.placements)
        or _numbers(used.devices) & _numbers(new.devices)
    ):
        return "one MIG instance is granted twice"
    return ""


def _why_unclear(device: Device, use: MigUse) -> str:
    """An instance of others may be one that was reserved by its place, where that is not known.

    A slot of a geometry has none, and an instance has none without rights.
    """
    mig = mig_of(device)
    if not use.devices or mig is None:
        return ""
    blind = [found.device for found in mig.instances if not found.placement.size]
    is_blind = any(held in blind for held in use.devices)
    if not use.slots and not (is_blind and use.placements):
        return ""
    return (
        "containers hold instances that were made for them beside instances that others have made, "
        "and which are whose can't be told before the first have ended"
    )


def with_choice(card: DeviceUsage, choice: Taken) -> DeviceUsage | None:
    """The card's instances with another one of the `choices` that were just found for this card.

    As `with_instances`, in a fraction of its time: nothing can be wrong with it. None where that
    takes a closer look.
    """
    used, part = use_of(card), choice.part
    if used.devices or not isinstance(card.device.detail, MigLayout):
        return None
    if isinstance(part, MigInstance):
        if used.slots or used.template is not None:
            return None
        now = MigUse(placements=(*used.placements, part.placement))
    elif not isinstance(part, TemplateSlot):
        return None
    else:
        if used.placements:
            return None
        now = MigUse(template=part.template, slots=used.slots | {part.slot})
    return DeviceUsage(  # not `replace`, which takes three times as long
        device=card.device,
        slots_used=card.slots_used,
        memory_used_mib=card.memory_used_mib,
        cores_used=card.cores_used,
        parts=now,
        contradiction=card.contradiction,
    )


def before_choice(card: DeviceUsage, choice: Taken) -> DeviceUsage:
    """The card that a choice is charged to: an unused card drops its former geometry."""
    used = use_of(card)
    if isinstance(choice.part, TemplateSlot) and not used.slots:
        return replace(card, parts=replace(used, template=None))
    return card


def _places_of(device: Device, wanted: tuple[MigDevice, ...]) -> tuple[MigPlacement, ...]:
    """Where these instances are, as far as they exist and the driver tells."""
    mig = mig_of(device)
    if mig is None or not wanted:
        return ()
    return tuple(
        found.placement
        for found in mig.instances
        if found.device in wanted and found.placement.size > 0
    )


def _numbers(devices: tuple[MigDevice, ...]) -> frozenset[tuple[int, int]]:
    """A container can reach whatever has its instance's numbers, also one that was made later."""
    return frozenset((it.gpu_instance_id, it.compute_instance_id) for it in devices)


def _any_overlap(held: tuple[MigPlacement, ...], new: tuple[MigPlacement, ...]) -> bool:
    return any(mine.overlaps(theirs) for mine in held for theirs in new)


def _slots(card: DeviceUsage, memory_mib: int) -> Iterator[Taken]:
    """A free slot of each entry that is large enough; an unused card may have any geometry.

    Source: HAMi 2.8, nvidia/device.go CustomFilterRule and AddResourceUsage.
    """
    used = use_of(card)
    for template, geometry in enumerate(layout_of(card.device).templates):
        if used.slots and template != used.template:
            continue
        start = 0
        for entry in geometry:
            slots = range(start, start + entry.count)
            slot = next((slot for slot in slots if slot not in used.slots), None)
            if slot is not None and entry.memory_mib >= memory_mib:
                yield Taken(
                    device=card.device,
                    memory_mib=entry.memory_mib,
                    cores=entry.cores,
                    part=TemplateSlot(template=template, slot=slot),
                )
            start += max(entry.count, 0)


def _placements(card: DeviceUsage, memory_mib: int) -> Iterator[Taken]:
    """A free placement of each profile that is large enough, the smallest profile first."""
    profiles = sorted(
        (item for item in layout_of(card.device).profiles if item.memory_mib >= memory_mib),
        key=lambda profile: (profile.memory_mib, profile.slice_count),
    )
    held = [(place.start, place.start + place.size) for place in use_of(card).placements]
    for profile in profiles:
        if free := _free(profile, held):
            choose_one = max if profile.name.startswith(FROM_THE_TOP) else min
            yield Taken(
                device=card.device,
                memory_mib=profile.memory_mib,
                cores=profile.cores,
                part=MigInstance(
                    profile=profile.name, placement=choose_one(free, key=attrgetter("start"))
                ),
            )


def _free(profile: MigProfile, held: Sequence[tuple[int, int]]) -> list[MigPlacement]:
    """The placements beside what is held; one of size 0 would hold any number of instances."""
    free = []
    for place in profile.placements:
        start, end = place.start, place.start + place.size
        for first, last in held:
            if start < last and first < end:
                break
        else:
            if place.size > 0:
                free.append(place)
    return free
