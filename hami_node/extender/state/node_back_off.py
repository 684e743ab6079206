"""Keeps pods away for a while from nodes that did not serve those sent there before."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from hami_node.engine.back_off import BackOff, Hold
from hami_node.engine.filters import Rejection
from hami_node.inspection.back_off import (
    in_words,
    note,
    outcome_in,
    rejections_of,
    resources_of,
    whose_of,
)
from hami_node.logs import kv
from hami_node.model import Node, Pod
from hami_node.ports import Clock
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.outcome import bound_at

log = logging.getLogger(__name__)


class NodeBackOff:
    """What the watches show of pods that were not served. Not thread-safe: its owner has a lock."""

    def __init__(self, vendors: Sequence[VendorProtocol], clock: Clock) -> None:
        """No node is backed off."""
        self._vendors, self._clock = vendors, clock
        self._resources = resources_of(vendors)
        self._book = BackOff()

    # -- changes from the watches ------------------------------------------------------------------
    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Note how the serving of a pod ended; of one that is new here, only if that was lately."""
        if after is not None and names.POD_BIND_PHASE in after.annotations:
            self._note(before, after)
        pod = after or before
        if pod is not None and (after is None or pod.is_over):
            self._book.ended(pod.uid)

    def _note(self, before: Pod | None, after: Pod) -> None:
        outcome = outcome_in(after, self._vendors, self._resources)
        if outcome is None:
            return
        now_s = self._clock.now()
        if before is None:
            at_s = min(bound_at(after), now_s)
        elif outcome_in(before, self._vendors, self._resources) == outcome:
            return
        else:
            at_s = now_s
        hold = note(self._book, after, outcome, at_s, now_s)
        if hold is not None:
            why = in_words(hold, now_s)
            log.warning("node_backed_off", extra=kv(node=hold.node, to=hold.breadth, why=why))

    def node_changed(self, before: Node | None, after: Node | None) -> None:
        """Forget a node that is gone; one whose plugin is back or can serve again may be tried."""
        if before is None:
            return
        if after is None or after.uid != before.uid:
            self._book.forget(before.name)
        elif self._is_renewed(before, after):
            self._book.renewed(after.name, self._clock.now())

    def _is_renewed(self, before: Node, after: Node) -> bool:
        is_refusing, was_refusing = (
            node.annotations.get(names.NODE_HAND_OVER, "").startswith(names.HAND_OVER_REFUSED)
            for node in (after, before)
        )
        if was_refusing and not is_refusing:
            return True
        if before.allocatable == after.allocatable:
            return False
        return any(
            before.allocatable.get(name, "0") == "0" != after.allocatable.get(name, "0")
            for vendor in self._vendors
            for name in vendor.counted
        )

    # -- decisions ---------------------------------------------------------------------------------
    def open_to(
        self, pod: Pod, nodes: Collection[str] | None, all_nodes: Iterable[str]
    ) -> Collection[str] | None:
        """Those of the candidates that the pod may be sent to; a node that it tried is let go."""
        self._book.ended(pod.uid)
        closed = self._closed_to(pod)
        if not closed:
            return nodes
        return [name for name in (all_nodes if nodes is None else nodes) if name not in closed]

    def sent(self, pod: Pod, node: str) -> None:
        """The pod goes to this node."""
        self._book.sent(node, whose_of(pod), pod.uid, self._clock.now())

    def rejections(self, pod: Pod) -> Mapping[str, Rejection]:
        """Why the pod may not be sent to some nodes now."""
        return rejections_of(self._closed_to(pod), self._clock.now())

    def _closed_to(self, pod: Pod) -> dict[str, Hold]:
        return self._book.closed_to(whose_of(pod), pod.uid, self._clock.now())

    # -- queries -----------------------------------------------------------------------------------
    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many waits go on, by fault and to how many the node is closed."""
        now_s = self._clock.now()
        going_on = (hold for hold in self._book.holds() if hold.is_closed_to("", now_s))
        return Counter((str(hold.fault), str(hold.breadth)) for hold in going_on)

    def sweep(self) -> None:
        """Drop what no longer counts."""
        self._book.sweep(self._clock.now())
