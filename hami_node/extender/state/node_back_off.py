"""Keeps pods away for a while from nodes that could not serve those sent there before.

Only what is the node's fault whatever the pod counts. What a plugin refuses may be the pod's own
doing: by that a tenant could close nodes to others. Nothing of it is stored.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Final

from hami_node.engine.filters import Rejection
from hami_node.logs import kv
from hami_node.model import Node, Pod
from hami_node.ports import Clock
from hami_node.text import cut
from hami_node.vendors.holding import has_grants
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.node_fault import Fault, bound_at, node_fault
from hami_node.wire.times import format_rfc3339

log = logging.getLogger(__name__)

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
"""A wait doubles from the first to the longest."""
FORGET_S: Final = 300.0
"""After this long without another fault the first wait is next. By then kube-scheduler has taken up
what waits by itself."""
MAX_DETAIL: Final = 200
"""Characters logged of what kubelet said."""


class BackOffReason(StrEnum):
    """Why a node is left out although it may have room."""

    BACKED_OFF = "NodeBackedOff"


_WORDS: Final[Mapping[Fault, str]] = MappingProxyType(
    {
        Fault.UNAVAILABLE: "its device plugin did not answer, or can't serve",
        Fault.UNHEALTHY: "kubelet found no healthy device there",
    }
)


@dataclass(slots=True, kw_only=True)
class _Wait:
    """A node that gets no pods until `until_s`, Unix seconds; after another fault for `next_s`.

    `is_missed` where a pod found no node while this one was closed.
    """

    fault: Fault
    until_s: float
    next_s: float
    is_missed: bool = False

    def is_on(self, now_s: float) -> bool:
        """A clock that was set back ends it."""
        return 0 < self.until_s - now_s <= LONGEST_S


class NodeBackOff:
    """What the watches show of pods that were not served. Not thread-safe: its owner has a lock."""

    def __init__(self, vendors: Sequence[VendorProtocol], clock: Clock) -> None:
        """No node is backed off."""
        self._vendors, self._clock = vendors, clock
        self._resources = frozenset(
            name for vendor in vendors for name in (*vendor.resources, *vendor.counted) if name
        )
        self._waits: dict[str, _Wait] = {}

    # -- changes from the watches ------------------------------------------------------------------
    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Note a pod that its node could not serve; of one that is new here, if that was lately."""
        if after is None or (fault := node_fault(after, self._resources)) is None:
            return
        if not has_grants(after, self._vendors):
            return
        now_s, node = self._clock.now(), after.node_name
        if before is None:
            bound_s = bound_at(after)
            if node not in self._waits and 0 <= now_s - bound_s <= FORGET_S:
                self._begin(after, fault, bound_s, FIRST_S)
        elif node_fault(before, self._resources) is None:
            wait = self._waits.get(node)
            if wait is None or not wait.is_on(now_s):  # else it was on its way already
                self._begin(after, fault, now_s, FIRST_S if wait is None else wait.next_s)

    def _begin(self, pod: Pod, fault: Fault, at_s: float, for_s: float) -> None:
        node, former = pod.node_name, self._waits.get(pod.node_name)
        wait = self._waits[node] = _Wait(
            fault=fault,
            until_s=at_s + for_s,
            next_s=min(2 * for_s, LONGEST_S),
            is_missed=former is not None and former.is_missed,
        )
        detail = f"pod {pod.key}: {cut(pod.refusal, MAX_DETAIL)}"
        log.warning("node_backed_off", extra=kv(node=node, why=_why(wait), last=detail))

    def node_changed(self, before: Node | None, after: Node | None) -> None:
        """Forget a node that is gone; one that can serve again is open."""
        if before is None:
            return
        if after is None or after.uid != before.uid:
            self._waits.pop(before.name, None)
        elif (wait := self._waits.get(after.name)) is not None and self._is_back(before, after):
            wait.until_s, wait.next_s = self._clock.now(), FIRST_S

    def _is_back(self, before: Node, after: Node) -> bool:
        is_refusing, was_refusing = (
            node.annotations.get(names.NODE_HAND_OVER, "").startswith(names.HAND_OVER_REFUSED)
            for node in (after, before)
        )
        return (was_refusing and not is_refusing) or any(
            before.allocatable.get(name, "0") == "0" != after.allocatable.get(name, "0")
            for vendor in self._vendors
            for name in vendor.counted
        )

    def begin_term(self) -> None:
        """Which pods the replica before this one refused is not known."""
        for wait in self._waits.values():
            wait.is_missed = True

    # -- decisions ---------------------------------------------------------------------------------
    def closed_of(self, candidates: Collection[str] | None) -> frozenset[str]:
        """Those of the candidates that get no pods now; None means all nodes."""
        now_s = self._clock.now()
        closed = frozenset(name for name, wait in self._waits.items() if wait.is_on(now_s))
        return closed if candidates is None or not closed else closed.intersection(candidates)

    def missed(self, nodes: Iterable[str]) -> bool:
        """A pod waits, and might have gone to one of these: it shall be tried when one opens.

        False if none of them is known here.
        """
        waits = [wait for node in nodes if (wait := self._waits.get(node)) is not None]
        for wait in waits:
            wait.is_missed = True
        return bool(waits)

    def take_opened(self, most: int) -> list[str]:
        """Some nodes that are open by now and that pods have missed; each is given once."""
        now_s = self._clock.now()
        opened = (
            name for name, wait in self._waits.items() if wait.is_missed and not wait.is_on(now_s)
        )
        found = list(islice(opened, most))
        for node in found:
            self._waits[node] = wait = self._waits.pop(node)  # others come first next time
            wait.is_missed = False
        return found

    # -- queries -----------------------------------------------------------------------------------
    def rejections(self) -> dict[str, Rejection]:
        """Why no pod is sent to some nodes now; nodes with the same reason share it."""
        now_s, known = self._clock.now(), dict[str, Rejection]()
        found: dict[str, Rejection] = {}
        for node, wait in self._waits.items():
            if wait.is_on(now_s):
                why = _why(wait)
                alike = Rejection(whole=BackOffReason.BACKED_OFF, never=why)
                found[node] = known.setdefault(why, alike)
        return found

    def counts(self) -> Mapping[str, int]:
        """How many nodes are closed now, by fault."""
        now_s = self._clock.now()
        return Counter(str(wait.fault) for wait in self._waits.values() if wait.is_on(now_s))

    def sweep(self) -> None:
        """Drop what no longer counts."""
        now_s = self._clock.now()
        for node, wait in tuple(self._waits.items()):
            if abs(now_s - wait.until_s) > FORGET_S:
                del self._waits[node]


def _why(wait: _Wait) -> str:
    """Nothing that a tenant wrote."""
    until = format_rfc3339(wait.until_s)
    return f"{_WORDS[wait.fault]}: no pod is sent there until {until}"
