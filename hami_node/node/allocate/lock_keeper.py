"""Frees the node lock when its pod no longer needs it: it is served, has ended or was deleted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from hami_node.clock import Deadline
from hami_node.cluster.node_lock import NodeLock
from hami_node.errors import KubeError, NotFound
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.holdings.live_use import LiveUse
from hami_node.ports import Clock, DaemonKube, Watched
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.lock import decode_lock

log = logging.getLogger(__name__)

INTERVAL_S: Final = 30.0
RETRY_S: Final = 2.0
SETTLE_S: Final = 1.0
"""A lock younger than this may belong to a running Allocate, which frees it itself."""


class LockKeeper:
    """Watches our node's lock. What an Allocate owes the lock is paid through it as well."""

    def __init__(
        self,
        *,
        lock: NodeLock,
        kube: DaemonKube,
        watched: Watched,
        live: LiveUse,
        vendors: Sequence[VendorProtocol],
        node_name: str,
        clock: Clock,
        on_removed: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Wire the parts. `on_removed` is called with the reason why a lock was removed."""
        self._lock, self._node_name = lock, node_name
        self._kube = kube
        self._watched = watched
        self._live = live
        self._vendors = tuple(vendors)
        self._clock, self._on_removed = clock, on_removed
        self._wake = threading.Event()

    def owner_now(self, deadline: Deadline) -> str:
        """`namespace/name` of the pod whose lock the node has now; "" without one in force.

        Raises:
            KubeError: the API server refuses or can't be reached.
        """
        held = self._lock.read(self._kube.within(deadline).read_node(self._node_name))
        if held is None or held.is_expired or not held.owner.name:
            return ""
        return f"{held.owner.namespace}/{held.owner.name}"

    def text_of(self, pod: Pod) -> str:
        """The lock of exactly this pod, as the watch shows it; "" where it shows none.

        A lock that the watch does not show yet is removed by `run` later.
        """
        text = self._text() or ""
        return text if text and decode_lock(text).is_pod(pod.namespace, pod.name) else ""

    def remove(self, text: str) -> None:
        """Remove the lock if it is still this one; a later lock, of whichever pod, stays.

        Raises:
            KubeError: the API server refuses or can't be reached.
        """
        if self._lock.remove_exactly(self._node_name, text):
            self._on_removed("served")

    def wake(self) -> None:
        """The node or a pod changed: check now."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Check after every change and periodically until stopped."""
        wait_s = INTERVAL_S
        while not stop.is_set():
            self._clock.wait(self._wake, wait_s)
            self._wake.clear()
            if not self._is_settled(stop):
                continue
            try:
                self.look()
                wait_s = INTERVAL_S
            except KubeError as e:
                log.warning("lock_not_checked", extra=kv(error=str(e)))
                wait_s = RETRY_S
                self._clock.wait(stop, RETRY_S)

    def _is_settled(self, stop: threading.Event) -> bool:
        """True if the lock stays the same for the settling time; a new lock wakes us again."""
        before = self._text()
        if before is None or self._clock.wait(stop, SETTLE_S):
            return False
        return self._text() == before

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
            self._on_removed("stale")

    def _is_done(self, namespace: str, name: str) -> bool:
        """True if the pod no longer needs the lock: ended, fully served, refused or deleted."""
        for pod in self._live.pods():
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
        held = [vendor.held_by(pod) for vendor in self._vendors]
        is_any_served = any(grants.is_served for grants in held)
        return is_any_served and not any(grants.is_any_waiting or grants.problem for grants in held)
