"""A whole pod on one node: container after container, each against what the earlier ones left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from hami_node.engine.card_rules import LinkSteps, Placement, filters_after_numa, rules_of
from hami_node.engine.compat import V2_8, Compat
from hami_node.engine.filters import (
    BEFORE_NUMA,
    FitContext,
    Reason,
    Rejection,
    context,
    first_failing,
    taken_of,
)
from hami_node.engine.quota import Quota, QuotaTally
from hami_node.engine.ranking import (
    BINPACK,
    EVEN,
    SPREAD,
    TOPOLOGY,
    Scored,
    Weights,
    device_score,
    has_word,
    node_score,
    parse_weights,
    visit_order,
)
from hami_node.engine.usage import DeviceUsage, PodGrants, Taken
from hami_node.model import (
    NO_SCORES,
    Ask,
    CardWishes,
    ContainerGrants,
    ContainerKind,
    Grant,
    PairScores,
    PodWishes,
    Uuid,
)

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


NO_WISHES: Final = PodWishes()
"""A pod without annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAsks:
    """What one container asks for, at most one ask per vendor; () when it asks for nothing."""

    kind: ContainerKind
    asks: tuple[Ask, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """What one pod asks for; containers as in its spec, init containers first."""

    namespace: str
    containers: tuple[ContainerAsks, ...]
    wishes: PodWishes = NO_WISHES

    @property
    def is_empty(self) -> bool:
        """True when no container asks for a card: any node will do."""
        return not any(container.asks for container in self.containers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that decisions follow; a pod's wishes win over the policies."""

    compat: Compat = V2_8
    node_policy: str = BINPACK
    gpu_policy: str = SPREAD


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """A node at one moment: its cards in order of registration, its cordons and the links."""

    cards: Mapping[Uuid, DeviceUsage]
    cordoned: frozenset[Uuid] = frozenset()
    pair_scores: PairScores = field(default_factory=lambda: NO_SCORES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A request made ready for placement: worked out once, used for every node."""

    request: PodRequest
    compat: Compat
    policy: str
    weights: Weights = EVEN
    quota: QuotaTally | None = None

    def context(self, ask: Ask, cordoned: frozenset[Uuid], quota: QuotaTally | None) -> FitContext:
        """What the filters look at for one ask; only some vendors' cards have a quota."""
        return context(
            ask,
            self.request.wishes.of(ask.vendor),
            self.compat,
            policy=self.policy,
            cordoned=cordoned,
            quota=quota if rules_of(ask.vendor).has_quota else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The pod itself is wrong; no node is looked at. `why` is for people."""

    why: str


def plan(request: PodRequest, rules: Rules, quota: Quota | None = None) -> Plan | Refused:
    """Make a request ready; refuse scoring weights that can't be read."""
    wishes = request.wishes
    weights: Weights | None = EVEN
    if wishes.scoring_weights is not None:
        weights = parse_weights(wishes.scoring_weights)
    if weights is None:
        why = "scoring weights have to be like slot=1,core=1,memory=1"
        return Refused(why=f"{why}: {wishes.scoring_weights!r}")
    return Plan(
        request=request,
        compat=rules.compat,
        policy=rules.gpu_policy if wishes.gpu_policy is None else wishes.gpu_policy,
        weights=weights,
        quota=None if quota is None else QuotaTally.start(quota, rules.compat),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """What the pod gets on a node; `is_exact` is False where better linked cards may be free."""

    grants: PodGrants
    is_exact: bool = True


def place_on(node: NodeOffer, ready: Plan) -> PodGrants | Rejection:
    """Place every container of the pod on this node, or return why the first of them is rejected.

    See `try_on`.
    """
    answer = try_on(node, ready)
    return answer if isinstance(answer, Rejection) else answer.grants


def try_on(node: NodeOffer, ready: Plan) -> Fitting | Rejection:
    """As `place_on`, with what there is to say of the choice.

    Apps and sidecars add up. An init container is placed alone, beside the sidecars that started
    before it. Source: HAMi 2.10 scheduler/score.go:226-346.
    """
    placement = _PodPlacement(node, ready)
    for container in ready.request.containers:
        rejection = placement.serve(container)
        if rejection is not None:
            return rejection
    return Fitting(grants=placement.grants(), is_exact=placement.is_exact)


class _PodPlacement:
    """The placement of a pod while its containers are served one after another."""

    def __init__(self, node: NodeOffer, ready: Plan) -> None:
        self._node = node
        self._plan = ready
        self._steady = dict(node.cards)
        self._quota = ready.quota
        self._containers: list[ContainerGrants] = []
        self._link_steps = LinkSteps()
        self.is_exact = True

    def grants(self) -> PodGrants:
        return PodGrants(
            containers=tuple(self._containers),
            kinds=tuple(container.kind for container in self._plan.request.containers),
        )

    def serve(self, container: ContainerAsks) -> Rejection | None:
        is_init = container.kind is ContainerKind.INIT
        cards = dict(self._steady) if is_init else self._steady
        if self._quota is not None:
            self._quota = self._quota.at(is_init=is_init)
        held: list[Grant] = []
        for ask in sorted(container.asks, key=lambda ask: ask.vendor.word):
            answer = self._choose(cards, ask, container.asks)
            if isinstance(answer, Rejection):
                return answer
            self.is_exact = self.is_exact and answer.is_exact
            for taken in answer.taken:
                held.append(self._charge(cards, taken))
                if is_init:
                    self._end_init(cards[taken.device.uuid])
        self._containers.append(tuple(held))
        return None

    def _choose(
        self, cards: Mapping[Uuid, DeviceUsage], ask: Ask, asks: tuple[Ask, ...]
    ) -> Placement | Rejection:
        ready = self._plan
        rules, wishes = rules_of(ask.vendor), ready.request.wishes.of(ask.vendor)
        own = [card for card in cards.values() if card.device.vendor is ask.vendor]
        wanted = rules.cards_wanted(ask, (card.device for card in own))
        if wanted > len(own) and not _has_divided(own, wishes):
            never = rules.why_never(ask, [card.device for card in own])
            return Rejection(whole=Reason.TOO_FEW_CARDS, never=never)
        scored = (
            Scored(card, device_score(card, asks, ready.compat, ready.weights), position)
            for position, card in enumerate(own)
        )
        order = visit_order(scored, ready.policy, ready.compat, is_numa_bound=wishes.is_numa_bound)
        return fit(
            [item.card for item in order],
            ready.context(ask, self._node.cordoned, self._quota),
            policy=ready.policy,
            pair_scores=self._node.pair_scores,
            steps=self._link_steps,
        )

    def _charge(self, cards: dict[Uuid, DeviceUsage], taken: Taken) -> Grant:
        uuid, rules = taken.device.uuid, rules_of(taken.device.vendor)
        grant, cards[uuid] = rules.grant(cards[uuid], taken)
        if self._quota is not None and rules.has_quota:
            self._quota = self._quota.with_taken(taken)
        return grant

    def _end_init(self, card: DeviceUsage) -> None:
        """Most of what an init container holds is free again for the later containers."""
        uuid, rules = card.device.uuid, rules_of(card.device.vendor)
        self._steady[uuid] = rules.after_init(self._steady[uuid], card)


def _has_divided(cards: Sequence[DeviceUsage], wishes: CardWishes) -> bool:
    """True when a card may serve several cards of an ask and the pod accepts its mode."""
    return any(
        rules_of(card.device.vendor).is_divided(card.device)
        and (wishes.modes is None or card.device.mode in wishes.modes)
        for card in cards
    )


UNREGISTERED: Final = Rejection(whole=Reason.NOT_REGISTERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The node with the best score that fits, "" for none; and why others don't fit, by name."""

    node: str
    rejections: Mapping[str, Rejection]


def what_if(
    request: PodRequest, offers: Mapping[str, NodeOffer], rules: Rules, quota: Quota | None
) -> WhatIf | Refused:
    """Try every node; one without cards is not registered."""
    ready = plan(request, rules, quota)
    if isinstance(ready, Refused):
        return ready
    policy = request.wishes.node_policy
    sign = 1.0 if (rules.node_policy if policy is None else policy) == SPREAD else -1.0
    best: tuple[float, str] | None = None
    rejections: dict[str, Rejection] = {}
    for name, offer in offers.items():
        answer = place_on(offer, ready) if offer.cards else UNREGISTERED
        if isinstance(answer, Rejection):
            rejections[name] = answer
            continue
        key = (sign * node_score(offer.cards.values()), name)
        best = key if best is None else min(best, key)
    return WhatIf(node="" if best is None else best[1], rejections=rejections)
