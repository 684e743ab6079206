"""One node of the fleet, summed up again only after something on it changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hami_node.engine.card_rules import rules_of
from hami_node.engine.fleet.interning import Interner
from hami_node.engine.fleet.summaries import NOBODY, NodeSummary, summarise
from hami_node.engine.place import NodeOffer
from hami_node.engine.usage import DeviceUsage, NodeUsage
from hami_node.model import NO_SCORES, Device, PairScores, Uuid

NO_NUMBER: Final = -1
"""Nothing is numbered with it."""


@dataclass(slots=True)
class NodeState:
    """A node and what is known of it.

    Attributes:
        summary: None while the node waits to be summed up.
        kinds: number of each card's kind.
        has_divided: a card is divided into parts.
        states: number of each card's state, in order of registration.
        links: number of the links between its cards.
        group: number of all nodes with the same states and links. They give the same answer to
            every request that names no card; no number ever means another group.
        version: differs after every change, and from that of every other node.
    """

    name: str
    usage: NodeUsage = field(default_factory=NodeUsage)
    cordoned: frozenset[Uuid] = frozenset()
    pair_scores: PairScores = field(default_factory=lambda: NO_SCORES)
    summary: NodeSummary | None = None
    kinds: dict[Uuid, int] = field(default_factory=dict)
    states: tuple[int, ...] = ()
    links: int = NO_NUMBER
    group: int = NO_NUMBER
    version: int = NO_NUMBER
    has_divided: bool = False

    @property
    def is_registered(self) -> bool:
        """False for a node that is known only from grants."""
        return bool(self.kinds)

    def offer(self) -> NodeOffer:
        """The node at this moment."""
        return NodeOffer(
            cards=self.usage.cards, cordoned=self.cordoned, pair_scores=self.pair_scores
        )


_NOT_OF_KIND: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "uuid": NOBODY,
        "index": 0,
        "numa": None,
        "healthy": True,
        "unhealthy_reason": "",
        "pci_bus": "",
    }
)
"""The fields that a kind leaves out, with their placeholders: a new field makes kinds differ."""

KIND_FIELDS: Final = frozenset(item.name for item in fields(Device)) - _NOT_OF_KIND.keys()
"""The fields of a device that distinguish kinds."""
_kind_of: Final = attrgetter(*sorted(KIND_FIELDS))

STATE_FIELDS: Final[Mapping[type, frozenset[str]]] = MappingProxyType(
    {
        DeviceUsage: frozenset(item.name for item in fields(DeviceUsage)),
        Device: KIND_FIELDS | {"uuid", "index", "numa", "healthy"},
    }
)
"""All that placing may read of a node's cards, because nodes with equal states are checked once.

A UUID may be compared with cordons and with a pod's lists only, an index with other indexes of the
node, a contradiction with "". Code that reads another field has to add it to `Catalogue._state`.
"""

what_is_used: Final = attrgetter(
    *(item.name for item in fields(DeviceUsage) if item.name not in ("device", "contradiction"))
)
"""All that is recorded of a card's use: a field added there distinguishes states at once."""


class CardState(NamedTuple):
    """A card in one state, without its identity.

    Attributes:
        sort: equal for cards that differ in nothing but used memory and cores.
    """

    sort: int
    memory_used_mib: int
    cores_used: int
    card: DeviceUsage
    is_cordoned: bool


