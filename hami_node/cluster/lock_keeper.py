"""Looks after the lock of our own node: frees what we served, clears what nobody needs any more."""

from __future__ import annotations

import logging
import threading
from typing import Final

from hami_node.cluster.node_lock import NodeLock
from hami_node.errors import KubeError, NotFound
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.ports import Clock, Kube, Watched
from hami_node.wire.names import NODE_LOCK, PHASE_FAILED, PHASE_SUCCESS, POD_BIND_PHASE

log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 10.0
GRACE_S: Final = 10.0
"""A younger lock may belong to a bind that is still on its way; its pod says nothing yet."""


class LockKeeper:
    """The lock of one node. Reads it from the watch: a free lock costs no request."""

    def __init__(
        self, node_name: str, kube: Kube, watched: Watched, clock: Clock, lock: NodeLock
    ) -> None:
        """Keep the lock of `node_name`."""
        self._node_name, self._kube, self._watched = node_name, kube, watched
        self._clock, self._lock = clock, lock
        self._seen: tuple[str, float] | None = None
        self._cleared = 0

    @property
    def cleared_count(self) -> int:
        """Locks that nobody needed any more and that we removed."""
        return self._cleared

    def release(self, pod: Pod) -> bool:
        """Free the lock if this very pod owns it; True if we did.

        Raises:
            KubeError: the API server can't be asked; `run` will see to it.
        """
        return self._lock.release(
            self._node_name, pod.namespace, pod.name, seen=self._watched.node()
        )

    def owner(self) -> str:
        """`namespace/name` of the pod that the lock names; "" when it is free or names none."""
        node = self._watched.node()
        held = self._lock.read(node) if node is not None else None
        if held is None or held.is_expired or not held.owner.name:
            return ""
        return f"{held.owner.namespace}/{held.owner.name}"

    def run(self, stop: threading.Event) -> None:
        """Look at the lock every ten seconds until stopped; a failure waits for the next look."""
        while not stop.is_set():
            try:
                self.check()
            except KubeError as error:
                log.warning("lock_not_checked", extra=kv(node=self._node_name, error=str(error)))
            stop.wait(CHECK_EVERY_S)

    def check(self) -> bool:
        """Remove the lock if it expired, or its pod is gone, over or served; True if we did.

        Raises:
            KubeError: the API server can't be asked.
        """
        node = self._watched.node()
        text = node.annotations.get(NODE_LOCK) if node is not None else None
        if node is None or text is None:
            self._seen = None
            return False
        now_s = self._clock.monotonic()
        if self._seen is None or self._seen[0] != text:
            self._seen = (text, now_s)
        is_young = now_s - self._seen[1] < GRACE_S
        if not self._lock.clear_stale(node, _nobody if is_young else self._is_gone):
            return False
        self._cleared += 1
        log.warning("lock_cleared", extra=kv(node=node.name, lock=text))
        return True

    def _is_gone(self, namespace: str, name: str) -> bool:
        """Whether a pod has no use for the lock of this node."""
        try:
            pod = self._watched.pod(namespace, name) or self._kube.read_pod(namespace, name)
        except NotFound:
            return True
        is_elsewhere = pod.node_name not in ("", self._node_name)
        phase = pod.annotations.get(POD_BIND_PHASE)
        return pod.is_over or is_elsewhere or phase in (PHASE_SUCCESS, PHASE_FAILED)


def _nobody(_namespace: str, _name: str) -> bool:
    return False
