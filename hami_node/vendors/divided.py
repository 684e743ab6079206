"""Divided cards of a node for people: their parts, who has them, and why some can't be given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hami_node.model import Uuid


class PartState(StrEnum):
    """Who a part of a divided card belongs to, and what becomes of it."""

    LIVE = "live"
    """Made for a container, which has it."""
    MAKING = "making"
    """Made for a container, and not finished."""
    DRAINING = "draining"
    """Nobody holds it any more; it is being removed."""
    LOST = "lost"
    """Gone, though a container was given it: it can't go on with another one."""
    STALE = "stale"
    """Nobody holds it any more, and it can't be removed yet: its place can't be given."""
    FOREIGN = "foreign"
    """Made by somebody else, and left alone: its place can't be given."""
    OFFERED = "offered"
    """Made by somebody else, and offered as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """A part of a divided card that exists.

    Attributes:
        card: the card's UUID.
        kind: what the vendor calls such a part.
        start, size: the place on the card, in the driver's units.
        numbers: the driver's numbers for it, in the vendor's order.
        uuid: its own; "" for one that is not finished.
        why: why it is not live, for people.
        pod_uid, container: who has it, or had it last; "" for nobody known.
        position: the container's number for it.
    """

    card: Uuid
    kind: str
    start: int
    size: int
    state: PartState
    numbers: tuple[int, ...] = ()
    uuid: str = ""
    why: str = ""
    pod_uid: str = ""
    container: str = ""
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartKind:
    """A kind of part that a card can hold.

    Attributes:
        name: what the vendor calls it.
        memory_mib: what each has.
        size: of its place, in the driver's units.
        starts: where such parts may begin, whether free or not.
    """

    name: str
    memory_mib: int
    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedCard:
    """A card that is divided, or can be.

    Attributes:
        mode: how it is shared now, as the vendor writes it.
        pending: the mode that it will have after its next reset; "" for the same.
        kinds: all that the driver offers, whatever the settings leave out.
        parts: all that exist, whoever made them.
        problem: why its state can't be read, or it serves nobody; "" for neither.
    """

    uuid: Uuid
    index: int
    mode: str
    pending: str = ""
    kinds: tuple[PartKind, ...] = ()
    parts: tuple[PartView, ...] = ()
    problem: str = ""


NO_FAILURES: Final[Mapping[tuple[str, str], int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedCards:
    """The divided cards of a node.

    Attributes:
        cards: those that are divided or about to be, by index.
        failures: failed calls into the driver about parts since the daemon's start, by the
            function and the reason in a few words.
    """

    cards: tuple[DividedCard, ...] = ()
    failures: Mapping[tuple[str, str], int] = field(default_factory=lambda: NO_FAILURES)

    @property
    def parts(self) -> tuple[PartView, ...]:
        """Those of all cards."""
        return tuple(part for card in self.cards for part in card.parts)


NOTHING_DIVIDED: Final = DividedCards()
