"""How containers get the cards of each vendor on this node, and by what they are limited."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hami_node.node.holdings.recorded import answer_of
from hami_node.node.state import NodeState
from hami_node.vendors.on_node.answer import ContainerResponse, HandOverState, NodeSituation
from hami_node.vendors.on_node.limiter import LimiterState

log = logging.getLogger(__name__)


class HandOvers:
    """Tells the responders about their node, and keeps what they say. Two steps of the loop."""

    def __init__(self, node: NodeState) -> None:
        """Nothing is known yet."""
        self._node = node
        self._is_read = False
        self._answers: dict[str, ContainerResponse | None] = {}
        """By what an entry has of them: each is decoded once."""
        self.limiters: tuple[LimiterState, ...] | None = None
        """What limits the containers that start now; None before it was looked at."""

    def record_read(self) -> None:
        """The record is complete: who holds what is known. A look before Allocate is served."""
        self._is_read = True
        self.look()
        self.look_at_limiters()

    def look(self) -> None:
        """One pass over all vendors: somebody may have removed a file that nothing watches."""
        node, before = self._node, self._states()
        answers = self._known_answers()
        for owner in node.vendor_cards:
            situation = NodeSituation(node=node.view.node(), cards=owner.cards(), answers=answers)
            try:
                owner.responder.keep(situation)
            except Exception:  # any bug: the daemon serves on
                log.exception("hand_over_broken")
        if self._states() != before:
            node.wake("report")

    def look_at_limiters(self) -> None:
        """Look at the files that limit containers."""
        self.limiters = tuple(owner.responder.limiter() for owner in self._node.vendor_cards)

    def end(self) -> None:
        """The last pass; then the responders are closed."""
        self.look()
        for owner in self._node.vendor_cards:
            owner.responder.close()

    # -- what they say -----------------------------------------------------------------------------
    def summary(self) -> str:
        """In words, for the node's annotation; "" where nothing is said."""
        return "; ".join(filter(None, (state.summary for state in self._states())))

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """By vendor, for the page with the settings in force."""
        states = zip(self._node.vendor_cards, self._states(), strict=True)
        return {own.names: dict(state.details) for own, state in states if state.details}

    def why_unready(self) -> str:
        """Why containers can't be given any cards; "" while they can."""
        return next((state.problem for state in self._states() if state.problem), "")

    def limiter_versions(self) -> str:
        """The versions that new containers get, for the node's annotation; "" for none."""
        return ",".join(state.version for state in self.limiters or () if state.version)

    def why_unlimited(self) -> str:
        """Why this node may serve nobody, by its limiters; "" while it may."""
        if self.limiters is None:
            return "what limits containers has not been looked at yet"
        return next((state.unready for state in self.limiters if state.unready), "")

    def _states(self) -> tuple[HandOverState, ...]:
        return tuple(owner.responder.hand_over() for owner in self._node.vendor_cards)

    def _known_answers(self) -> tuple[ContainerResponse, ...] | None:
        """What containers on record were given; None while one of them may have got anything."""
        if not self._is_read:
            return None
        entries, known = self._node.ledger.entries(), self._answers
        self._answers = {
            entry.answer: known[entry.answer] if entry.answer in known else answer_of(entry)
            for entry in entries
        }
        answers = tuple(answer for answer in self._answers.values() if answer is not None)
        return answers if len(answers) == len(self._answers) else None
