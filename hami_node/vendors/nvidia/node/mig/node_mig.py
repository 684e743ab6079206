"""MIG on this node: modes, instances, and whoever else works on them, as one `CardParts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from hami_node.clock import Deadline
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.mig.ownership import with_marks
from hami_node.vendors.nvidia.node.mig.modes import ModeKeeper
from hami_node.vendors.nvidia.node.mig.outside import Outside
from hami_node.vendors.on_node.answer import MadePart, Slice
from hami_node.vendors.on_node.parts import (
    PartNote,
    PartsKept,
    PartsSituation,
    PartsState,
)


class Instances(Protocol):
    """Whoever makes and removes the instances; as in `CardParts`."""

    def make(self, granted: Slice, deadline: Deadline) -> tuple[MadePart | None, ...]:
        """Make those that the grants name."""

    def keep(self, situation: PartsSituation) -> PartsKept:
        """One pass."""

    def in_use(self) -> Mapping[Uuid, str]:
        """Cards that are worked on."""

    def state(self) -> PartsState:
        """What is on record."""


HANDS_OFF: Final = "MigHandsOff"


class NodeMig:
    """`CardParts` of NVIDIA cards. Modes come first: instances need one."""

    def __init__(
        self,
        instances: Instances,
        modes: ModeKeeper,
        outside: Outside,
        cards: Callable[[], tuple[Device, ...]],
    ) -> None:
        """Wire the parts; `cards` returns those of the last scan."""
        self._instances, self._modes, self._outside, self._cards = instances, modes, outside, cards
        self._told = ""

    def make(self, granted: Slice, deadline: Deadline) -> tuple[MadePart | None, ...]:
        """See `CardParts`."""
        return self._instances.make(granted, deadline)

    def keep(self, situation: PartsSituation) -> PartsKept:
        """One pass; see `CardParts`."""
        if situation.node is not None:
            self._outside.read_labels(situation.node)
        hands_off = self._outside.hands_off()
        modes = self._modes.keep(self._cards(), situation, hands_off or self._outside.mode_wish())
        kept = self._instances.keep(situation)
        waits = [modes.next_s, kept.next_s, self._outside.next_s()]
        return replace(
            kept,
            notes=(*self._told_once(hands_off), *modes.notes, *kept.notes),
            next_s=min((wait for wait in waits if wait is not None), default=None),
        )

    def marked(self, cards: tuple[Device, ...]) -> tuple[Device, ...]:
        """See `CardParts`."""
        found = self._outside.look(cards, self._instances.state().own)
        waits, hands_off = self._modes.waits(), self._outside.hands_off()
        return tuple(
            with_marks(card, found[card.uuid], waits.get(card.uuid, hands_off))
            if card.uuid in found
            else card
            for card in cards
        )

    def in_use(self) -> Mapping[Uuid, str]:
        """See `CardParts`."""
        return {**self._instances.in_use(), **self._modes.changing()}

    def state(self) -> PartsState:
        """See `CardParts`."""
        return replace(
            self._instances.state(),
            hands_off=self._outside.hands_off(),
            waits=self._modes.waits(),
        )

    def _told_once(self, hands_off: str) -> tuple[PartNote, ...]:
        told, self._told = self._told, hands_off
        if not hands_off or hands_off == told:
            return ()
        return (PartNote(reason=HANDS_OFF, message=hands_off),)