class Catalogue:
    """Which kinds of cards and which states of cards the fleet has.

    `lost_kinds` counts the kinds that were removed: their numbers may be in use for other kinds.
    """

    def __init__(self) -> None:
        """Start empty."""
        # Kinds are bits in a set, so their numbers stay small. A state's number is remembered
        # by explainers, so it never gets a second meaning.
        self._kinds = Interner(reuses=True)
        self._states = Interner(reuses=False)
        self._sorts = Interner(reuses=False)
        self._links = Interner(reuses=False)
        self._groups = Interner(reuses=False)
        self._summaries: dict[int, NodeSummary] = {}
        self._devices: dict[int, Device] = {}
        self._cards: dict[int, CardState] = {}
        self.lost_kinds = 0

    @property
    def kinds(self) -> Mapping[int, Device]:
        """One device without identity for every kind."""
        return self._devices

    @property
    def cards(self) -> Mapping[int, CardState]:
        """Every state that some card is in. To be read, not changed."""
        return self._cards

    @property
    def groups(self) -> Mapping[int, NodeSummary]:
        """Every group of equal nodes, summed up. To be read, not changed."""
        return self._summaries

    def enroll(self, node: NodeState) -> None:
        """Register the kinds of a node's present cards and their links."""
        node.links = self._links.acquire(_links_of(node))
        for device in (card.device for card in node.usage.cards.values()):
            kind = node.kinds[device.uuid] = self._kinds.acquire(_kind_of(device))
            if kind not in self._devices:
                self._devices[kind] = replace(device, **_NOT_OF_KIND)
            node.has_divided = node.has_divided or rules_of(device.vendor).is_divided(device)

    def expel(self, node: NodeState) -> None:
        """Release everything that was registered for a node."""
        for kind in node.kinds.values():
            if self._kinds.release(kind):
                del self._devices[kind]
                self.lost_kinds += 1
        node.kinds = {}
        self._forget(node.states)
        node.states = ()
        if node.links != NO_NUMBER:
            self._links.release(node.links)
        if node.group != NO_NUMBER:
            self._leave_group(node.group)
        node.links = node.group = NO_NUMBER
        node.has_divided = False
        node.summary = None

    def refresh(self, node: NodeState) -> NodeSummary:
        """Sum the node up as it is now."""
        cards = node.usage.cards.values()
        former, former_group = self._restate(node), node.group
        group = node.group = self._groups.acquire((node.links, node.states))
        summary = self._summaries.get(group)
        if summary is None:
            kinds = node.kinds
            summary = summarise(cards, node.cordoned, lambda device: kinds[device.uuid], group)
            self._summaries[group] = summary
        self._forget(former)
        if former_group != NO_NUMBER:
            self._leave_group(former_group)
        node.summary = summary
        return summary

    def _restate(self, node: NodeState) -> list[int]:
        """Number the states of the cards that changed; the numbers that they had before."""
        touched, states, former = node.usage.take_touched(), list(node.states), list[int]()
        cards = node.usage.cards
        if touched is None or len(states) != len(cards):
            former = states
            states = [self._state(node, card, at) for at, card in enumerate(cards.values())]
        else:
            for at, (uuid, card) in enumerate(cards.items()):
                if uuid in touched:
                    former.append(states[at])
                    states[at] = self._state(node, card, at)
        node.states = tuple(states)
        return former

    def _leave_group(self, group: int) -> None:
        if self._groups.release(group):
            del self._summaries[group]

    def _state(self, node: NodeState, card: DeviceUsage, position: int) -> int:
        device = card.device
        kind = node.kinds[device.uuid]
        is_cordoned = device.uuid in node.cordoned
        is_healthy = device.healthy and not card.contradiction
        number = self._states.acquire(
            (
                kind,
                device.numa,
                device.index - position,
                is_healthy,
                is_cordoned,
                *what_is_used(card),
            )
        )
        if number not in self._cards:
            plain = replace(self._devices[kind], numa=device.numa, healthy=is_healthy)
            self._cards[number] = CardState(
                sort=self._sort(kind, card, is_healthy=is_healthy, is_cordoned=is_cordoned),
                memory_used_mib=card.memory_used_mib,
                cores_used=card.cores_used,
                card=_without_contradiction(card, plain),
                is_cordoned=is_cordoned,
            )
        return number

    def _sort(self, kind: int, card: DeviceUsage, *, is_healthy: bool, is_cordoned: bool) -> int:
        """There are few, so their numbers are never released."""
        is_full, is_used = card.slots_used >= card.device.slots, card.slots_used > 0
        return self._sorts.acquire((kind, is_healthy, is_cordoned, is_full, is_used))

    def _forget(self, states: Iterable[int]) -> None:
        for state in states:
            if self._states.release(state):
                del self._cards[state]


def _without_contradiction(card: DeviceUsage, device: Device) -> DeviceUsage:
    """The same use of another device."""
    return DeviceUsage(  # not `replace`, which takes three times as long
        device=device,
        slots_used=card.slots_used,
        memory_used_mib=card.memory_used_mib,
        cores_used=card.cores_used,
        parts=card.parts,
    )


def _links_of(node: NodeState) -> tuple[tuple[int, int, int], ...]:
    """The links between a node's cards, by their positions."""
    if not node.pair_scores:
        return ()
    positions = {uuid: position for position, uuid in enumerate(node.usage.cards)}
    links = (
        (position, positions[other], score)
        for uuid, position in positions.items()
        for other, score in node.pair_scores.get(uuid, {}).items()
        if other in positions
    )
    return tuple(sorted(links))
