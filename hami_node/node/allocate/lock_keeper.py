"""Frees the node lock when its pod no longer needs it: it is served, has ended or was deleted."""

from __future__ import annotations

import logging
import math
from typing import Final

from hami_node.clock import Deadline
from hami_node.cluster.node_lock import NodeLock
from hami_node.errors import NotFound
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.state import NodeState
from hami_node.wire import names
from hami_node.wire.lock import decode_lock

log = logging.getLogger(__name__)

INTERVAL_S: Final = 30.0
SETTLE_S: Final = 1.0
"""A lock younger than this may belong to a running Allocate, which frees it itself."""


class LockKeeper:
    """Watches our node's lock: a step of the loop."""

    def __init__(self, node: NodeState) -> None:
        """Of this daemon's node."""
        self._node, self._kube, self._watched = node, node.kube, node.view
        self._node_name, self._clock = node.settings().node_name, node.clock
        self._lock = NodeLock(node.kube, node.clock)
        self._released = ""
        self._looked_s = -math.inf
        self._seen: tuple[str, float] = "", -math.inf
        """The lock, and since when it is this one."""

    def owner_now(self, deadline: Deadline) -> str:
        """`namespace/name` of the pod whose lock the node has now; "" without one in force.

        Raises:
            KubeError: the API server refuses or can't be reached.
        """
        held = self._lock.read(self._kube.within(deadline).read_node(self._node_name))
        if held is None or held.is_expired or not held.owner.name:
            return ""
        return f"{held.owner.namespace}/{held.owner.name}"

    def _text_of(self, pod: Pod) -> str:
        """The lock of exactly this pod, as the watch shows it; "" where it shows none."""
        text = self._text() or ""
        return text if text and decode_lock(text).is_pod(pod.namespace, pod.name) else ""

    def release(self, pod: Pod) -> None:
        """The pod needs its lock no more: `watch` removes exactly that one, at once.

        A lock that the watch does not show yet, and one that can't be removed now, is found later.
        """
        text = self._text_of(pod)
        if text:
            self._released = text
            self._node.wake("locks")

    def watch(self) -> float | None:
        """Check a lock that stays the same for the settling time; seconds until the next check.

        Raises:
            KubeError: the API server refuses or can't be reached.
        """
        if released := self._released:
            if self._lock.remove_exactly(self._node_name, released):
                self._node.metrics.locks_removed.count("served")
            if self._released == released:
                self._released = ""
        text, now_s = self._text(), self._clock.monotonic()
        if text is None:
            self._seen = "", -math.inf
            return None
        if text != self._seen[0]:
            self._seen = text, now_s
        left_s = max(self._seen[1], self._looked_s) + SETTLE_S - now_s
        if left_s > 0:
            return left_s
        self._looked_s = now_s
        self.look()
        return INTERVAL_S

    def _text(self) -> str | None:
        node = self._watched.node()
        return node.annotations.get(names.NODE_LOCK) if node is not None else None

    def look(self) -> None:
        """Remove a lock that is no longer needed.

        Raises:
            KubeError: the API server refuses or can't be reached.
        """
        node = self._watched.node()
        if node is None or not self._watched.is_synced():
            return
        if self._lock.clear_stale(node, self._is_done):
            log.info(
                "lock_removed", extra=kv(node=node.name, lock=node.annotations[names.NODE_LOCK])
            )
            self._node.metrics.locks_removed.count("stale")

    def _is_done(self, namespace: str, name: str) -> bool:
        """True if the pod no longer needs the lock: ended, fully served, refused or deleted."""
        for pod in self._node.live.pods():
            if (pod.namespace, pod.name) == (namespace, name) and not self._needs_none(pod):
                return False
        try:
            # The lock contains no uid: the watch may show an older pod of that name.
            return self._needs_none(self._kube.read_pod(namespace, name))
        except NotFound:
            return True

    def _needs_none(self, pod: Pod) -> bool:
        if pod.is_over or pod.annotations.get(names.POD_BIND_PHASE) == names.PHASE_FAILED:
            return True
        held = [vendor.held_by(pod) for vendor in self._node.served]
        is_any_served = any(grants.is_served for grants in held)
        return is_any_served and not any(grants.is_any_waiting or grants.problem for grants in held)
