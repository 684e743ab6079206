"""What a grant asks of a card in MIG mode: which profile, and where it may be. Pure.

A geometry (HAMi 2.5 to 2.9) says how many instances of which profiles share a card, not where they
are. Which places are legal is a property of the profile, and a gap that is large enough is not
always one, so the first free place may be the wrong one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hami_node.errors import AllocationError
from hami_node.model import Device, Grant
from hami_node.text import shown
from hami_node.vendors.nvidia.choices import ListedGeometries
from hami_node.vendors.nvidia.mig.layout import (
    CardProfile,
    MigInstance,
    MigPlacement,
    MigTemplate,
    TemplateSlot,
    entry_for,
    geometries_of,
    profile_named,
)

Geometry = tuple[MigTemplate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a grant asks for.

    Attributes:
        place: where it has to be; None where that is the node's choice.
        geometry: the profiles that the card has to hold in the end; () for a fixed place.
    """

    profile: CardProfile
    place: MigPlacement | None
    geometry: tuple[CardProfile, ...] = ()

    def place_beside(
        self,
        live: Iterable[str],
        held: Iterable[MigPlacement],
        costly: Iterable[MigPlacement],
    ) -> MigPlacement | None:
        """Where it goes, beside what is there; None for nowhere.

        Args:
            live: the names of the profiles of which instances of live pods are there.
            held: places that are taken.
            costly: places that can be freed first.
        """
        if self.place is not None:
            return None if any(map(self.place.overlaps, held)) else self.place
        served = Counter(live)
        served[self.profile.name] += 1
        rest = []
        for profile in self.geometry:
            if served[profile.name]:
                served[profile.name] -= 1
            else:
                rest.append(profile)
        return arranged(self.profile, rest, held, costly=costly)


def wanted_by(
    grant: Grant, card: Device, profiles: Sequence[CardProfile], known: Sequence[ListedGeometries]
) -> Wanted:
    """What the grant asks for, by the card's own profiles.

    Args:
        grant: names an instance.
        card: the card, of which the model counts.
        profiles: what the driver says that it can hold.
        known: the geometries that this node shares with its scheduler.

    Raises:
        AllocationError: there is no such instance on this card; says why, and what to do.
    """
    if isinstance(grant.part, MigInstance):
        return _at_a_place(grant, grant.part, card, profiles)
    if isinstance(grant.part, TemplateSlot):
        return _of_a_geometry(grant, grant.part, card, profiles, known)
    raise AllocationError(
        f"{card.uuid} is in MIG mode, and the reservation names no instance of it: check that "
        "scheduler and node are configured for the same form of MIG, and delete the pod so that "
        "its controller makes a new one"
    )


def _at_a_place(
    grant: Grant, part: MigInstance, card: Device, profiles: Sequence[CardProfile]
) -> Wanted:
    profile = next((each for each in profiles if each.name == part.profile), None)
    if profile is None:
        raise AllocationError(_no_profile(part.profile, card, profiles))
    place = part.placement
    if place not in profile.placements:
        raise AllocationError(
            f"{card.uuid}: {part.profile} can't be at slices {place.start}+{place.size}: the "
            "reservation was made for another card or driver; delete the pod so that its "
            "controller makes a new one"
        )
    if profile.memory_mib < grant.memory_mib:
        raise AllocationError(
            f"{card.uuid}: {part.profile} has {profile.memory_mib} MiB with this driver, and the "
            f"reservation says {grant.memory_mib} MiB: delete the pod so that its controller makes "
            "a new one, which is scheduled by the card's present numbers"
        )
    return Wanted(profile=profile, place=place)


