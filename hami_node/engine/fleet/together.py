"""What containers that run at the same time need together.

Each may fit alone where they do not fit together. As in `needs`, all of this is necessary and not
sufficient: a container may take a card that another would have needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hami_node.engine.fleet.summaries import Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one container's ask takes of each of its cards, at least.

    Attributes:
        count: number of cards, all different ones.
        memory_by_kind: on each kind of card that is not excluded.
        cores: in percent; 0 takes none.
        idle_kinds: bit set of the kinds of which only unused cards will do.
        is_alone: no other container may be on the card, before or after it.
    """

    count: int
    memory_by_kind: Mapping[int, int]
    cores: int
    idle_kinds: int
    is_alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Asks of different containers that have to be served side by side.

    Attributes:
        count: cards that they take, each container others.
        containers: how many containers; no card serves more of them.
        least_by_kind: the least memory that one of them takes of a card of each kind.
        least_cores: the fewest cores that one of them takes of a card.
        idle_kinds: bit set of the kinds of which only unused cards will do, for one container each.
        beside: what takes cards for itself, beside them.
    """

    count: int
    containers: int
    least_by_kind: Mapping[int, int]
    least_cores: int
    idle_kinds: int
    beside: tuple[Share, ...] = ()

    def may_fit(self, rooms: Iterable[Room]) -> bool:
        """False when the cards can't serve all of them."""
        reserved = sum(share.count for share in self.beside)
        total = 0
        spare: list[int] = []
        for room in rooms:
            most = self._most(room)
            total += most
            if reserved and any(_serves(room, share) for share in self.beside):
                spare.append(most)
        if reserved > len(spare):
            return False
        spare.sort()
        return total - sum(spare[:reserved]) >= self.count

    def _most(self, room: Room) -> int:
        """How many of the containers a card may serve."""
        memory_mib = self.least_by_kind.get(room.kind)
        if memory_mib is None or room.cores <= 0:
            return 0  # a card whose cores are all taken serves nobody
        most = min(self.containers, room.slots)
        if self.idle_kinds >> room.kind & 1:
            most = min(most, 1) if room.is_idle else 0
        if memory_mib > 0:
            most = min(most, room.memory_mib // memory_mib)
        if self.least_cores > 0:
            most = min(most, room.cores // self.least_cores)
        return max(most, 0)


def _serves(room: Room, share: Share) -> bool:
    memory_mib = share.memory_by_kind.get(room.kind)
    return memory_mib is not None and room.is_idle and memory_mib <= room.memory_mib


def together_of(shares: Sequence[Share]) -> tuple[Together, ...]:
    """Everything to check for containers that run side by side; () for a single one.

    A sum over all of them would be hidden by one small ask among large ones, so the largest are
    also looked at without the others.
    """
    if len(shares) < 2:
        return ()
    found: dict[frozenset[int], None] = {}
    numbers = range(len(shares))
    for size in (
        lambda number: max(shares[number].memory_by_kind.values(), default=0),
        lambda number: shares[number].cores,
    ):
        ordered = sorted(numbers, key=size, reverse=True)
        for end in {2, (len(ordered) + 1) // 2, len(ordered) - 1, len(ordered)}:
            if end > 1:
                found[frozenset(ordered[:end])] = None
    checks = [_together([shares[number] for number in sorted(chosen)]) for chosen in found]
    alone = tuple(share for share in shares if share.is_alone)
    others = [share for share in shares if not share.is_alone]
    if alone and others:
        checks.append(_together(others, alone))
    return tuple(checks)


def _together(shares: Sequence[Share], beside: tuple[Share, ...] = ()) -> Together:
    least: dict[int, int] = {}
    shared_kinds = 0
    for share in shares:
        for kind, memory_mib in share.memory_by_kind.items():
            least[kind] = min(memory_mib, least.get(kind, memory_mib))
            if not share.idle_kinds >> kind & 1:
                shared_kinds |= 1 << kind
    kinds = 0
    for kind in least:
        kinds |= 1 << kind
    return Together(
        count=sum(share.count for share in shares),
        containers=len(shares),
        least_by_kind=least,
        least_cores=min(share.cores for share in shares),
        idle_kinds=kinds & ~shared_kinds,
        beside=beside,
    )
