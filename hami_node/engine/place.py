"""A whole pod on one node: container after container, each against what the earlier ones left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hami_node.engine import mig
from hami_node.engine.compat import V2_8, Compat
from hami_node.engine.filters import FitContext, Reason, Rejection, context
from hami_node.engine.fit import NO_SCORES, PairScores, Placement, Taken, fit
from hami_node.engine.neuron import cores_each, fit_neuron, wanted
from hami_node.engine.quota import Quota, QuotaTally, Take
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
from hami_node.engine.usage import Charge, DeviceUsage, PodGrants, charged
from hami_node.model import (
    Ask,
    ContainerGrants,
    ContainerKind,
    Grant,
    MigReservation,
    Mode,
    PodWishes,
    Uuid,
    Vendor,
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
    """A node at one moment: its cards in order of registration, and what is said about them."""

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
        """What the filters look at for one ask; the quota concerns NVIDIA's cards alone."""
        return context(
            ask,
            self.request.wishes,
            self.compat,
            policy=self.policy,
            cordoned=cordoned,
            quota=quota if ask.vendor is Vendor.NVIDIA else None,
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


def place_on(node: NodeOffer, ready: Plan) -> PodGrants | Rejection:
    """Place every container of the pod on this node, or say why the first that can't is refused.

    Apps and sidecars add up. An init container is placed alone, beside the sidecars that started
    before it. Source: HAMi 2.10 scheduler/score.go:226-346.
    """
    board = _Board(node, ready)
    for index, container in enumerate(ready.request.containers):
        rejection = board.serve(index, container)
        if rejection is not None:
            return rejection
    return board.grants()


class _Board:
    """A pod's placement in the making."""

    def __init__(self, node: NodeOffer, ready: Plan) -> None:
        self._node = node
        self._plan = ready
        self._steady = dict(node.cards)
        self._quota = ready.quota
        self._containers: list[ContainerGrants] = []
        self._reserved: list[MigReservation] = []

    def grants(self) -> PodGrants:
        return PodGrants(
            containers=tuple(self._containers),
            kinds=tuple(container.kind for container in self._plan.request.containers),
            mig=tuple(self._reserved),
        )

    def serve(self, index: int, container: ContainerAsks) -> Rejection | None:
        is_init = container.kind is ContainerKind.INIT
        cards = dict(self._steady) if is_init else self._steady
        if self._quota is not None:
            self._quota = self._quota.at(is_init=is_init)
        held: list[Grant] = []
        for ask in sorted(container.asks, key=lambda ask: ask.vendor):
            answer = self._choose(cards, ask, container.asks)
            if isinstance(answer, Rejection):
                return answer
            for taken in answer.taken:
                held.append(self._charge(cards, taken, index, len(held)))
                if is_init:
                    self._keep_geometry(cards[taken.device.uuid])
        self._containers.append(tuple(held))
        return None

    def _choose(
        self, cards: Mapping[Uuid, DeviceUsage], ask: Ask, asks: tuple[Ask, ...]
    ) -> Placement | Rejection:
        ready = self._plan
        own = [card for card in cards.values() if card.device.vendor is ask.vendor]
        if _cards_wanted(ask, own) > len(own) and not _any_mig(own, ready.request.wishes):
            return Rejection(whole=Reason.TOO_FEW_CARDS)
        scored = (
            Scored(card, device_score(card, asks, ready.compat, ready.weights), place)
            for place, card in enumerate(own)
        )
        order = visit_order(
            scored,
            ready.policy,
            ready.compat,
            is_numa_bound=ready.request.wishes.is_numa_bound,
        )
        visited = [item.card for item in order]
        ctx = ready.context(ask, self._node.cordoned, self._quota)
        if ask.vendor is Vendor.AWS_NEURON:
            return fit_neuron(visited, ctx)
        return fit(visited, ctx, policy=ready.policy, pair_scores=self._node.pair_scores)

    def _charge(
        self, cards: dict[Uuid, DeviceUsage], taken: Taken, container: int, place: int
    ) -> Grant:
        uuid = taken.device.uuid
        grant, after, reservation = _granted(cards[uuid], taken, container, place)
        cards[uuid] = after
        if reservation is not None:
            self._reserved.append(reservation)
        if self._quota is not None and taken.device.vendor is Vendor.NVIDIA:
            take = Take(uuid=uuid, memory_mib=taken.memory_mib, cores=taken.cores)
            self._quota = self._quota.with_take(take)
        return grant

    def _keep_geometry(self, card: DeviceUsage) -> None:
        """Later containers may not choose another geometry than an init container's (2.8)."""
        uuid = card.device.uuid
        if card.mig_slots:
            self._steady[uuid] = replace(
                self._steady[uuid], mig_template=card.mig_template, mig_slots=card.mig_slots
            )


def _granted(
    card: DeviceUsage, taken: Taken, container: int, place: int
) -> tuple[Grant, DeviceUsage, MigReservation | None]:
    """The grant for one taken card, the card afterwards, and its MIG reservation (2.10)."""
    vendor, uuid = taken.device.vendor, taken.device.uuid
    choice = mig.choose(card, taken.memory_mib) if card.device.mode == Mode.MIG else None
    if choice is None:
        grant = Grant(uuid=uuid, vendor=vendor, memory_mib=taken.memory_mib, cores=taken.cores)
        charge = Charge(
            uuid=uuid, vendor=vendor, slots=1, memory_mib=taken.memory_mib, cores=taken.cores
        )
        return grant, charged(card, charge), None
    grant = Grant(uuid=choice.uuid, vendor=vendor, memory_mib=choice.memory_mib, cores=choice.cores)
    reservation = None
    if choice.placement is not None:
        reservation = MigReservation(
            container_index=container,
            device_index=place,
            uuid=uuid,
            profile=choice.name,
            placement=choice.placement,
        )
    return grant, mig.account(card, choice), reservation


def _cards_wanted(ask: Ask, cards: Iterable[DeviceUsage]) -> int:
    """How many cards the ask means on this node; Neuron cores may fit on fewer than it names."""
    if ask.vendor is not Vendor.AWS_NEURON:
        return ask.count
    return wanted(ask, cores_each(card.device for card in cards))[0]


def _any_mig(cards: Iterable[DeviceUsage], wishes: PodWishes) -> bool:
    """True when a card may serve several cards of one ask: in MIG mode, and the pod takes that."""
    if wishes.modes is not None and Mode.MIG not in wishes.modes:
        return False
    return any(card.device.mode == Mode.MIG for card in cards)
