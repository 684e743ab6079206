"""What a request needs at least, compared with nodes in a few numbers.

Nodes where a pod can't fit are passed over. Everything here is a necessary condition:
`place.place_on` decides, this only saves work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.engine.filters import (
    FitContext,
    first_failing,
    has_type,
    is_within_quota,
    needs_idle_card,
    takes_of,
)
from hami_node.engine.fleet.rehearsal import Rehearsal, Step, can_rehearse
from hami_node.engine.fleet.seating import Seating
from hami_node.engine.fleet.summaries import Bounds, NodeSummary, Room
from hami_node.engine.fleet.together import Share, Together, together_of
from hami_node.engine.place import Plan
from hami_node.engine.ranking import MUTEX, TOPOLOGY, has_word
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask, ContainerKind, Device

FEW_STATES: Final = 256
"""Where cards are in more states than that, dealing them out takes longer than a rehearsal."""

KIND_FILTERS: Final = (has_type, is_within_quota)
"""Filters that reject all unnamed cards of a kind if they reject an idle one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one ask needs at least.

    Attributes:
        memory_mib: on the kind of card where it is least.
        memory_by_kind: on each kind of card that is not excluded.
        kinds: bit set of those kinds.
        idle_kinds: bit set of the kinds of which only unused cards will do.
        is_bound: all of its cards are of one NUMA group.
    """

    count: int
    memory_mib: int
    memory_by_kind: Mapping[int, int]
    kinds: int
    cores: int
    idle_kinds: int
    is_bound: bool = False

    @property
    def needs_idle(self) -> bool:
        """Only unused cards will do, of whichever kind."""
        return self.idle_kinds == self.kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """What all containers that run at the same time take of a node at least."""

    memory_mib: int = 0
    slots: int = 0
    idle: int = 0


NOTHING: Final = Sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a pod needs at least; `impossible` when no cards can serve it.

    Attributes:
        asks: each ask by itself.
        total: all asks that are served at the same time, in one sum.
        seatings: the same, asked whether there is any way to share the cards.
        rehearsal: the same, asked whether the way that placing goes leads to a refusal. It sees all
            that `seatings` and `together` see, which are quicker where cards are alike.
        together: the same, to be added up card by card where there are too many ways.
    """

    asks: tuple[Need, ...]
    impossible: bool
    total: Sum = NOTHING
    together: tuple[Together, ...] = ()
    seatings: tuple[Seating, ...] = field(default=(), compare=False)
    rehearsal: Rehearsal | None = field(default=None, compare=False)

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
            if need.is_bound and count > (
                bounds.idle_in_numa if need.needs_idle else bounds.in_numa
            ):
                return False
        total = self.total
        return bounds.has_divided or (
            bounds.total_mib >= total.memory_mib
            and bounds.total_slots >= total.slots
            and bounds.idle >= total.idle
        )

    def has_rooms(self, node: NodeSummary) -> bool:
        """False when the node's cards can't serve one of the asks, or all of them together."""
        if node.bounds.has_divided:
            return True
        rooms = node.rooms
        for seating in self.seatings:
            if self.rehearsal is not None and seating.learned > FEW_STATES:
                continue
            if not seating.may_fit(rooms):
                return False
        for need in self.asks:
            if not (_is_in_one_group(rooms, need) if need.is_bound else _counts(rooms, need)):
                return False
        if not all(group.may_fit(rooms) for group in self.together):
            return False
        return self.rehearsal is None or self.rehearsal.may_fit(rooms)


def _counts(rooms: tuple[Room, ...], need: Need) -> bool:
    left = need.count
    wanted, cores, idle_kinds = need.memory_by_kind, need.cores, need.idle_kinds
    for memory_mib, free_cores, is_idle, kind, _, _ in rooms:
        memory = wanted.get(kind)
        if memory is None or memory > memory_mib or cores > free_cores:
            continue
        if not is_idle and idle_kinds >> kind & 1:
            continue
        left -= 1
        if not left:
            return True
    return False


def _is_in_one_group(rooms: tuple[Room, ...], need: Need) -> bool:
    found: Counter[int] = Counter()
    for room in rooms:
        memory = need.memory_by_kind.get(room.kind)
        if memory is None or memory > room.memory_mib or need.cores > room.cores:
            continue
        if room.is_idle or not need.idle_kinds >> room.kind & 1:
            found[room.numa] += 1
    return max(found.values(), default=0) >= need.count


