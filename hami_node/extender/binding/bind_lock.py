"""The node lock of a bind: one pod in flight on a node whose plugin can't tell pods apart.

HAMi's plugin looks for the pod that it serves by the lock, and removes whatever lock stands there
when it is done, up to seconds later (its retries don't look at the owner). So the lock alone does
not protect a pod: the next one is bound only once the plugin has served the one before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from hami_node.cluster.node_lock import EXPIRY_S, NodeLock
from hami_node.errors import LockHeld, NotFound
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.model import Node, Pod, Vendor
from hami_node.ports import Clock, Fence, Kube
from hami_node.vendors.request import request_of
from hami_node.wire import names

QUIET_S: Final = 6.0
"""How long a lock stays whose pod was served, refused or deleted: the plugin removes it itself. It
tries 6 times 0.1 s apart, with two requests each time, of which its client sends 5 a second: 3 s
at most where the API server answers at once. Doubled, because it may not."""
LATE_S: Final = 0.5
"""After this time the API server is queried again about a lock that the watch does not show."""
RECHECK_S: Final = 2.0
"""After this time it is queried whether the owner of a lock still needs it."""

_DONE: Final = (names.PHASE_SUCCESS, names.PHASE_FAILED)


class BindLock:
    """Locks nodes for binds, one bind at a time on each node. Thread-safe."""

    def __init__(
        self,
        state: ClusterState,
        kube: Kube,
        lock: NodeLock,
        clock: Clock,
        stop: threading.Event,
        *,
        wait_s: float = 10.0,
        expiry_s: float = EXPIRY_S,
    ) -> None:
        """Lock with `lock`.

        Args:
            state: which pod is where.
            kube: the API.
            lock: locks nodes.
            clock: measures waits.
            stop: ends waits.
            wait_s: longest wait for a lock that another pod holds.
            expiry_s: a pod that was not served for so long is waited for no longer.
        """
        self._state, self._kube, self._lock = state, kube, lock
        self._clock, self._stop = clock, stop
        self._wait_s, self._expiry_s = wait_s, expiry_s
        self._turns = BindQueue()

    def is_needed(self, node: Node, pod: Pod) -> bool:
        """True where the daemon can't tell pods apart without the lock."""
        if node.annotations.get(names.NODE_IDENTITY) == names.IDENTITY_POD_RESOURCES:
            return False
        request, locking = request_of(pod, self._state.rules.vendors), self._locking()
        return any(
            ask.vendor in locking for container in request.containers for ask in container.asks
        )

    def _locking(self) -> frozenset[Vendor]:
        """A plugin that does not read slots does not use the lock."""
        vendors = self._state.rules.vendors
        return frozenset(vendor.cards for vendor in vendors if vendor.keys.grants.to_allocate)

    @contextmanager
    def held(self, node: Node, pod: Pod, fence: Fence) -> Iterator[None]:
        """Hold the node's lock; no other bind on this node gets it before the block has ended.

        The lock stays afterwards: the node's plugin removes it.

        Raises:
            LockHeld: it was not freed in time.
            NotLeading: by the fence.
            KubeError: the API server refuses or can't be reached.
        """
        deadline_s = self._clock.monotonic() + self._wait_s

        def is_late() -> bool:
            fence()
            return self._stop.is_set() or self._clock.monotonic() >= deadline_s

        with self._turns.turn(node.name, is_late) as is_ours:
            if not is_ours:
                raise LockHeld(f"node {node.name} is locked, and other pods are waiting for it")
            self._acquire(node, pod, is_late)
            yield

    def release(self, node: str, pod: Pod, fence: Fence) -> None:
        """Remove the lock if this pod holds it; by then it may be the next leader's.

        Raises:
            NotLeading: by the fence.
            KubeError: the API server can't be reached.
        """
        fence()
        self._lock.release(node, pod.namespace, pod.name)

    def _acquire(self, node: Node, pod: Pod, is_late: Callable[[], bool]) -> None:

        def is_done(namespace: str, name: str) -> bool:
            return self._is_done(node.name, namespace, name)

        while True:
            before = self._seen(node.name, pod)
            if other := before[1]:
                why = LockHeld(f"the plugin of node {node.name} has still to serve pod {other}")
            else:
                now = self._state.node(node.name) or node
                try:
                    self._lock.acquire(node.name, pod.namespace, pod.name, is_done, seen=now)
                except LockHeld as e:
                    why = e
                else:
                    return
            if not self._changes(node.name, pod, before, is_late):
                raise why

    def _changes(
        self, node: str, pod: Pod, before: tuple[str | None, str], is_late: Callable[[], bool]
    ) -> bool:
        """Wait until the watch shows something else than before; False on timeout."""
        again_s = self._clock.monotonic() + (LATE_S if before == (None, "") else RECHECK_S)
        while not is_late():
            if self._stop.wait(LOOK_S):
                return False
            if self._seen(node, pod) != before or self._clock.monotonic() > again_s:
                return True
        return False

    def _seen(self, node: str, pod: Pod) -> tuple[str | None, str]:
        """The node's lock, and another pod that its plugin has still to serve."""
        state, seen = self._state, self._state.node(node)
        text = None if seen is None else seen.annotations.get(names.NODE_LOCK)
        return text, state.in_service(node, pod.uid, self._locking(), self._expiry_s)

    def _is_done(self, node: str, namespace: str, name: str) -> bool:
        """True if its pod no longer needs the lock: deleted, ended, served, failed, elsewhere."""
        try:
            pod = self._kube.read_pod(namespace, name)
        except NotFound:
            return True
        if pod.is_over or pod.annotations.get(names.POD_BIND_PHASE) in _DONE:
            return True
        return (pod.node_name or pod.annotations.get(names.POD_NODE)) != node


LOOK_S: Final = 0.05
"""How often a waiting call checks whether it may go on waiting; this makes no request."""
MAX_WAITING: Final = 16
"""Calls that may wait for one node: each holds a thread that binds on other nodes need."""


class BindQueue:
    """Thread-safe. Keeps nothing about nodes that no call waits for."""

    def __init__(self) -> None:
        """Start without waiting calls."""
        self._changed = threading.Condition()
        self._queues: dict[str, deque[object]] = {}

    @contextmanager
    def turn(self, node: str, is_late: Callable[[], bool]) -> Iterator[bool]:
        """Wait for our turn and keep it inside the block.

        Yields False if `is_late` became true before, or too many calls wait already. An exception
        from `is_late` ends the wait.
        """
        ticket = object()
        with self._changed:
            queue = self._queues.setdefault(node, deque())
            is_full = len(queue) >= MAX_WAITING
            if not is_full:
                queue.append(ticket)
        if is_full:
            yield False
            return
        try:
            yield self._comes(queue, ticket, is_late)
        finally:
            with self._changed:
                queue.remove(ticket)
                if not queue:
                    del self._queues[node]
                self._changed.notify_all()

    def waiting(self) -> int:
        """How many calls have their turn or wait for it."""
        with self._changed:
            return sum(len(queue) for queue in self._queues.values())

    def _comes(self, queue: deque[object], ticket: object, is_late: Callable[[], bool]) -> bool:
        while True:
            with self._changed:
                if queue[0] is ticket:
                    return True
                self._changed.wait(LOOK_S)
            if is_late():
                return False
