"""Which cards of a node serve one ask: card after card, or the best linked of those that fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from hami_node.engine.card_rules import Placement, filters_after_numa, rules_of
from hami_node.engine.filters import (
    BEFORE_NUMA,
    FitContext,
    Reason,
    Rejection,
    first_failing,
    taken_of,
)
from hami_node.engine.link_steps import LinkSteps
from hami_node.engine.ranking import TOPOLOGY, has_word
from hami_node.engine.usage import DeviceUsage, Taken
from hami_node.model import NO_SCORES, PairScores, Uuid

MOST_PARTS: Final = 64
"""More parts than any card is divided into; what a node registers beyond that is ignored."""


def fit(
    cards: Sequence[DeviceUsage],
    ctx: FitContext,
    *,
    policy: str = "",
    pair_scores: PairScores = NO_SCORES,
    steps: LinkSteps | None = None,
) -> Placement | Rejection:
    """Take cards in the given order until the ask is served, or as their vendor chooses them.

    Args:
        cards: the node's cards of the ask's vendor, in visit order.
        ctx: the ask and everything that filters look at.
        policy: the card policy in force; `topology-aware` in it chooses among all cards that fit.
        pair_scores: links between the node's cards.
        steps: what is left for choosing by them.

    Source: document 000, sections 3 to 6; HAMi 2.10 nvidia/device.go:715-876.
    """
    rules = rules_of(ctx.ask.vendor)
    answer = rules.choose(cards, ctx)
    if answer is not None:
        return answer
    walk = _Walk(ctx, is_topology=rules.chooses_by_links and has_word(policy, TOPOLOGY))
    is_bound = ctx.wishes.is_numa_bound
    for card in _by_numa(cards) if is_bound else cards:
        if walk.visit(card, is_bound=is_bound):
            return Placement(taken=tuple(walk.held))
    if walk.is_topology:
        chosen = rules.best_linked(
            walk.groups, ctx.ask.count, pair_scores, is_bound=is_bound, steps=steps
        )
        if chosen is not None:
            return chosen
    if walk.held:
        walk.counts[Reason.TOO_FEW_CARDS_FIT] += walk.weight()
    return Rejection.of(walk.counts, len(cards))


class _Walk:
    """The cards held so far and the reasons met, while one ask is served."""

    def __init__(self, ctx: FitContext, *, is_topology: bool) -> None:
        self.is_topology = is_topology
        self.counts: Counter[StrEnum] = Counter()
        self.held: list[Taken] = []
        self.groups: list[list[Taken]] = [self.held]
        self._ctx = self._start = ctx
        self._numa: int | Uuid | None = None
        self._rules = rules_of(ctx.ask.vendor)
        self._filters = filters_after_numa(ctx.ask.vendor, ctx.compat)

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
        """Take the card; a divided card as often as it has room."""
        for _ in range(MOST_PARTS):
            reason = first_failing(card, self._ctx, self._filters)
            if reason is not None:
                self.counts[reason] += 1
                return False
            taken = taken_of(card, self._ctx)
            if taken is None:
                return False
            self._hold(taken)
            if not self.is_topology and len(self.held) == self._ctx.ask.count:
                return True
            rest = self._rules.with_part_taken(card, taken)
            if rest is None:
                return False
            card = rest
        return False

    def _hold(self, taken: Taken) -> None:
        self.held.append(taken)
        if self._ctx.quota is not None:
            self._ctx = replace(self._ctx, quota=self._ctx.quota.with_taken(taken))


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