def _of_a_geometry(
    grant: Grant,
    part: TemplateSlot,
    card: Device,
    profiles: Sequence[CardProfile],
    known: Sequence[ListedGeometries],
) -> Wanted:
    templates = geometries_of(card.model, known)
    if part.template >= len(templates):
        raise AllocationError(
            f"knownMigGeometries of this node has no geometry {part.template} for "
            f"{shown(card.model)} ({card.uuid}): scheduler and nodes have to read the same text"
        )
    geometry = templates[part.template]
    entry = entry_for(geometry, part.slot, memory_mib=grant.memory_mib, cores=grant.cores)
    if entry is None:
        raise AllocationError(
            f"knownMigGeometries of this node has no instance of {grant.memory_mib} MiB at slot "
            f"{part.slot} of geometry {part.template} for {shown(card.model)} ({card.uuid}): "
            "scheduler and nodes have to read the same text"
        )
    profile = profile_named(entry.name, profiles)
    if profile is None:
        raise AllocationError(_no_profile(entry.name, card, profiles))
    return Wanted(profile=profile, place=None, geometry=_expanded(geometry, profiles))


def _expanded(geometry: Geometry, profiles: Sequence[CardProfile]) -> tuple[CardProfile, ...]:
    """The card's profiles that a geometry consists of; what the card does not have is left out."""
    found: list[CardProfile] = []
    for entry in geometry:
        profile = profile_named(entry.name, profiles)
        if profile is not None:
            found += [profile] * min(max(entry.count, 0), profile.instance_count)
    return tuple(found)


def _no_profile(name: str, card: Device, profiles: Sequence[CardProfile]) -> str:
    offered = ", ".join(each.name for each in profiles) or "none"
    return (
        f"{card.uuid} ({shown(card.model)}) has no MIG profile {shown(name)}, only {offered}: "
        "correct the names in the cluster's configuration, or delete the pod so that its "
        "controller makes a new one"
    )


def arranged(
    wanted: CardProfile,
    rest: Sequence[CardProfile],
    held: Iterable[MigPlacement],
    *,
    costly: Iterable[MigPlacement] = (),
) -> MigPlacement | None:
    """The place for an instance that leaves room for as much of the rest as possible.

    Args:
        wanted: the instance's profile.
        rest: the profiles of the other instances that the card should still be able to hold.
        held: places that are taken.
        costly: places that can be used, but that others are better than.

    Returns:
        None where no legal place is free.
    """
    taken, avoided = _mask_of(held), _mask_of(costly)
    room = _Room(groups=_groups(rest))
    best: tuple[int, int, int, int] | None = None
    chosen: MigPlacement | None = None
    for placement in wanted.placements:
        mask = _mask(placement)
        if not mask or mask & taken:
            continue
        key = (room.fitting(taken | mask), -(mask & avoided).bit_count(), -placement.start, -mask)
        if best is None or key > best:
            best, chosen = key, placement
    return chosen


def _mask(placement: MigPlacement) -> int:
    return ((1 << max(placement.size, 0)) - 1) << max(placement.start, 0)


def _mask_of(placements: Iterable[MigPlacement]) -> int:
    mask = 0
    for placement in placements:
        mask |= _mask(placement)
    return mask


def _groups(rest: Sequence[CardProfile]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """The legal places of each profile, and how many instances of it are wanted."""
    counts = Counter(rest)
    return tuple(
        (
            tuple(sorted({_mask(place) for place in profile.placements} - {0})),
            min(count, profile.instance_count),
        )
        for profile, count in counts.items()
    )


@dataclass(slots=True)
class _Room:
    """How many instances of the rest still fit beside what is taken."""

    groups: tuple[tuple[tuple[int, ...], int], ...]
    known: dict[tuple[int, int, int, int], int] = field(default_factory=dict)

    def fitting(self, taken: int, group: int = 0, begin: int = 0, used: int = 0) -> int:
        """The most that fit, from this place of this group on, `used` of which are placed."""
        if group == len(self.groups):
            return 0
        places, count = self.groups[group]
        key = (taken, group, begin, used)
        if key not in self.known:
            most = self.fitting(taken, group + 1)
            if used < count:
                for at in range(begin, len(places)):
                    if not places[at] & taken:
                        found = self.fitting(taken | places[at], group, at + 1, used + 1)
                        most = max(most, 1 + found)
            self.known[key] = most
        return self.known[key]
