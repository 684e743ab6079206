"""Keeps the annotation with the node's MIG cards; pods that come and go cost no write of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from hami_node.model import Node
from hami_node.vendors.divided import DividedCard, DividedCards, PartState, PartView
from hami_node.vendors.nvidia import names
from hami_node.vendors.on_node.publication import Publication

PASSING: Final = frozenset(
    {PartState.LIVE, PartState.MAKING, PartState.DRAINING, PartState.OFFERED}
)
"""What instances are while all goes well; they are shown as of the last heartbeat."""


class WithMigCards:
    """A publication of the node's cards, and the annotation about those in MIG mode beside it."""

    def __init__(self, publication: Publication, divided: Callable[[], DividedCards]) -> None:
        """`divided` returns the cards as they are now."""
        self._publication, self._divided = publication, divided
        self._passing: tuple[PartView, ...] | None = None

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """What people have to know at once, with the instances as of the last heartbeat."""
        return {**self._publication.desired(node, now), names.NODE_MIG: self._text()}

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """Who has which instance now, if that has changed."""
        beat, wanted = self._publication.heartbeat(node, now), self._text()
        self._passing = None
        text = self._text()
        is_same = text == wanted == node.annotations.get(names.NODE_MIG)
        return beat if is_same else {**beat, names.NODE_MIG: text}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """Nobody vouches for it any more."""
        gone = self._publication.shutdown(node)
        return {**gone, names.NODE_MIG: None} if names.NODE_MIG in node.annotations else gone

    def _text(self) -> str | None:
        shown = self._divided()
        if not shown.cards:
            return None
        from hami_node.vendors.nvidia.mig.mark import encode_mig  # most nodes have no such card

        if self._passing is None:
            self._passing = tuple(part for part in shown.parts if part.state in PASSING)
        passing = self._passing
        cards = tuple(_with_passing(card, passing) for card in shown.cards)
        return encode_mig(replace(shown, cards=cards))


def _with_passing(card: DividedCard, passing: tuple[PartView, ...]) -> DividedCard:
    """The card with these in place of those that are passing now."""
    parts = [part for part in card.parts if part.state not in PASSING]
    shown = {(part.numbers, part.uuid) for part in parts}
    parts += [
        part
        for part in passing
        if part.card == card.uuid and (part.numbers, part.uuid) not in shown
    ]
    ordered = sorted(parts, key=lambda part: (part.start, part.numbers))
    return replace(card, parts=tuple(ordered))
