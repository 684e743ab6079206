"""What a card in MIG mode can hold: geometries (2.5 to 2.9), or profiles with placements (2.10)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedProfiles:
    """The profiles that are offered of some models, by the driver's names, in this order.

    Attributes:
        models: parts of the names of these models.
        profiles: their names.
    """

    models: tuple[str, ...]
    profiles: tuple[str, ...]


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
    model: str, known: Sequence[KnownGeometries]
) -> tuple[tuple[MigTemplate, ...], ...]:
    """The first geometries that are listed for a model; () for none.

    Source: HAMi 2.8 nvidia/device.go GetNodeDevices.
    """
    for entry in known:
        if any(part in model for part in entry.models):
            return entry.templates
    return ()
