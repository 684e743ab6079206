"""Why each node can't take a pod: worked out once for nodes, and for cards, that are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeVar

from hami_node.engine.card_rules import filters_after_numa, rules_of
from hami_node.engine.filters import BEFORE_NUMA, WHOLE_CARD, Reason, Rejection, first_failing
from hami_node.engine.fleet.effort import LOOK_STEPS, Effort
from hami_node.engine.fleet.needs import Needs, needs
from hami_node.engine.fleet.node_state import KIND_FIELDS, CardState, Catalogue, NodeState
from hami_node.engine.fleet.summaries import NOBODY
from hami_node.engine.place import Fitting, Plan, PodRequest, try_on
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask, Device, Uuid

FEW_KEPT: Final = 1_000
"""This many answers are kept even if there are only a few card states."""

CARD_FIELDS: Final[Mapping[type, frozenset[str]]] = MappingProxyType(
    {
        DeviceUsage: frozenset(
            {"device", "slots_used", "memory_used_mib", "cores_used", "contradiction"}
        ),
        Device: KIND_FIELDS | {"uuid", "healthy"},
    }
)
"""All that filters may read of an undivided card, because cards equal in it are checked once.

Used memory and cores may be compared with what is asked and with the card's total, used slots with
none and all. A filter that reads more needs it in `_Limits` or in `Catalogue._sort` first.
"""

CONTEXT_FIELDS: Final = frozenset(
    {"ask", "wishes", "compat", "cordoned", "quota", "is_mutex", "cores"}
)
"""All that filters may read of a context: an explainer has one request, and cordons are part of a
card's state. What else differs from node to node has to become part of that state too."""

ANSWER_BYTES: Final = 80
"""What an answer takes; a word of a list takes two of them, and its letters."""

NO_ROOM: Final = Rejection(whole=Reason.TOO_LITTLE_ROOM)
"""The reason where only the refusal itself is known."""

K = TypeVar("K")
V = TypeVar("V")

Answer = StrEnum | bool
"""For one card: why not; True when it fits; False when it is no card of the ask's vendor."""


class _Limits(NamedTuple):
    """Where the answers change for one sort of card: the most that may be used already.

    `answers` has an entry for each outcome of the three comparisons, None until it is needed.
    """

    is_asked: bool
    memory_used_mib: int
    cores_used: int
    cores: int
    answers: list[Answer | None]

    @classmethod
    def of(cls, device: Device, ask: Ask) -> _Limits:
        return cls(
            is_asked=device.vendor is ask.vendor,
            memory_used_mib=device.memory_mib - ask.memory_mib_on(device.memory_mib),
            cores_used=device.cores - min(ask.cores, WHOLE_CARD),
            cores=device.cores,
            answers=[None] * 8,
        )


