"""Which cards of a node serve one container's ask: filters, NUMA group, linked set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hami_node.engine import mig, topology
from hami_node.engine.filters import (
    BEFORE_NUMA,
    Filter,
    FitContext,
    Reason,
    Rejection,
    after_numa,
    first_failing,
)
from hami_node.engine.quota import Take
from hami_node.engine.ranking import TOPOLOGY, has_word
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Device, Mode, Uuid

PairScores = Mapping[Uuid, Mapping[Uuid, int]]
"""Score of the link between two cards; a missing pair counts 0."""

MOST_INSTANCES: Final = 64
"""More MIG instances than any card holds; what a node registers beyond that is not believed."""

NO_SCORES: Final[PairScores] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One card of a placement with what was asked of it (for Neuron `cores` is the mask)."""

    device: Device
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The cards that serve an ask, in the order in which they were taken.

    A card in MIG mode may stand there several times.
    """

    taken: tuple[Taken, ...]


def fit(
    cards: Sequence[DeviceUsage],
    ctx: FitContext,
    *,
    policy: str = "",
    pair_scores: PairScores = NO_SCORES,
) -> Placement | Rejection:
    """Take cards in the given order until the ask is served.

    Args:
        cards: the node's cards of the ask's vendor, first visited first.
        ctx: the ask and everything that filters look at.
        policy: the card policy in force; `topology-aware` in it chooses among all cards that fit.
        pair_scores: links between the node's cards.

    Source: seed 000 sections 3 to 6; HAMi 2.10 nvidia/device.go:715-876.
    """
    walk = _Walk(ctx, is_topology=has_word(policy, TOPOLOGY))
    is_bound = ctx.wishes.is_numa_bound
    for card in _by_numa(cards) if is_bound else cards:
        if walk.visit(card, is_bound=is_bound):
            return Placement(taken=tuple(walk.held))
    if walk.is_topology:
        chosen = _linked_set(walk.groups, ctx.ask.count, pair_scores, is_bound=is_bound)
        if chosen is not None:
            return Placement(taken=chosen)
    if walk.held:
        walk.counts[Reason.TOO_FEW_CARDS_FIT] += walk.weight()
    return Rejection.of(walk.counts, len(cards))


class _Walk:
    """The cards held so far and the reasons met, while one ask is served."""

    def __init__(self, ctx: FitContext, *, is_topology: bool) -> None:
        self.is_topology = is_topology
        self.counts: Counter[Reason] = Counter()
        self.held: list[Taken] = []
        self.groups: list[list[Taken]] = [self.held]
        self._ctx = self._start = ctx
        self._numa: int | Uuid | None = None
        self._rules: tuple[Filter, ...] = after_numa(ctx.compat)

    def weight(self) -> int:
        """How many cards a reason about the held cards counts."""
        return len(self.held) if self._ctx.compat.reasons_count_cards else 1

    def visit(self, card: DeviceUsage, *, is_bound: bool) -> bool:
        """Look at one card; True once the ask is served."""
        reason = first_failing(card, self._ctx, BEFORE_NUMA)
        if reason is not None:
            self.counts[reason] += 1
            return False
        if is_bound and _numa_of(card) != self._numa:
            self._leave_group(card)
        return self._take(card)

    def _leave_group(self, card: DeviceUsage) -> None:
        if self.held and not self.is_topology:
            self.counts[Reason.OTHER_NUMA] += self.weight()
        self.held = []
        self.groups.append(self.held)
        self._ctx = self._start
        self._numa = _numa_of(card)

    def _take(self, card: DeviceUsage) -> bool:
        """Take the card, one in MIG mode as often as it has room."""
        ask = self._ctx.ask
        memory_mib = ask.memory_mib_on(card.device.memory_mib)
        for _ in range(MOST_INSTANCES):
            reason = first_failing(card, self._ctx, self._rules)
            if reason is not None:
                self.counts[reason] += 1
                return False
            self._hold(Taken(device=card.device, memory_mib=memory_mib, cores=self._ctx.cores))
            if not self.is_topology and len(self.held) == ask.count:
                return True
            choice = mig.choose(card, memory_mib) if card.device.mode == Mode.MIG else None
            if choice is None:
                return False
            card = mig.occupy(card, choice)
        return False

    def _hold(self, taken: Taken) -> None:
        self.held.append(taken)
        if self._ctx.quota is not None:
            take = Take(uuid=taken.device.uuid, memory_mib=taken.memory_mib, cores=taken.cores)
            self._ctx = self._ctx.with_quota(self._ctx.quota.with_take(take))


def _linked_set(
    groups: Iterable[Sequence[Taken]], count: int, scores: PairScores, *, is_bound: bool
) -> tuple[Taken, ...] | None:
    """The best linked cards, all of one NUMA group where bound; the worst linked for one card."""
    if count == 1 or not is_bound:
        groups = [[taken for group in groups for taken in group]]
    best: tuple[Taken, ...] | None = None
    best_sum = 0
    for group in groups:
        if len(group) < count:
            continue
        chosen = _of_group(group, count, scores)
        links = _link_sum([taken.device.uuid for taken in chosen], scores)
        if best is None or links > best_sum:
            best, best_sum = chosen, links
    return best


def _of_group(group: Sequence[Taken], count: int, scores: PairScores) -> tuple[Taken, ...]:
    if len(group) == count:
        return tuple(group)
    uuids = [taken.device.uuid for taken in group]
    if count == 1:
        return (group[topology.worst_single(uuids, scores)],)
    return tuple(group[place] for place in topology.best_set(uuids, count, scores))


def _link_sum(uuids: Sequence[Uuid], scores: PairScores) -> int:
    return sum(
        topology.link_score(one, other, scores)
        for place, one in enumerate(uuids)
        for other in uuids[place + 1 :]
    )


def _numa_of(card: DeviceUsage) -> int | Uuid:
    """The card's NUMA group; a card of unknown NUMA node is a group of its own."""
    numa = card.device.numa
    return card.device.uuid if numa is None else numa


def _by_numa(cards: Sequence[DeviceUsage]) -> list[DeviceUsage]:
    """The cards with each NUMA group together, groups and cards in order of appearance."""
    groups: dict[int | Uuid, list[DeviceUsage]] = {}
    for card in cards:
        groups.setdefault(_numa_of(card), []).append(card)
    return [card for group in groups.values() for card in group]
