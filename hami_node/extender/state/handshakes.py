"""The regular check of the nodes' handshakes: request, read, give up, take back.

The end of a node's plugin shows at once in the node's allocatable. The handshake shows the rest: a
daemon that runs but no longer reaches the API server. A vendor's daemons are judged by it only
after their first report, and only where silence means something (`VendorProtocol.is_judged`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hami_node.engine.card_rules import is_overcommitted
from hami_node.errors import KubeError, WireError
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.logs import kv
from hami_node.model import Node
from hami_node.ports import Clock, Kube
from hami_node.vendors.offer import is_selected, registered_cards
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.handshake import (
    Handshake,
    HandshakeKind,
    decode_handshake,
    encode_deleted,
    encode_read_by,
    encode_requesting,
)

log = logging.getLogger(__name__)

ANSWER_EVERY_S: Final = 600.0
"""Daemons of 2.8 and later, ours included, only need to see that a scheduler reads them."""
MAX_WRITES: Final = 250
"""Nodes written in one pass: the rest of a large cluster follows in the next passes."""
WRITING_S: Final = 5.0
"""No node is written later in a pass: a write that hangs takes seconds."""


@dataclass(slots=True)
class _Exchange:
    """The handshakes seen of one vendor on one node. Times are monotonic seconds.

    Attributes:
        text: the handshake annotation, unchanged since `since_s`.
        said: what stands on the node that is not ours, when `given_up` was decided.
        is_given_up: the vendor's cards are not offered because its daemon is silent.
        has_reported: a report of the node itself was seen.
        asked_s: when we last sent a request.
    """

    text: str = ""
    since_s: float = 0.0
    said: tuple[str, ...] = ()
    is_given_up: bool = False
    has_reported: bool = False
    asked_s: float | None = None


class HandshakeKeeper:
    """One `look` every 15 s; not thread-safe."""

    def __init__(
        self,
        state: ClusterState,
        kube: Kube,
        clock: Clock,
        is_leading: Callable[[], bool] = lambda: True,
    ) -> None:
        """Judge the nodes of `state`; write only while leading."""
        self._state, self._kube, self._clock = state, kube, clock
        self._is_leading = is_leading
        self._vendors = [vendor for vendor in state.rules.vendors if vendor.keys.handshake]
        self._exchanges: dict[tuple[str, str], _Exchange] = {}
        self._last = ""

    def look(self) -> None:
        """One pass over all nodes, in turns; a failed write affects that node only."""
        labels = self._state.rules.node_labels
        nodes = [node for node in self._state.nodes() if is_selected(node, labels)]
        nodes.sort(key=lambda node: (node.name <= self._last, node.name))
        keys = [(node.name, vendor.keys.handshake) for node in nodes for vendor in self._vendors]
        former, self._exchanges = self._exchanges, {}
        for key in keys:
            self._exchanges[key] = former.pop(key) if key in former else _Exchange()
        self._forget(former)
        left, end_s = MAX_WRITES, self._clock.monotonic() + WRITING_S
        for node in nodes:
            has_time = self._clock.monotonic() < end_s
            may_ask = has_time and left > 0
            texts = {}
            for vendor in self._vendors:
                exchange = self._read(node, vendor)
                if not vendor.asks_handshakes:
                    self._judge(node, vendor, exchange)
                    continue
                if text := self._next_text(node, vendor, exchange, may_ask=may_ask):
                    texts[vendor.keys.handshake] = text
                is_unmarked = may_ask and names.NODE_READ_BY not in node.annotations
                if (text or is_unmarked) and self._is_read(node, vendor, exchange):
                    texts[names.NODE_READ_BY] = self._mark(node, text)
            if texts and has_time and self._is_leading():
                left -= 1
                self._last = node.name
                self._write(node, texts)

    def _forget(self, exchanges: Mapping[tuple[str, str], _Exchange]) -> None:
        """Nodes that are gone or no longer selected: judged again if they come back."""
        vendors = {vendor.keys.handshake: vendor.cards for vendor in self._vendors}
        for (node, key), exchange in exchanges.items():
            if exchange.is_given_up:
                self._state.take_back(node, vendors[key])

    def _read(self, node: Node, vendor: VendorProtocol) -> _Exchange:
        key = vendor.keys.handshake
        exchange, text = self._exchanges[node.name, key], node.annotations.get(key, "")
        if text != exchange.text:
            exchange.text, exchange.since_s = text, self._clock.monotonic()
        if exchange.is_given_up and exchange.said != _said(node, vendor):
            # another plugin, another version of it, or none at all: judged again
            exchange.is_given_up = exchange.has_reported = False
            self._state.take_back(node.name, vendor.cards)
        return exchange

    def _give_up(self, node: Node, vendor: VendorProtocol, exchange: _Exchange, why: str) -> None:
        exchange.is_given_up, exchange.said = True, _said(node, vendor)
        self._state.give_up(node.name, vendor.cards, why)

    def _judge(self, node: Node, vendor: VendorProtocol, exchange: _Exchange) -> None:
        """Give up daemons that report without a request, and no longer do."""
        if not exchange.text or not vendor.is_judged(node):
            return  # not our daemon: the rest of the node object counts
        silent_s = self._clock.monotonic() - exchange.since_s
        if silent_s > vendor.silent_s:
            why = f"the node's daemon has not reported for {silent_s:.0f} s"
            self._give_up(node, vendor, exchange, why)

    def _next_text(
        self, node: Node, vendor: VendorProtocol, exchange: _Exchange, *, may_ask: bool
    ) -> str:
        """What to write on the node for daemons that answer requests; "" for nothing."""
        handshake = _decoded(exchange.text, vendor.keys.handshake)
        if handshake is None or not node.annotations.get(vendor.keys.register, "").strip():
            return ""
        now_s, is_judged = self._clock.monotonic(), vendor.is_judged(node)
        if handshake.kind is HandshakeKind.REPORTED:
            exchange.has_reported = True
            is_early = exchange.asked_s is not None and now_s - exchange.asked_s < ANSWER_EVERY_S
            if not is_judged and (is_early or not may_ask):
                return ""
            exchange.asked_s = now_s
            return encode_requesting(self._clock.now())
        silent_s = now_s - exchange.since_s
        if is_judged and exchange.has_reported and silent_s > vendor.silent_s:
            exchange.has_reported = False
            why = f"the node's plugin has not answered for {silent_s:.0f} s"
            self._give_up(node, vendor, exchange, why)
            return encode_deleted(self._clock.now())
        return ""

    @staticmethod
    def _is_read(node: Node, vendor: VendorProtocol, exchange: _Exchange) -> bool:
        """True for a daemon that reports cards."""
        handshake = _decoded(exchange.text, vendor.keys.handshake)
        is_report = handshake is not None and handshake.kind is HandshakeKind.REPORTED
        return is_report and bool(registered_cards(node, [vendor]))

    def _mark(self, node: Node, question: str) -> str:
        """That we read the node, and with a question how we count init containers.

        Not before they all have room: whoever placed pods before us may have counted less, and
        the daemon would refuse those that it has yet to serve.
        """
        cards = self._state.cards_of(node.name).values()
        is_full = not cards or any(map(is_overcommitted, cards))
        return encode_read_by(question, counts_inits=bool(question) and not is_full)

    def _write(self, node: Node, texts: Mapping[str, str]) -> None:
        try:
            self._kube.merge_patch_node(node.name, texts)
        except KubeError as e:
            log.debug("handshake_not_written", extra=kv(node=node.name, error=str(e)))


def _said(node: Node, vendor: VendorProtocol) -> tuple[str, ...]:
    """What the node's side has written, and whether it is judged by that; not what we wrote."""
    notes, key = node.annotations, vendor.keys.handshake
    handshake = _decoded(notes.get(key, ""), key)
    is_theirs = handshake is None or handshake.kind is HandshakeKind.REPORTED
    spoken = notes.get(key, "") if is_theirs else "asked"
    return (spoken, notes.get(vendor.keys.register, ""), str(vendor.is_judged(node)))


def _decoded(text: str, key: str) -> Handshake | None:
    try:
        return decode_handshake(text, key) if text else None
    except WireError as e:
        log.debug("handshake_unreadable", extra=kv(error=str(e)))
        return None
