"""A whole pod on one node: container after container, each against what the earlier ones left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hami_node.engine.card_rules import Placement, rules_of
from hami_node.engine.compat import V2_8, Compat
from hami_node.engine.filters import FitContext, Reason, Rejection, context
from hami_node.engine.fit import fit
from hami_node.engine.link_steps import LinkSteps
from hami_node.engine.quota import Quota, QuotaTally
from hami_node.engine.ranking import (
    BINPACK,
    EVEN,
    SPREAD,
    Scored,
    Weights,
    device_score,
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