def needs(ready: Plan, kinds: Mapping[int, Device]) -> Needs:
    """Work out what a pod needs; `kinds` has one device for each kind that the fleet has."""
    found = [
        (container.kind, ask, _need(ready, ask, kinds))
        for container in ready.request.containers
        for ask in container.asks
    ]
    asks = tuple(need for _, _, need in found)
    steady = [(ask, need) for kind, ask, need in found if kind is not ContainerKind.INIT]
    shares: dict[str, list[Share]] = {}
    bound: set[str] = set()
    for ask, need in steady:
        if need.is_bound:
            bound.add(ask.vendor.word)
        if not rules_of(ask.vendor).cores_are_mask:
            shares.setdefault(ask.vendor.word, []).append(_share(ready, ask, need))
    seatings = {
        vendor: Seating(group, is_bound=vendor in bound) for vendor, group in shares.items()
    }
    steps = [
        Step(ask, ready.context(ask, frozenset(), None).cores, need.memory_by_kind, need.idle_kinds)
        for ask, need in steady
    ]
    is_rehearsed = can_rehearse(ready, steps, kinds)
    return Needs(
        rehearsal=Rehearsal(ready, steps, kinds) if is_rehearsed else None,
        asks=tuple(need for i, need in enumerate(asks) if need not in asks[:i]),
        impossible=any(not need.kinds for need in asks) or _is_over_quota(ready, steady, kinds),
        total=Sum(
            memory_mib=sum(need.count * need.memory_mib for _, need in steady),
            slots=sum(share.count for group in shares.values() for share in group),
            idle=sum(share.count for group in shares.values() for share in group if share.is_alone),
        ),
        seatings=tuple(seating for seating in seatings.values() if seating.is_asked),
        together=tuple(
            check
            for vendor, group in shares.items()
            if not (seatings[vendor].is_asked or is_rehearsed)
            for check in together_of(group)
        ),
    )


def _share(ready: Plan, ask: Ask, need: Need) -> Share:
    return Share(
        count=need.count,
        memory_by_kind=need.memory_by_kind,
        cores=ready.context(ask, frozenset(), None).cores,
        idle_kinds=need.idle_kinds,
        is_alone=need.needs_idle,
    )


def _is_over_quota(
    ready: Plan, steady: Sequence[tuple[Ask, Need]], kinds: Mapping[int, Device]
) -> bool:
    """True when the least that apps and sidecars take together exceeds the quota."""
    if ready.quota is None:
        return False
    asks = [
        (ask, [DeviceUsage(device=kinds[kind]) for kind in need.memory_by_kind])
        for ask, need in steady
        if rules_of(ask.vendor).has_quota
    ]
    return bool(asks) and ready.quota.exceeds(*counted(asks, min))


def counted(
    asks: Iterable[tuple[Ask, Iterable[DeviceUsage]]], bound: Callable[[Iterable[int]], int]
) -> tuple[int, int]:
    """The least or the most memory and cores that a quota may count for asks on such cards."""
    memory_mib = cores = 0
    for ask, cards in asks:
        takes = [take for card in cards for take in takes_of(card, ask)]
        if takes:
            memory_mib += ask.count * bound(take.memory_mib for take in takes)
            cores += ask.count * bound(take.cores for take in takes)
    return memory_mib, cores


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
        is_bound=ready.request.wishes.of(ask.vendor).is_numa_bound,
    )


def _may_serve(device: Device, ctx: FitContext) -> bool:
    return first_failing(DeviceUsage(device=device), ctx, KIND_FILTERS) is None


def settled(ready: Plan, kinds: Mapping[int, Device]) -> Plan:
    """The plan without a quota that can't change any answer, so that equal requests are equal.

    It is out of reach even if every container gets what counts most.
    """
    if ready.quota is None:
        return ready
    asks = []
    for ask in (ask for container in ready.request.containers for ask in container.asks):
        rules = rules_of(ask.vendor)
        if not rules.has_quota:
            continue
        if rules.chooses_by_links and has_word(ready.policy, TOPOLOGY):
            return ready  # all cards that fit are compared with the quota at once
        alike = [DeviceUsage(device=it) for it in kinds.values() if it.vendor is ask.vendor]
        asks.append((ask, alike))
    return ready if ready.quota.exceeds(*counted(asks, max)) else replace(ready, quota=None)
