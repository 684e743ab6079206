"""One node of the fleet, summed up again only after something on it changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hami_node.engine.fit import NO_SCORES, PairScores
from hami_node.engine.interning import Interner
from hami_node.engine.outline import NOBODY, Outline, outline
from hami_node.engine.place import NodeOffer
from hami_node.engine.usage import DeviceUsage, NodeUsage
from hami_node.model import Device, Mode, Uuid


@dataclass(slots=True)
class Seat:
    """A node and what is known of it.

    Attributes:
        outline: None while the node waits to be summed up.
        kinds: number of each card's kind.
        has_mig: a card is in MIG mode.
        states: number of each card's state, in order of registration. Nodes with the same states
            answer alike to every request that names no card.
    """

    name: str
    usage: NodeUsage = field(default_factory=NodeUsage)
    cordoned: frozenset[Uuid] = frozenset()
    pair_scores: PairScores = field(default_factory=lambda: NO_SCORES)
    outline: Outline | None = None
    kinds: dict[Uuid, int] = field(default_factory=dict)
    states: tuple[int, ...] = ()
    has_mig: bool = False

    @property
    def is_registered(self) -> bool:
        """False for a node that is known only from grants."""
        return bool(self.kinds)

    def offer(self) -> NodeOffer:
        """The node at this moment."""
        return NodeOffer(
            cards=self.usage.cards, cordoned=self.cordoned, pair_scores=self.pair_scores
        )


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

    `lost_kinds` counts the kinds that are gone: their numbers may mean another kind since.
    """

    def __init__(self) -> None:
        """Start empty."""
        # Kinds are bits in a set, so their numbers stay small. A state's number is remembered
        # by explainers, so it never gets a second meaning.
        self._kinds = Interner(reuses=True)
        self._states = Interner(reuses=False)
        self._sorts = Interner(reuses=False)
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

    def enroll(self, seat: Seat) -> None:
        """Take the kinds of a seat's present cards."""
        for device in (card.device for card in seat.usage.cards.values()):
            plain = _plain(device)
            kind = seat.kinds[device.uuid] = self._kinds.acquire(plain)
            self._devices[kind] = plain
            seat.has_mig = seat.has_mig or device.mode == Mode.MIG

    def expel(self, seat: Seat) -> None:
        """Give back everything that was taken for a seat."""
        for kind in seat.kinds.values():
            if self._kinds.release(kind):
                del self._devices[kind]
                self.lost_kinds += 1
        seat.kinds = {}
        self._forget(seat.states)
        seat.states = ()
        seat.has_mig = False
        seat.outline = None

    def refresh(self, seat: Seat) -> Outline:
        """Sum the seat up as it is now."""
        former = seat.states
        seat.states = tuple(
            self._state(seat, card, place) for place, card in enumerate(seat.usage.cards.values())
        )
        self._forget(former)
        cards = seat.usage.cards.values()
        seat.outline = outline(cards, seat.cordoned, lambda device: seat.kinds[device.uuid])
        return seat.outline

    def _state(self, seat: Seat, card: DeviceUsage, place: int) -> int:
        device = card.device
        kind = seat.kinds[device.uuid]
        is_cordoned = device.uuid in seat.cordoned
        is_healthy = device.healthy and not card.contradiction
        number = self._states.acquire(
            (
                kind,
                device.numa,
                device.index - place,
                is_healthy,
                is_cordoned,
                card.slots_used,
                card.memory_used_mib,
                card.cores_used,
                card.mig_template,
                card.mig_slots,
                card.mig_placements,
            )
        )
        if number not in self._cards:
            plain = replace(self._devices[kind], numa=device.numa, healthy=is_healthy)
            self._cards[number] = CardState(
                sort=self._sort(kind, card, is_healthy=is_healthy, is_cordoned=is_cordoned),
                memory_used_mib=card.memory_used_mib,
                cores_used=card.cores_used,
                card=replace(card, device=plain, contradiction=""),
                is_cordoned=is_cordoned,
            )
        return number

    def _sort(self, kind: int, card: DeviceUsage, *, is_healthy: bool, is_cordoned: bool) -> int:
        """There are few, so their numbers are kept for good."""
        is_full, is_used = card.slots_used >= card.device.slots, card.slots_used > 0
        return self._sorts.acquire((kind, is_healthy, is_cordoned, is_full, is_used))

    def _forget(self, states: tuple[int, ...]) -> None:
        for state in states:
            if self._states.release(state):
                del self._cards[state]


def _plain(device: Device) -> Device:
    """The device without identity, place and health."""
    return replace(
        device, uuid=NOBODY, index=0, numa=None, healthy=True, unhealthy_reason="", pci_bus=""
    )
