"""Which MIG instance of a card serves an ask: geometries (2.8) and profiles with placements (2.10).

A card that registers geometries follows 2.8, a card with profiles follows 2.10. Instances in
use are never moved: a geometry is chosen only while nothing runs in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.usage import Charge, DeviceUsage
from hami_node.model import Device
from hami_node.vendors.nvidia.mode import Mode

FROM_THE_TOP: Final = ("1g.", "3g.")
"""Profiles placed at the highest free start; the others take the lowest. Source: HAMi 2.10
nvidia/mig_topology.go:26-80."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGeometries:
    """The geometries of some models as the configuration lists them (HAMi 2.5 to 2.9).

    Plugins of these releases register a card in MIG mode without its geometries, because plugin
    and scheduler read the same list. `TemplateSlot.template` is a position in it.

    Attributes:
        models: parts of the names of these models.
        templates: the geometries, in the order in which they are tried.
    """

    models: tuple[str, ...]
    templates: tuple[tuple[MigTemplate, ...], ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MigUse:
    """`DeviceUsage.parts`: the instances of a card that are in use.

    Attributes:
        template: position of the geometry in use (2.8); None while none is chosen.
        slots: positions in the expanded geometry that are in use (2.8).
        placements: memory slices in use (2.10).
    """

    template: int | None = None
    slots: frozenset[int] = frozenset()
    placements: tuple[MigPlacement, ...] = ()


NOTHING_USED: Final = MigUse()
"""The use of a card without instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigChoice:
    """The instance of a card that is chosen for a grant."""

    part: TemplateSlot | MigInstance
    memory_mib: int
    cores: int


def layout_of(device: Device) -> MigLayout:
    """The instances that a card can hold."""
    return device.detail if isinstance(device.detail, MigLayout) else NO_LAYOUT


def with_known_layout(device: Device, known: Sequence[KnownGeometries]) -> Device:
    """The card with the first geometries listed for its model, unless it registered its own.

    Source: HAMi 2.8 nvidia/device.go GetNodeDevices.
    """
    if device.mode != Mode.MIG or layout_of(device) != NO_LAYOUT:
        return device
    for entry in known:
        if any(model in device.model for model in entry.models):
            return replace(device, detail=MigLayout(templates=entry.templates))
    return device


def use_of(card: DeviceUsage) -> MigUse:
    """The instances of a card that are in use."""
    return card.parts if isinstance(card.parts, MigUse) else NOTHING_USED


def choose(card: DeviceUsage, memory_mib: int) -> MigChoice | None:
    """The instance that an ask of this size gets, or None when the card has none left."""
    if layout_of(card.device).templates:
        return _choose_slot(card, memory_mib)
    return _choose_placement(card, memory_mib)


def with_instances(card: DeviceUsage, charge: Charge, *, is_mig: bool) -> DeviceUsage:
    """The card with the instances of a charge recorded, and why they can't be right.

    Source: HAMi 2.10 A43.
    """
    used = use_of(card)
    named = [part for part in charge.parts if isinstance(part, TemplateSlot)]
    templates = {part.template for part in named}
    if used.template is not None:
        templates.add(used.template)
    slots = frozenset(part.slot for part in named)
    placements = tuple(part.placement for part in charge.parts if isinstance(part, MigInstance))
    why = ""
    if not is_mig:
        why = "a MIG instance is granted on a card that is not in MIG mode"
    elif len(set(named)) + len(placements) < charge.grants:
        why = "a grant on a card in MIG mode names no instance"
    elif len(templates) > 1:
        why = "instances of two geometries are granted"
    elif not all(_is_of(layout_of(card.device), part) for part in charge.parts):
        why = "an instance is granted that the card's geometries or profiles don't have"
    elif slots & used.slots or _any_overlap(used.placements, placements):
        why = "one MIG instance is granted twice"
    return replace(
        card,
        parts=MigUse(
            template=min(templates, default=None),
            slots=used.slots | slots,
            placements=used.placements + placements,
        ),
        contradiction=card.contradiction or why,
    )


def before_choice(card: DeviceUsage, choice: MigChoice) -> DeviceUsage:
    """The card that a choice is charged to: an unused card drops its former geometry."""
    used = use_of(card)
    if isinstance(choice.part, TemplateSlot) and not used.slots:
        return replace(card, parts=replace(used, template=None))
    return card


def _any_overlap(held: tuple[MigPlacement, ...], new: tuple[MigPlacement, ...]) -> bool:
    return any(mine.overlaps(theirs) for mine in held for theirs in new)


def is_instance(device: Device, memory_mib: int, part: Hashable) -> bool:
    """True when the card offers exactly this instance, with that much memory."""
    layout = layout_of(device)
    if isinstance(part, TemplateSlot):
        geometries = layout.templates
        is_known = part.template < len(geometries)
        entry = _entry(geometries[part.template], part.slot) if is_known else None
        return entry is not None and entry.memory_mib == memory_mib
    return isinstance(part, MigInstance) and any(
        profile.memory_mib == memory_mib and part.placement in profile.placements
        for profile in layout.profiles
    )


def _is_of(layout: MigLayout, part: Hashable) -> bool:
    """False for an instance of another division; a card without a layout may have any."""
    if layout == NO_LAYOUT:
        return True
    if isinstance(part, TemplateSlot):
        geometries = layout.templates
        is_known = part.template < len(geometries)
        return is_known and _entry(geometries[part.template], part.slot) is not None
    return isinstance(part, MigInstance) and any(
        part.placement in profile.placements for profile in layout.profiles
    )


def _entry(geometry: tuple[MigTemplate, ...], slot: int) -> MigTemplate | None:
    """The entry behind a position of the expanded geometry: every entry occurs `count` times."""
    for entry in geometry:
        if slot < entry.count:
            return entry
        slot -= entry.count
    return None


def _choose_slot(card: DeviceUsage, memory_mib: int) -> MigChoice | None:
    """First free slot that is large enough; an unused card first chooses its geometry.

    Source: HAMi 2.8, nvidia/device.go CustomFilterRule and AddResourceUsage.
    """
    geometries, used = layout_of(card.device).templates, use_of(card)
    template = used.template if used.slots else _geometry(geometries, memory_mib)
    if template is None or template >= len(geometries):
        return None
    start = 0
    for entry in geometries[template]:
        slots = range(start, start + entry.count) if entry.memory_mib >= memory_mib else range(0)
        slot = next((slot for slot in slots if slot not in used.slots), None)
        if slot is not None:
            part = TemplateSlot(template=template, slot=slot)
            return MigChoice(part=part, memory_mib=entry.memory_mib, cores=entry.cores)
        start += max(entry.count, 0)
    return None


def _geometry(geometries: tuple[tuple[MigTemplate, ...], ...], memory_mib: int) -> int | None:
    for position, geometry in enumerate(geometries):
        if any(entry.memory_mib >= memory_mib and entry.count > 0 for entry in geometry):
            return position
    return None


def _choose_placement(card: DeviceUsage, memory_mib: int) -> MigChoice | None:
    """Smallest profile that is large enough and has a free placement."""
    profiles = sorted(
        (item for item in layout_of(card.device).profiles if item.memory_mib >= memory_mib),
        key=lambda profile: (profile.memory_mib, profile.slice_count),
    )
    for profile in profiles:
        for placement in _preferred(profile):
            if not _any_overlap(use_of(card).placements, (placement,)):
                part = MigInstance(profile=profile.name, placement=placement)
                return MigChoice(part=part, memory_mib=profile.memory_mib, cores=profile.cores)
    return None


def _preferred(profile: MigProfile) -> list[MigPlacement]:
    """Placements in the order to try; one of size 0 would hold any number of instances."""
    is_downward = profile.name.startswith(FROM_THE_TOP)
    real = (placement for placement in profile.placements if placement.size > 0)
    return sorted(real, key=lambda placement: placement.start, reverse=is_downward)
