"""A node in a few numbers, and what a request needs of them.

Nodes where a pod can't fit are passed over. Everything here is a necessary condition:
`place.place_on` decides, this only saves work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, NamedTuple

from hami_node.engine.card_rules import rules_of
from hami_node.engine.filters import (
    FitContext,
    first_failing,
    has_type,
    is_within_quota,
    needs_idle_card,
)
from hami_node.engine.place import Plan
from hami_node.engine.ranking import MUTEX, has_word, node_score
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask, Device, Uuid

NOBODY: Final = Uuid("")
"""The UUID of any card that no list names."""

KIND_FILTERS: Final = (has_type, is_within_quota)
"""Filters with the same answer for all unnamed cards of a kind: they read nothing else of it."""


class Room(NamedTuple):
    """What is free on a card that may take another container."""

    memory_mib: int
    cores: int
    is_idle: bool
    kind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most that a node, or any node of a group, offers.

    Attributes:
        memory_mib: free memory of its cards, largest first.
        cores: free cores of its cards, largest first.
        idle: number of unused cards.
        kinds: bit set of the kinds of its cards.
        has_divided: some card is divided into parts; it may serve several cards of an ask.
    """

    memory_mib: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    idle: int = 0
    kinds: int = 0
    has_divided: bool = False

    def joined(self, other: Bounds) -> Bounds:
        """The bounds of both nodes as one group."""
        return Bounds(
            memory_mib=_longest(self.memory_mib, other.memory_mib),
            cores=_longest(self.cores, other.cores),
            idle=max(self.idle, other.idle),
            kinds=self.kinds | other.kinds,
            has_divided=self.has_divided or other.has_divided,
        )


def _longest(first: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    if len(first) == len(other):
        return tuple(map(max, first, other))
    return tuple(max(pair) for pair in zip_longest(first, other, fillvalue=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """One node in numbers: its score, its bounds and the room on each card that has some."""

    score: float
    bounds: Bounds
    rooms: tuple[Room, ...]


def summarise(
    cards: Iterable[DeviceUsage], cordoned: frozenset[Uuid], kind_of: Callable[[Device], int]
) -> NodeSummary:
    """Sum a node up. `kind_of` numbers devices that differ in nothing but identity."""
    cards = tuple(cards)
    rooms = []
    has_divided = False
    for card in cards:
        device = card.device
        rules = rules_of(device.vendor)
        has_divided = has_divided or rules.is_divided(device)
        is_open = device.healthy and not card.contradiction and device.uuid not in cordoned
        if not is_open or card.slots_used >= device.slots:
            continue
        cores, is_idle = rules.free_cores(card), card.slots_used == 0
        rooms.append(Room(card.memory_free_mib, cores, is_idle, kind_of(device)))
    kinds = 0
    for room in rooms:
        kinds |= 1 << room.kind
    bounds = Bounds(
        memory_mib=tuple(sorted((room.memory_mib for room in rooms), reverse=True)),
        cores=tuple(sorted((room.cores for room in rooms), reverse=True)),
        idle=sum(room.is_idle for room in rooms),
        kinds=kinds,
        has_divided=has_divided,
    )
    return NodeSummary(score=node_score(cards), bounds=bounds, rooms=tuple(rooms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one ask needs at least.

    Attributes:
        memory_mib: on the kind of card where it is least.
        memory_by_kind: on each kind of card that is not excluded.
        kinds: bit set of those kinds.
        idle_kinds: bit set of the kinds of which only unused cards will do.
    """

    count: int
    memory_mib: int
    memory_by_kind: Mapping[int, int]
    kinds: int
    cores: int
    idle_kinds: int

    @property
    def needs_idle(self) -> bool:
        """Only unused cards will do, of whichever kind."""
        return self.idle_kinds == self.kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a pod needs at least; `impossible` when no card of any kind can serve it."""

    asks: tuple[Need, ...]
    impossible: bool

    def may_fit(self, bounds: Bounds) -> bool:
        """False when nothing within these bounds can serve the pod."""
        for need in self.asks:
            if not need.kinds & bounds.kinds:
                return False
            if bounds.has_divided:
                continue
            count = need.count
            if (
                len(bounds.memory_mib) < count
                or bounds.memory_mib[count - 1] < need.memory_mib
                or bounds.cores[count - 1] < need.cores
                or (need.needs_idle and bounds.idle < count)
            ):
                return False
        return True

    def has_rooms(self, node: NodeSummary) -> bool:
        """False when too few cards of the node have all that one ask needs."""
        if node.bounds.has_divided:
            return True
        return all(_counts(node.rooms, need) for need in self.asks)


def _counts(rooms: tuple[Room, ...], need: Need) -> bool:
    left = need.count
    wanted, cores, idle_kinds = need.memory_by_kind, need.cores, need.idle_kinds
    for memory_mib, free_cores, is_idle, kind in rooms:
        memory = wanted.get(kind)
        if memory is None or memory > memory_mib or cores > free_cores:
            continue
        if not is_idle and idle_kinds >> kind & 1:
            continue
        left -= 1
        if not left:
            return True
    return False


def needs(ready: Plan, kinds: Mapping[int, Device]) -> Needs:
    """Work out what a pod needs; `kinds` has one device for each kind that the fleet has."""
    asks = tuple(
        _need(ready, ask, kinds) for container in ready.request.containers for ask in container.asks
    )
    return Needs(asks=asks, impossible=any(not need.kinds for need in asks))


def _need(ready: Plan, ask: Ask, kinds: Mapping[int, Device]) -> Need:
    # Init containers are compared with the quota individually, the others at least alone.
    quota = None if ready.quota is None else ready.quota.at(is_init=True)
    ctx = ready.context(ask, frozenset(), quota)
    rules = rules_of(ask.vendor)
    least = [
        (kind, rules.least(ask, device))
        for kind, device in kinds.items()
        if _may_serve(device, ctx)
    ]
    bits = idle_bits = 0
    is_mutex = has_word(ready.policy, MUTEX)
    for kind, _ in least:
        bits |= 1 << kind
        if is_mutex or needs_idle_card(kinds[kind], ctx):
            idle_bits |= 1 << kind
    return Need(
        count=min((item.count for _, item in least), default=ask.count),
        memory_mib=min((item.memory_mib for _, item in least), default=0),
        memory_by_kind={kind: item.memory_mib for kind, item in least},
        kinds=bits,
        cores=min((item.cores for _, item in least), default=1),
        idle_kinds=idle_bits,
    )


def _may_serve(device: Device, ctx: FitContext) -> bool:
    return first_failing(DeviceUsage(device=device), ctx, KIND_FILTERS) is None
