"""How containers get the cards of each vendor on this node: kept up to date, shown to people."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hami_node.model import Node
from hami_node.node.holdings.recorded import answer_of
from hami_node.node.vendor_cards import VendorCards
from hami_node.record.ledger import Ledger
from hami_node.vendors.on_node.answer import ContainerResponse, HandOverState, NodeSituation

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
"""Somebody may have removed a file that nothing watches."""


class HandOvers:
    """Tells the responders about their node. A step of the loop."""

    def __init__(
        self,
        owners: Sequence[VendorCards],
        *,
        node: Callable[[], Node | None],
        ledger: Ledger,
        on_change: Callable[[], None],
    ) -> None:
        """Wire the sources. `on_change`: how containers get their cards has changed."""
        self._owners, self._node = tuple(owners), node
        self._ledger, self._on_change = ledger, on_change
        self._is_read = False

    def record_read(self) -> None:
        """The record is complete: who holds what is known. One pass, before Allocate is served."""
        self._is_read = True
        self.look()

    def end(self) -> None:
        """The last pass; then the responders are closed."""
        self.look()
        for owner in self._owners:
            owner.responder.close()

    def look(self) -> float:
        """One pass over all vendors; seconds until the next one, if nothing changes before."""
        before = self._states()
        for owner in self._owners:
            situation = NodeSituation(
                node=self._node(), cards=owner.cards(), answers=self._answers()
            )
            try:
                owner.responder.keep(situation)
            except Exception:  # any bug: the daemon serves on
                log.exception("hand_over_broken")
        if self._states() != before:
            self._on_change()
        return INTERVAL_S

    def summary(self) -> str:
        """In words, for the node's annotation; "" where nothing is said."""
        return "; ".join(filter(None, (state.summary for state in self._states())))

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """By vendor, for the page with the settings in force."""
        states = zip(self._owners, self._states(), strict=True)
        return {own.names: dict(state.details) for own, state in states if state.details}

    def why_unready(self) -> str:
        """Why containers can't be given any cards; "" while they can."""
        return next((state.problem for state in self._states() if state.problem), "")

    def _states(self) -> tuple[HandOverState, ...]:
        return tuple(owner.responder.hand_over() for owner in self._owners)

    def _answers(self) -> tuple[ContainerResponse, ...] | None:
        """What containers on record were given; None while one of them may have got anything."""
        if not self._is_read:
            return None
        answers = [answer_of(entry) for entry in self._ledger.entries()]
        known = tuple(answer for answer in answers if answer is not None)
        return known if len(known) == len(answers) else None
