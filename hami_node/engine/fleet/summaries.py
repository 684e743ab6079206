"""A node in a few numbers, and the bounds of many nodes: what `needs` compares a request with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, NamedTuple

from hami_node.engine.card_rules import rules_of
from hami_node.engine.ranking import node_score
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Device, Uuid

NOBODY: Final = Uuid("")
"""The UUID of any card that no list names."""


Key = tuple[float, str]
"""By which a node is sorted: its score (negative where the fullest comes first) and its name."""


class Room(NamedTuple):
    """What is free on a card that may take another container.

    `numa` tells the NUMA groups of a node apart; a card of unknown NUMA node is a group of its own.
    """

    memory_mib: int
    cores: int
    is_idle: bool
    kind: int
    slots: int = 1
    numa: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most that a node, or any node of a group, offers.

    Attributes:
        memory_mib: free memory of its cards, largest first.
        cores: free cores of its cards, largest first.
        idle: number of unused cards.
        kinds: bit set of the kinds of its cards.
        has_divided: some card is divided into parts; it may serve several cards of an ask.
        total_mib: free memory of all its cards.
        total_slots: free slots of all its cards.
        in_numa: number of cards in its largest NUMA group.
        idle_in_numa: number of unused cards in the NUMA group that has most.
    """

    memory_mib: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    idle: int = 0
    kinds: int = 0
    has_divided: bool = False
    total_mib: int = 0
    total_slots: int = 0
    in_numa: int = 0
    idle_in_numa: int = 0

    @classmethod
    def joined(cls, group: Sequence[Bounds]) -> Bounds:
        """The bounds of all these nodes as one group."""
        kinds = 0
        for bounds in group:
            kinds |= bounds.kinds
        return cls(
            memory_mib=_largest([bounds.memory_mib for bounds in group]),
            cores=_largest([bounds.cores for bounds in group]),
            idle=max(bounds.idle for bounds in group),
            kinds=kinds,
            has_divided=any(bounds.has_divided for bounds in group),
            total_mib=max(bounds.total_mib for bounds in group),
            total_slots=max(bounds.total_slots for bounds in group),
            in_numa=max(bounds.in_numa for bounds in group),
            idle_in_numa=max(bounds.idle_in_numa for bounds in group),
        )


def _largest(columns: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(max, zip_longest(*columns, fillvalue=0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """One node in numbers: its score, its bounds and the room on each card that has some.

    `group` is the number of all nodes that are equal to this one, see `Catalogue`.
    """

    score: float
    bounds: Bounds
    rooms: tuple[Room, ...]
    group: int = 0


def summarise(
    cards: Iterable[DeviceUsage],
    cordoned: frozenset[Uuid],
    kind_of: Callable[[Device], int],
    group: int = 0,
) -> NodeSummary:
    """Sum a node up. `kind_of` numbers devices that differ in nothing but identity."""
    cards = tuple(cards)
    rooms = []
    has_divided = False
    for position, card in enumerate(cards):
        device = card.device
        rules = rules_of(device.vendor)
        has_divided = has_divided or rules.is_divided(device)
        is_open = device.healthy and not card.contradiction and device.uuid not in cordoned
        if not is_open or card.slots_used >= device.slots:
            continue
        rooms.append(
            Room(  # by position, which takes half the time: this is done for every card
                rules.free_memory_mib(card),
                rules.free_cores(card),
                card.slots_used == 0,
                kind_of(device),
                device.slots - card.slots_used,
                -1 - position if device.numa is None else device.numa,
            )
        )
    return NodeSummary(
        score=node_score(cards), bounds=_bounds(rooms, has_divided), rooms=tuple(rooms), group=group
    )


def _bounds(rooms: Sequence[Room], has_divided: bool) -> Bounds:
    kinds = 0
    for room in rooms:
        kinds |= 1 << room.kind
    in_numa: dict[int, int] = {}
    idle_in_numa: dict[int, int] = {}
    idle = total_mib = total_slots = 0
    for memory_mib, _, is_idle, _, slots, numa in rooms:
        in_numa[numa] = in_numa.get(numa, 0) + 1
        total_slots += slots
        if memory_mib > 0:
            total_mib += memory_mib
        if is_idle:
            idle += 1
            idle_in_numa[numa] = idle_in_numa.get(numa, 0) + 1
    return Bounds(
        memory_mib=tuple(sorted([room.memory_mib for room in rooms], reverse=True)),
        cores=tuple(sorted([room.cores for room in rooms], reverse=True)),
        idle=idle,
        kinds=kinds,
        has_divided=has_divided,
        total_mib=total_mib,
        total_slots=total_slots,
        in_numa=max(in_numa.values(), default=0),
        idle_in_numa=max(idle_in_numa.values(), default=0),
    )
