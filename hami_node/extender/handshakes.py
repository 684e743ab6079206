"""The regular look at the nodes' handshakes: ask, listen, give up, take back.

A node whose plugin ends is known at once, by its allocatable. The handshake tells the rest: a
daemon that runs and no longer reaches the API server. Only nodes of 2.4 to 2.7 (csv) are judged by
it, for plugins of 2.8 and later never answer; and only after a first word of theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hami_node.errors import KubeError, WireError
from hami_node.extender.state import ClusterState
from hami_node.logs import kv
from hami_node.model import Node, Vendor
from hami_node.ports import Clock, Kube
from hami_node.wire import names
from hami_node.wire.handshake import (
    Handshake,
    HandshakeKind,
    decode_handshake,
    encode_deleted,
    encode_requesting,
)

log = logging.getLogger(__name__)

SILENT_S: Final = 60.0
"""A question that stands unanswered for so long means that the daemon is gone."""
NEURON_SILENT_S: Final = 90.0
"""A Neuron daemon reports every 30 s, asked or not."""
ANSWER_EVERY_S: Final = 600.0
"""Daemons of 2.8 and later, ours among them, only want to know that a scheduler reads them."""
MAX_WRITES: Final = 250
"""Nodes written to in one look: a large cluster's turn comes a few looks later."""


@dataclass(slots=True)
class _Talk:
    """What was heard of one node. Times are monotonic seconds.

    Attributes:
        text: the handshake that stands there, since `since_s`.
        neuron: the same of Neuron, since `neuron_since_s`.
        has_reported: a word of the node's own was seen.
        asked_s: when we last asked.
    """

    text: str = ""
    since_s: float = 0.0
    neuron: str = ""
    neuron_since_s: float = 0.0
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
        self._talks: dict[str, _Talk] = {}

    def look(self) -> None:
        """One pass over all nodes; a node that can't be written costs that node only."""
        nodes = self._state.nodes()
        left = MAX_WRITES
        self._talks = {node.name: self._talks.get(node.name, _Talk()) for node in nodes}
        for node in nodes:
            talk = self._talks[node.name]
            self._listen(node, talk)
            self._judge_neuron(node, talk)
            text = self._next_word(node, talk, may_ask=left > 0)
            if text and self._is_leading():
                left -= 1
                self._say(node, text)

    def _listen(self, node: Node, talk: _Talk) -> None:
        now_s = self._clock.monotonic()
        text = node.annotations.get(names.NODE_HANDSHAKE, "")
        if text != talk.text:
            talk.text, talk.since_s = text, now_s
        neuron = node.annotations.get(names.NODE_NEURON_HANDSHAKE, "")
        if neuron != talk.neuron:
            talk.neuron, talk.neuron_since_s = neuron, now_s

    def _judge_neuron(self, node: Node, talk: _Talk) -> None:
        if not talk.neuron:
            return  # no daemon of ours: kubelet's numbers count
        silent_s = self._clock.monotonic() - talk.neuron_since_s
        if silent_s > NEURON_SILENT_S:
            why = f"the node's daemon has not reported for {silent_s:.0f} s"
            self._state.give_up(node.name, Vendor.AWS_NEURON, why)
        else:
            self._state.take_back(node.name, Vendor.AWS_NEURON)

    def _next_word(self, node: Node, talk: _Talk, *, may_ask: bool) -> str:
        """What to write on the node; "" for nothing."""
        word = _word(talk.text)
        register = node.annotations.get(names.NODE_REGISTER, "").strip()
        if word is None or not register:
            return ""
        now_s = self._clock.monotonic()
        is_judged = not register.startswith(("[", "{"))
        if word.kind is HandshakeKind.REPORTED:
            talk.has_reported = True
            self._state.take_back(node.name, Vendor.NVIDIA)
            is_early = talk.asked_s is not None and now_s - talk.asked_s < ANSWER_EVERY_S
            if not is_judged and (is_early or not may_ask):
                return ""
            talk.asked_s = now_s
            return encode_requesting(self._clock.now())
        silent_s = now_s - talk.since_s
        if is_judged and talk.has_reported and silent_s > SILENT_S:
            talk.has_reported = False
            why = f"the node's plugin has not answered for {silent_s:.0f} s"
            self._state.give_up(node.name, Vendor.NVIDIA, why)
            return encode_deleted(self._clock.now())
        return ""

    def _say(self, node: Node, text: str) -> None:
        try:
            self._kube.merge_patch_node(node.name, {names.NODE_HANDSHAKE: text})
        except KubeError as e:
            log.debug("handshake_not_written", extra=kv(node=node.name, error=str(e)))


def _word(text: str) -> Handshake | None:
    try:
        return decode_handshake(text) if text else None
    except WireError as e:
        log.debug("handshake_unreadable", extra=kv(error=str(e)))
        return None
