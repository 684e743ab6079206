"""What this daemon publishes on the node object, whatever the cards, and what it is told there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from hami_node.logs import kv
from hami_node.model import Node, Uuid
from hami_node.node.report.hand_overs import HandOvers
from hami_node.node.resizes import resize_vendors, words_of
from hami_node.node.state import NodeState
from hami_node.vendors.on_node.publication import Publication
from hami_node.wire import names
from hami_node.wire.closed import encode_closed

log = logging.getLogger(__name__)


class NodeMarks(Publication):
    """Marks for schedulers and people; and an operator's word that cards need no reset any more.

    Whoever may edit nodes may say that; pods can't. It is taken off the node, and acted on once,
    however often that is tried. A word that came too late is for the next daemon.
    """

    def __init__(
        self, node: NodeState, hand_overs: HandOvers, closed: Callable[[], Mapping[Uuid, str]]
    ) -> None:
        """`closed`: why cards are closed although they work."""
        self._state, self._hand_overs, self._closed = node, hand_overs, closed
        self._is_able = bool(resize_vendors(node))
        self._cleared: str | None = None

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The marks as they should be; words of resizes not before the record is read."""
        del now
        state, hand_overs = self._state, self._hand_overs
        self._clear(node.annotations.get(names.NODE_CLEAR_ERRORS))
        sick = {card.uuid: card.unhealthy_reason for card in state.cards() if card.unhealthy_reason}
        marks = {
            names.NODE_IDENTITY: (
                names.IDENTITY_POD_RESOURCES if state.kubelet.is_readable() else None
            ),
            names.NODE_LIMITER: hand_overs.limiter_versions() or None,
            names.NODE_SIMULATED: "true" if state.is_simulated else None,
            names.NODE_HAND_OVER: hand_overs.summary() or None,
            names.NODE_CLOSED_CARDS: encode_closed({**sick, **self._closed()}),
            names.NODE_CLEAR_ERRORS: None,
        }
        if not self._is_able:
            marks[names.NODE_RESIZED] = None
        elif state.recorded.is_set():
            marks[names.NODE_RESIZED] = words_of(state.ledger.entries())
        return marks

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """Allocate is no longer answered, nor is it known who holds what: these marks go."""
        del node
        gone = (names.NODE_IDENTITY, names.NODE_CLOSED_CARDS, names.NODE_HAND_OVER)
        return dict.fromkeys(gone)

    def _clear(self, text: str | None) -> None:
        if text is not None and text != self._cleared:
            words = {word.strip() for word in text.split(",")} - {""}
            named = None if names.CLEAR_ALL in words else frozenset(map(Uuid, words))
            owners = self._state.vendor_cards
            cleared = {uuid for owner in owners for uuid in owner.backend.clear_errors(named)}
            log.warning("card_errors_cleared", extra=kv(cards=sorted(cleared), by="an operator"))
            unknown = sorted((named or frozenset()) - cleared)
            if unknown:
                log.warning(
                    "card_errors_not_found", extra=kv(cards=[uuid[:64] for uuid in unknown])
                )
        self._cleared = text
