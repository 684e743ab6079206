"""Which pods have to leave a node so that another pod fits there. Pure.

Nothing is charged or released: a node is looked at as it would be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.filters import Rejection
from hami_node.engine.fleet.effort import steps_to_try
from hami_node.engine.fleet.fleet import Fleet
from hami_node.engine.fleet.node_state import NodeState, what_is_used
from hami_node.engine.place import NodeOffer, PodRequest, Refused, place_on, plan
from hami_node.engine.quota import Quota
from hami_node.engine.usage import Charge, DeviceUsage, PodGrants, charged, collapse
from hami_node.model import Uuid

MAX_TRIALS: Final = 256
"""Trials of one search on one node: beyond that what is found so far is taken."""
MAX_STEPS: Final = 16_000
"""The same in steps of effort: a trial of a pod with many containers takes thousands."""
MAX_STEPS_TO_SPARE: Final = 2 * MAX_STEPS
"""Beyond that nobody else is spared: the search holds the lock of all decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod that may be evicted; the higher its priority, the more important it is."""

    key: str
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a node is looked at.

    Attributes:
        gone: the pods that hold nothing there any more.
        kept: what others are going to get there.
    """

    gone: frozenset[str] = frozenset()
    kept: tuple[PodGrants, ...] = ()

    def but(self, keys: Iterable[str]) -> Look:
        """The same with these pods gone too."""
        return replace(self, gone=self.gone.union(keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """The pods that have to go, least important first, and what the pod gets then."""

    holders: tuple[Holder, ...]
    grants: PodGrants


class Trial:
    """One request, tried on nodes as they would be.

    Only good while the fleet does not change: a refusal is remembered for nodes that are alike.

    Attributes:
        count: how often it was tried so far.
        steps: the effort of that.
    """

    def __init__(self, fleet: Fleet, request: PodRequest) -> None:
        """Try `request` on nodes of `fleet`."""
        self._fleet, self._request = fleet, request
        self._names_cards = any(
            wishes.uuids.use is not None or wishes.uuids.nouse for _, wishes in request.wishes.cards
        )
        self._refused: set[Hashable] = set()
        self.count = self.steps = 0

    def grants(self, node: str, look: Look) -> PodGrants | None:
        """What the pod gets on the node; None where it does not fit."""
        state = self._fleet.nodes.get(node)
        if state is None or not state.is_registered:
            return None
        quota = self._fleet.quota_without(self._request.namespace, look.gone)
        cards = _cards(state, look)
        alike = None if self._names_cards else _alike(state, cards, quota)
        if alike is not None and alike in self._refused:
            return None
        answer = self._answer(state, cards, quota)
        if answer is None and alike is not None:
            self._refused.add(alike)
        return answer

    def charges(self, node: str, key: str) -> tuple[Charge, ...]:
        """What a pod holds on the node."""
        state = self._fleet.nodes.get(node)
        return () if state is None else state.usage.charges(key)

    def _answer(
        self, state: NodeState, cards: Mapping[Uuid, DeviceUsage], quota: Quota | None
    ) -> PodGrants | None:
        self.count += 1
        ready = plan(self._request, self._fleet.rules, quota)
        if isinstance(ready, Refused):
            return None
        self.steps += steps_to_try(len(cards), ready)
        offer = NodeOffer(cards=cards, cordoned=state.cordoned, pair_scores=state.pair_scores)
        answer = place_on(offer, ready)
        return None if isinstance(answer, Rejection) else answer


def _cards(state: NodeState, look: Look) -> Mapping[Uuid, DeviceUsage]:
    cards = dict(state.usage.without(*look.gone)) if look.gone else dict(state.usage.cards)
    for grants in look.kept:
        for charge in collapse(grants):
            if charge.uuid in cards:
                cards[charge.uuid] = charged(cards[charge.uuid], charge)
    return cards


def _alike(
    state: NodeState, cards: Mapping[Uuid, DeviceUsage], quota: Quota | None
) -> tuple[Hashable, ...]:
    """Equal for nodes that give the same answer to a request that names no card."""
    return (
        quota,
        state.links,
        *(
            (
                state.kinds[uuid],
                card.device.numa,
                card.device.index - position,
                card.device.healthy and not card.contradiction,
                uuid in state.cordoned,
                *what_is_used(card),
            )
            for position, (uuid, card) in enumerate(cards.items())
        ),
    )


def fewest(trial: Trial, node: str, look: Look, holders: Sequence[Holder]) -> Cleared | None:
    """The fewest and least important of these pods whose end makes the pod fit; None if none do.

    Importance comes first: a pod is only evicted if no set of less important ones helps. Where a
    search would take too long the answer may have more pods than necessary for the number, but
    none that could stay; of a pod with very many containers, for which each trial takes
    milliseconds, some may be left that could.

    Args:
        trial: the pod that shall fit.
        node: where.
        look: the node without those that go anyway.
        holders: who may be evicted, least important first; priorities may not fall.
    """
    grants = trial.grants(node, look)
    if grants is not None:
        return Cleared(holders=(), grants=grants)
    search = _Search(trial, node, look)
    levels = sorted({holder.priority for holder in holders})
    if not levels or search.fits(holders) is None:
        return None
    level = levels[
        bisect_left(
            levels, True, hi=len(levels) - 1, key=lambda level: search.is_enough(holders, level)
        )
    ]
    pool = [holder for holder in holders if holder.priority <= level]
    found = search.single(pool, level) or search.fewest_of_cards(pool)
    return found if found is not None else search.spared(pool)


class _Search:
    """Tries sets of pods on one node, for as many trials as are allowed."""

    def __init__(self, trial: Trial, node: str, look: Look) -> None:
        self._trial, self._node, self._look = trial, node, look
        self._end, self._begun_at = trial.count + MAX_TRIALS, trial.steps

    def fits(self, holders: Iterable[Holder]) -> PodGrants | None:
        """What the pod gets once these are gone."""
        return self._trial.grants(self._node, self._look.but(holder.key for holder in holders))

    def is_enough(self, holders: Iterable[Holder], level: int) -> bool:
        """True if no pod of a higher priority has to go."""
        return self.fits(holder for holder in holders if holder.priority <= level) is not None

    def single(self, pool: Sequence[Holder], level: int) -> Cleared | None:
        """One pod that is enough; less important ones were not enough even together."""
        for holder in pool:
            if holder.priority == level and not self._is_late():
                grants = self.fits((holder,))
                if grants is not None:
                    return Cleared(holders=(holder,), grants=grants)
        return None

    def fewest_of_cards(self, pool: Sequence[Holder]) -> Cleared | None:
        """The cheapest of: the pods of one card; those of several, the emptiest cards first."""
        groups = sorted(self._by_card(pool), key=_cost)
        found: Cleared | None = None
        together: dict[str, Holder] = {}
        for group in groups:
            if self._is_late():
                break
            together |= {holder.key: holder for holder in group}
            for tried in (group, [holder for holder in pool if holder.key in together]):
                better = self.spared(tried)
                if better and (found is None or _cost(better.holders) < _cost(found.holders)):
                    found = better
        return found

    def spared(self, holders: Sequence[Holder]) -> Cleared | None:
        """Of these pods those that have to go, the most important ones spared first."""
        grants = self.fits(holders)
        if grants is None:
            return None
        left = list(holders)
        for holder in reversed(holders):
            if self._steps() >= MAX_STEPS_TO_SPARE:
                break
            fewer = [item for item in left if item is not holder]
            without = self.fits(fewer)
            if without is not None:
                left, grants = fewer, without
        return Cleared(holders=tuple(left), grants=grants)

    def _by_card(self, pool: Sequence[Holder]) -> list[list[Holder]]:
        held: dict[Uuid, list[Holder]] = {}
        for holder in pool:
            for charge in self._trial.charges(self._node, holder.key):
                held.setdefault(charge.uuid, []).append(holder)
        return list(held.values())

    def _is_late(self) -> bool:
        return self._trial.count >= self._end or self._steps() >= MAX_STEPS

    def _steps(self) -> int:
        return self._trial.steps - self._begun_at


def _cost(holders: Sequence[Holder]) -> tuple[int, int, tuple[str, ...]]:
    keys = tuple(sorted(holder.key for holder in holders))
    return len(holders), sum(holder.priority for holder in holders), keys
