"""A node in a few numbers, and what a request needs of them: tells quickly where a pod can't fit.

Everything here is a necessary condition: `place.place_on` decides, this only spares looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, NamedTuple

from hami_node.engine.filters import WHOLE_CARD, first_failing, has_type, is_within_quota
from hami_node.engine.place import Plan
from hami_node.engine.ranking import MUTEX, has_word, node_score
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask, Device, Mode, Uuid, Vendor

NOBODY: Final = Uuid("")
"""Stands for any card that no list names."""


class Room(NamedTuple):
    """What a card that may take one more container still has."""

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
        idle: number of cards that nobody uses.
        neuron: number of Neuron devices with a free core.
        kinds: bit set of the kinds of its cards.
        has_mig: some card is in MIG mode; it may serve several cards of an ask.
    """

    memory_mib: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    idle: int = 0
    neuron: int = 0
    kinds: int = 0
    has_mig: bool = False

    def joined(self, other: Bounds) -> Bounds:
        """The bounds of both nodes as one group."""
        return Bounds(
            memory_mib=_longest(self.memory_mib, other.memory_mib),
            cores=_longest(self.cores, other.cores),
            idle=max(self.idle, other.idle),
            neuron=max(self.neuron, other.neuron),
            kinds=self.kinds | other.kinds,
            has_mig=self.has_mig or other.has_mig,
        )


def _longest(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    if len(one) == len(other):
        return tuple(map(max, one, other))
    return tuple(max(pair) for pair in zip_longest(one, other, fillvalue=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """One node in numbers: its score, its bounds and the room on each NVIDIA card."""

    score: float
    bounds: Bounds
    rooms: tuple[Room, ...]


def outline(
    cards: Iterable[DeviceUsage], cordoned: frozenset[Uuid], kind_of: Callable[[Device], int]
) -> Outline:
    """Sum a node up. `kind_of` numbers devices that differ in nothing but identity."""
    cards = tuple(cards)
    rooms = []
    neuron = 0
    has_mig = False
    for card in cards:
        device = card.device
        is_open = device.healthy and not card.contradiction and device.uuid not in cordoned
        if device.vendor is Vendor.AWS_NEURON:
            neuron += is_open and card.cores_free != 0
            continue
        has_mig = has_mig or device.mode == Mode.MIG
        if not is_open or card.slots_used >= device.slots:
            continue
        # A card without cores at all takes any container that asks for none.
        cores = device.cores - card.cores_used if device.cores else 1
        rooms.append(Room(card.memory_free_mib, cores, card.slots_used == 0, kind_of(device)))
    kinds = 0
    for room in rooms:
        kinds |= 1 << room.kind
    bounds = Bounds(
        memory_mib=tuple(sorted((room.memory_mib for room in rooms), reverse=True)),
        cores=tuple(sorted((room.cores for room in rooms), reverse=True)),
        idle=sum(room.is_idle for room in rooms),
        neuron=neuron,
        kinds=kinds,
        has_mig=has_mig,
    )
    return Outline(score=node_score(cards), bounds=bounds, rooms=tuple(rooms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one ask for NVIDIA cards needs at least.

    Attributes:
        memory_mib: on the kind of card where it is least.
        memory_by_kind: on each kind of card that is not excluded.
        kinds: bit set of those kinds.
        needs_idle: only unused cards will do.
    """

    count: int
    memory_mib: int
    memory_by_kind: Mapping[int, int]
    kinds: int
    cores: int
    needs_idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a pod needs at least; `impossible` when no card of any kind can serve it."""

    asks: tuple[Need, ...]
    wants_neuron: bool
    impossible: bool

    def may_fit(self, bounds: Bounds) -> bool:
        """False when nothing within these bounds can serve the pod."""
        if self.wants_neuron and not bounds.neuron:
            return False
        for need in self.asks:
            if not need.kinds & bounds.kinds:
                return False
            if bounds.has_mig:
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

    def has_rooms(self, node: Outline) -> bool:
        """False when too few cards of the node have all that one ask needs."""
        if node.bounds.has_mig:
            return True
        return all(_counts(node.rooms, need) for need in self.asks)


def _counts(rooms: tuple[Room, ...], need: Need) -> bool:
    left = need.count
    wanted, cores, needs_idle = need.memory_by_kind, need.cores, need.needs_idle
    for memory_mib, free_cores, is_idle, kind in rooms:
        memory = wanted.get(kind)
        if memory is None or memory > memory_mib or cores > free_cores:
            continue
        if needs_idle and not is_idle:
            continue
        left -= 1
        if not left:
            return True
    return False


def needs(ready: Plan, kinds: Mapping[int, Device]) -> Needs:
    """Work out what a pod needs; `kinds` has one device for each kind that the fleet has."""
    asks = [ask for container in ready.request.containers for ask in container.asks]
    nvidia = tuple(_need(ready, ask, kinds) for ask in asks if ask.vendor is Vendor.NVIDIA)
    return Needs(
        asks=nvidia,
        wants_neuron=any(ask.vendor is Vendor.AWS_NEURON for ask in asks),
        impossible=any(not need.kinds for need in nvidia),
    )


def _need(ready: Plan, ask: Ask, kinds: Mapping[int, Device]) -> Need:
    # Init containers are compared with the quota one by one, the others at least alone.
    quota = None if ready.quota is None else ready.quota.at(is_init=True)
    ctx = ready.context(ask, frozenset(), quota)
    wanted = {}
    bits = 0
    for kind, device in kinds.items():
        card = DeviceUsage(device=replace(device, uuid=NOBODY))
        if first_failing(card, ctx, (has_type, is_within_quota)) is None:
            wanted[kind] = ask.memory_mib_on(device.memory_mib)
            bits |= 1 << kind
    return Need(
        count=ask.count,
        memory_mib=min(wanted.values(), default=0),
        memory_by_kind=wanted,
        kinds=bits,
        cores=max(ctx.cores, 1),
        needs_idle=ctx.cores == WHOLE_CARD or has_word(ready.policy, MUTEX),
    )