class Explainer:
    """What is known of one request: answers for groups of nodes, and for nodes it names cards of.

    All of it stays valid whatever changes in the fleet: a node that changes is in another group
    afterwards. So the next attempt of an equal pod only looks at nodes that changed.

    Attributes:
        namespace: whose share of the memory it takes.
        refused: groups that can't take the pod, for which the reasons may be unknown.
        hopeless: groups of which no node can, not even one with a card that the request names.
        answers: why groups can't take the pod; None for those that can.
        counted_size: the size of it that its memory has counted.
    """

    def __init__(self, ready: Plan, catalogue: Catalogue, namespace: str = "") -> None:
        """Analyse the request once; a pod of `namespace` was the first to make it."""
        self.namespace = namespace
        self.refused: set[int] = set()
        self.hopeless: set[int] = set()
        self.answers: dict[int, Rejection | None] = {}
        self.counted_size = 0
        self._plan = ready
        self._tries = 0
        self._request_size = _size_of(ready.request)
        self._needs: tuple[int, Needs] | None = None
        self._catalogue = catalogue
        self._named: dict[str, tuple[int, Rejection | None]] = {}
        self._equal: dict[Hashable, Rejection] = {}
        self._counted: dict[tuple[Answer, ...], Rejection | None] = {}
        self._cards: dict[int, Answer] = {}
        self._sorts: dict[int, _Limits] = {}
        asks = [container.asks for container in ready.request.containers if container.asks]
        self._is_single = len(asks) == 1 and len(asks[0]) == 1 and ready.quota is None
        self._ask = _counted_ask(ready, asks[0]) if asks else None

    @property
    def progress(self) -> int:
        """More after each group or node that was found out about."""
        return self.size + self._tries

    @property
    def size(self) -> int:
        """How much it remembers, in answers."""
        return (
            self._request_size
            + len(self.refused)
            + len(self.hopeless)
            + len(self.answers)
            + len(self._named)
            + len(self._cards)
            + len(self._counted)
        )

    def needs(self) -> Needs:
        """What the pod needs at least, of the kinds of cards that there are now.

        As long as no kind is lost, another kind makes them more; with a lost one explainers end.
        """
        kinds = self._catalogue.kinds
        if self._needs is None or self._needs[0] != len(kinds):
            self._needs = len(kinds), needs(self._plan, kinds)
        return self._needs[1]

    def place(self, node: NodeState, *, is_named: bool) -> Fitting | Rejection:
        """Place the pod on the node, unless it is known that it does not fit.

        `is_named`: the request names a card of the node, so no other node can be equal to it.
        """
        known = self._known(node, is_named=is_named)
        if known is not None:
            return known
        self._tries += 1
        answer = try_on(node.offer(), self._plan)
        if isinstance(answer, Rejection):
            return self._refuse(node, answer, is_named=is_named)
        return answer

    def rejection(
        self, node: NodeState, *, is_named: bool, effort: Effort
    ) -> Rejection | Literal[False] | None:
        """Find out why the node can't take the pod; None when it can, False if that takes too much.

        `is_named`: the request names a card of the node, so no other node can be equal to it.
        """
        if is_named:
            if self._is_known(node):
                return self._named[node.name][1]
            effort.take(LOOK_STEPS)
        elif node.group in self.answers:
            return self.answers[node.group]
        else:
            effort.take(LOOK_STEPS)
            if (rejection := self._by_cards(node)) is not False:
                self.answers[node.group] = rejection
                return rejection
        if not effort.try_on(node, self._plan):
            return False
        answer = try_on(node.offer(), self._plan)
        if isinstance(answer, Rejection):
            return self._refuse(node, answer, is_named=is_named)
        if is_named:
            self._named[node.name] = (node.version, None)
        else:
            self.answers[node.group] = None
        return None

    def known_refusal(self, node: NodeState, *, is_named: bool) -> Rejection | None:
        """That the node can't take the pod, as far as that is known without trying it.

        It has no other reason than that, and is not remembered. `is_named`: as above.
        """
        if self.needs().impossible or node.group in self.hopeless:
            return NO_ROOM
        if is_named:
            return self._named[node.name][1] if self._is_known(node) else None
        return NO_ROOM if node.group in self.refused else None

    def tidy(self, nodes: Collection[str]) -> None:
        """Forget groups and nodes that no longer exist, once there are many of them.

        What is true of the others is kept: a search would never end that forgets what it found out.
        """
        groups = self._catalogue.groups
        most = 2 * len(groups) + FEW_KEPT
        if len(self.refused) > most:
            self.refused.intersection_update(groups)
        if len(self.hopeless) > most:
            self.hopeless.intersection_update(groups)
        if len(self.answers) > most:
            self.answers = {key: why for key, why in self.answers.items() if key in groups}
        if len(self._named) > len(nodes) + FEW_KEPT:
            self._named = {name: why for name, why in self._named.items() if name in nodes}

    def _is_known(self, node: NodeState) -> bool:
        known = self._named.get(node.name)
        return known is not None and known[0] == node.version

    def _known(self, node: NodeState, *, is_named: bool) -> Rejection | None:
        if not is_named:
            return self.answers.get(node.group)
        return self._named[node.name][1] if self._is_known(node) else None

    def _refuse(self, node: NodeState, why: Rejection, *, is_named: bool) -> Rejection:
        # Equal rejections are one object: they are grouped by it, and it takes less memory.
        key = (why.whole, why.total, why.never, frozenset(why.counts.items()))
        why = self._equal.setdefault(key, why)
        if is_named:
            self._named[node.name] = (node.version, why)
        else:
            self.answers[node.group] = why
        return why

    def _by_cards(self, node: NodeState) -> Rejection | Literal[False] | None:
        """The answer as far as it follows from each card by itself; False where it does not."""
        if self._ask is None or node.has_divided:
            return False
        profile = self._profile(node.states, self._ask)
        if profile not in self._counted:
            self._make_room(self._counted)
            self._counted[profile] = self._count(profile, self._ask)
        rejection = self._counted[profile]
        return rejection if rejection is not None or self._is_single else False

    def _count(self, profile: tuple[Answer, ...], ask: Ask) -> Rejection | None:
        """Why cards with these answers can't serve the first ask; None where they may."""
        own = [answer for answer in profile if answer is not False]
        if ask.count > len(own):
            return Rejection(whole=Reason.TOO_FEW_CARDS)
        fitting = own.count(True)
        if fitting >= ask.count or (fitting and self._plan.quota is not None):
            return None
        counts = Counter(answer for answer in own if isinstance(answer, StrEnum))
        if fitting:
            is_each = self._plan.compat.reasons_count_cards
            counts[Reason.TOO_FEW_CARDS_FIT] = fitting if is_each else 1
        return Rejection.of(counts, len(own))

    def _profile(self, states: tuple[int, ...], ask: Ask) -> tuple[Answer, ...]:
        known = self._cards
        try:
            return tuple([known[state] for state in states])
        except KeyError:
            self._make_room(known)
            for state in states:
                if state not in known:
                    known[state] = self._learned(self._catalogue.cards[state], ask)
            return tuple([known[state] for state in states])

    def _learned(self, state: CardState, ask: Ask) -> Answer:
        """The answer for one state; the filters are asked once for those that they can't tell."""
        sort, memory_used_mib, cores_used, card, is_cordoned = state
        limits = self._sorts.get(sort)
        if limits is None:
            limits = self._sorts[sort] = _Limits.of(card.device, ask)
        outcome = (
            4 * (memory_used_mib > limits.memory_used_mib)
            + 2 * (cores_used > limits.cores_used)
            + (cores_used >= limits.cores)
        )
        answer = limits.answers[outcome]
        if answer is None:
            answer = limits.is_asked and self._filter(card, ask, is_cordoned=is_cordoned)
            limits.answers[outcome] = answer
        return answer

    def _make_room(self, answers: dict[K, V]) -> None:
        """Start over when most of the answers are about states that no longer exist."""
        if len(answers) > 2 * len(self._catalogue.cards) + FEW_KEPT:
            answers.clear()

    def _filter(self, card: DeviceUsage, ask: Ask, *, is_cordoned: bool) -> Answer:
        cordoned: frozenset[Uuid] = frozenset({NOBODY}) if is_cordoned else frozenset()
        ctx = self._plan.context(ask, cordoned, self._plan.quota)
        filters = (*BEFORE_NUMA, *filters_after_numa(ask.vendor, self._plan.compat))
        return first_failing(card, ctx, filters) or True


def _size_of(request: PodRequest) -> int:
    """How much the request itself takes, in answers: an annotation may list 100,000 cards."""
    wishes = request.wishes
    policies = filter(None, (wishes.gpu_policy, wishes.node_policy, wishes.scoring_weights))
    lists: list[Collection[str]] = [tuple(policies)]
    for _, cards in wishes.cards:
        lists += (cards.use_types, cards.nouse_types, cards.modes or ())
        lists += (cards.uuids.use or (), cards.uuids.nouse)
    words = sum(2 * len(each) + sum(map(len, each)) // ANSWER_BYTES for each in lists)
    return len(request.containers) + words


def _counted_ask(ready: Plan, asks: tuple[Ask, ...]) -> Ask | None:
    """The first ask, where its reasons can be counted card by card: without a group of cards."""
    if len(asks) != 1 or not rules_of(asks[0].vendor).are_reasons_by_card:
        return None
    is_bound = ready.request.wishes.of(asks[0].vendor).is_numa_bound
    return None if is_bound else asks[0]
