"""Where an instance of a geometry goes, so that the rest of the geometry still fits. Pure.

A geometry (HAMi 2.5 to 2.9) says how many instances of which profiles share a card, not where they
are. Which places are legal is a property of the profile, and a gap that is large enough is not
always one, so the first free place may be the wrong one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hami_node.vendors.nvidia.mig.found import CardProfile
from hami_node.vendors.nvidia.mig.layout import MigPlacement


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
