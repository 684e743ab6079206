"""POST /bind: lock the node where necessary, bind the pod; undo everything on failure.

The Binding carries the phase by which the node's daemon expects the pod: the API server stores
both or neither (annotations of a Binding are copied to the pod), so no pod is left half bound.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from hami_node.cluster.node_lock import NodeLock
from hami_node.errors import (
    Conflict,
    HamiError,
    KubeError,
    LockHeld,
    NotFound,
    NotLeading,
    WireError,
)
from hami_node.extender.bind_queue import LOOK_S, Turns
from hami_node.extender.filter import Outlets
from hami_node.extender.http.messages import BindArgs, decode_bind_args, encode_error
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.counted_pod import reservation_marks
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.logs import kv
from hami_node.model import Node, Pod
from hami_node.ports import Clock, EventNote, ExtenderKube
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import request_of
from hami_node.wire import names

log = logging.getLogger(__name__)

SUCCEEDED: Final = "BindingSucceed"
FAILED: Final = "BindingFailed"
"""Reasons of the Events, as HAMi names them."""
LATE_S: Final = 0.5
"""After this time the API server is queried again about a lock that the watch does not show."""
RECHECK_S: Final = 2.0
"""After this time it is queried whether the owner of a lock still needs it."""

_DONE: Final = (names.PHASE_SUCCESS, names.PHASE_FAILED)

FindPod = Callable[[str, str], Pod | None]
"""Finds a pod by namespace and name in the watch's cache."""


class BindRefusedError(HamiError):
    """The pod can't be bound as requested; the text gives the reason and a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindParts:
    """The dependencies of binding.

    Attributes:
        kube: the API.
        state: which pod holds what.
        writer: writes reservations.
        lock: locks nodes.
        find_pod: looks up the watch's cache.
        clock: measures waits.
        stop: ends waits.
        scheduler_name: pods without cards are bound for this scheduler only.
        lock_wait_s: longest wait for a lock that another pod holds.
    """

    kube: ExtenderKube
    state: ClusterState
    writer: ReservationWriter
    lock: NodeLock
    find_pod: FindPod
    clock: Clock
    stop: threading.Event
    scheduler_name: str
    lock_wait_s: float = 10.0


class PodBinder:
    """Answers /bind. Thread-safe; calls for different pods run concurrently."""

    def __init__(self, parts: BindParts, outlets: Outlets) -> None:
        """Use `parts`, report to `outlets`."""
        self._parts, self._out, self._turns = parts, outlets, Turns()

    def answer(self, body: bytes) -> bytes:
        """The answer to one call.

        Raises:
            WireError: the body is not a bind call.
            NotLeading: another replica decides.
        """
        self._out.require_lead()
        args = decode_bind_args(body)
        try:
            self.bind(args)
        except (BindRefusedError, LockHeld, KubeError) as e:
            self._out.on_result("lock-held" if isinstance(e, LockHeld) else "failed")
            self._notify(args, FAILED, str(e))
            log.warning("bind_failed", extra=kv(pod=args.key, node=args.node, error=str(e)))
            return encode_error(str(e))
        self._out.on_result("bound")
        self._notify(args, SUCCEEDED, f"Successfully binding node [{args.node}] to {args.key}")
        return encode_error("")

    def bind(self, args: BindArgs) -> None:
        """Bind one pod.

        Raises:
            BindRefusedError: there is no reservation to bind.
            LockHeld: the node's lock was not freed in time.
            KubeError: the API server refuses or can't be reached.
            NotLeading: another replica decides.
        """
        pod = self._pod(args)
        if pod.node_name:
            if pod.node_name == args.node:
                return  # by an earlier call whose response was lost
            raise BindRefusedError(f"pod {args.key} is already bound to node {pod.node_name}")
        if pod.is_being_deleted:
            raise BindRefusedError(f"pod {args.key} is being deleted: it can't be bound any more")
        if not self._asks(pod):
            self._bind_plain(pod, args)
            return
        with self._parts.state.binding(args.uid) as is_free:
            if not is_free:
                raise BindRefusedError(f"pod {args.key} is filtered or bound by another call")
            self._bind_asking(self._parts.state.latest(args.uid) or pod, args)

    def _bind_asking(self, pod: Pod, args: BindArgs) -> None:
        """Bind a pod that asks for cards; no other call decides about it meanwhile."""
        if pod.node_name == args.node:
            return  # the other call was faster
        node = self._reserved_node(pod, args)
        needs_lock = self._needs_lock(node, pod)
        try:
            if needs_lock:
                self._lock(node, pod)
            self._out.require_lead()
        except NotLeading:
            # lock and reservation may already belong to the next leader, which binds the same pod
            self._parts.state.release(args.uid)
            raise
        except BaseException as e:
            # if the response to the locking was lost, the lock may be ours as well
            self._undo(pod, args.node, is_locked=not isinstance(e, LockHeld))
            raise
        self._bind_reserved(pod, args, is_locked=needs_lock)

    def _bind_plain(self, pod: Pod, args: BindArgs) -> None:
        """Bind a pod without cards, where kube-scheduler has no list of managedResources.

        Only if it names our scheduler: callers are not authenticated, and a binding bypasses
        taints and free resources.
        """
        if pod.scheduler_name != self._parts.scheduler_name:
            why = "asks for no cards and names another scheduler: its own scheduler has to bind it"
            raise BindRefusedError(f"pod {args.key} {why}")
        self._parts.kube.bind_pod(replace(pod, resource_version=""), args.node, {})

    def _pod(self, args: BindArgs) -> Pod:
        """The pod with its reservation: from our own patch's response, the watch, or a read."""
        watched = self._parts.find_pod(args.namespace, args.name)
        # of two in the same version the state's comes first: it may already be marked as bound
        reserved = [
            pod
            for pod in (self._parts.state.latest(args.uid), watched)
            if pod is not None and pod.uid == args.uid and pod.annotations.get(names.POD_NODE)
        ]
        if reserved:
            pod = max(reserved, key=attrgetter("version"))
        else:
            pod = self._parts.kube.read_pod(args.namespace, args.name)
        self._parts.state.learned(pod)
        if pod.uid != args.uid:
            raise BindRefusedError(f"pod {args.key} was replaced by another pod ({pod.uid})")
        return pod

    def _asks(self, pod: Pod) -> bool:
        try:
            return not request_of(pod, self._parts.state.rules.vendors).is_empty
        except WireError as e:
            raise BindRefusedError(f"the pod can't be served: {e}") from e

    def _reserved_node(self, pod: Pod, args: BindArgs) -> Node:
        state = self._parts.state
        holder = state.reservation_of(args.uid)
        node = state.node(args.node)
        if node is None:
            why = f"node {args.node} does not exist"
        elif not holder:
            why = "it has no reservation (any more); it has to be filtered again"
        elif holder != args.node:
            why = f"its reservation is on node {holder}, not on {args.node}"
        elif cards := state.overcommitted(args.uid):
            why = f"its reservation no longer fits: {', '.join(cards)} is full, unhealthy or gone"
        else:
            return node
        self._undo(pod, args.node, is_locked=False)
        raise BindRefusedError(f"pod {args.key} can't be bound to {args.node}: {why}")

    # -- the node lock -----------------------------------------------------------------------------
    def _needs_lock(self, node: Node, pod: Pod) -> bool:
        """True where the daemon can't tell pods apart without the lock."""
        if node.annotations.get(names.NODE_IDENTITY) == names.IDENTITY_POD_RESOURCES:
            return False
        vendors = self._parts.state.rules.vendors
        # a plugin that does not read slots does not use the lock
        locking = {vendor.cards for vendor in vendors if vendor.keys.grants.to_allocate}
        request = request_of(pod, vendors)
        return any(
            ask.vendor in locking for container in request.containers for ask in container.asks
        )

    def _lock(self, node: Node, pod: Pod) -> None:
        """Take the node's lock; wait while it is held.

        Raises:
            LockHeld: it was not freed in time.
            KubeError: the API server refuses or can't be reached.
        """
        parts = self._parts
        deadline_s = parts.clock.monotonic() + parts.lock_wait_s

        def is_done(namespace: str, name: str) -> bool:
            return self._is_done(node.name, namespace, name)

        with self._turns.turn(node.name, lambda: self._is_late(deadline_s)) as is_ours:
            if not is_ours:
                raise LockHeld(f"node {node.name} is locked, and other pods are waiting for it")
            while True:
                seen = parts.state.node(node.name) or node
                try:
                    parts.lock.acquire(node.name, pod.namespace, pod.name, is_done, seen=seen)
                except LockHeld:
                    if not self._wait_for_lock(node.name, deadline_s):
                        raise
                else:
                    return

    def _is_late(self, deadline_s: float) -> bool:
        """Whether to give up waiting. Raises NotLeading."""
        self._out.require_lead()
        return self._parts.stop.is_set() or self._parts.clock.monotonic() >= deadline_s

    def _wait_for_lock(self, node: str, deadline_s: float) -> bool:
        """Wait until the watch shows another lock, or none; False on timeout."""
        parts = self._parts
        before = self._lock_text(node)
        again_s = parts.clock.monotonic() + (LATE_S if before is None else RECHECK_S)
        while (now_s := parts.clock.monotonic()) < deadline_s:
            if parts.stop.wait(LOOK_S):
                return False
            self._out.require_lead()
            if self._lock_text(node) != before or now_s > again_s:
                return True
        return False

    def _lock_text(self, node: str) -> str | None:
        seen = self._parts.state.node(node)
        return None if seen is None else seen.annotations.get(names.NODE_LOCK)

    def _is_done(self, node: str, namespace: str, name: str) -> bool:
        """True if its pod no longer needs the lock: deleted, ended, served, failed, elsewhere."""
        try:
            pod = self._parts.kube.read_pod(namespace, name)
        except NotFound:
            return True
        if pod.is_over or pod.annotations.get(names.POD_BIND_PHASE) in _DONE:
            return True
        return (pod.node_name or pod.annotations.get(names.POD_NODE)) != node

    # -- the binding -------------------------------------------------------------------------------
    def _bind_reserved(self, pod: Pod, args: BindArgs, *, is_locked: bool) -> None:
        """Bind the pod in exactly the version that carries this reservation.

        A binding that is slow, here or at the API server, must not apply to another reservation.
        """
        for is_last in (False, False, True):
            try:
                self._parts.kube.bind_pod(pod, args.node, self._announcement())
                break
            except KubeError as e:
                now = self._now(args, e) or pod
                if (now.uid, now.node_name) == (args.uid, args.node):
                    break  # only the response was lost
                why = _why_over(pod, now, self._parts.state.rules.vendors)
                if why or is_last or now.resource_version == pod.resource_version:
                    self._undo(pod, args.node, is_locked=is_locked)
                    if why:
                        raise BindRefusedError(f"pod {args.key} {why}") from e
                    raise
                pod = now
        self._parts.state.bound(args.uid, args.node)

    def _announcement(self) -> dict[str, str]:
        """The annotations by which the node's daemon expects the pod."""
        return {
            names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
            names.POD_BIND_TIME: str(int(self._parts.clock.now())),
        }

    def _now(self, args: BindArgs, error: KubeError) -> Pod | None:
        """After a failed binding: the pod as it is; None where that changes nothing.

        Raises:
            KubeError: the outcome is unknown; then everything stays until the watch shows it.
        """
        if not error.is_transient and not isinstance(error, Conflict):
            return None
        try:
            now = self._parts.kube.read_pod(args.namespace, args.name)
        except NotFound:
            return None
        except KubeError as e:
            self._parts.state.doubt(args.uid)
            raise KubeError(f"{error}; whether it was bound is unknown: {e}", e.status) from e
        self._parts.state.learned(now)
        return now

    def _undo(self, pod: Pod, node: str, *, is_locked: bool) -> None:
        """Release lock and reservation; what can't be written now is left to the sweeper."""
        parts = self._parts
        parts.state.release(pod.uid)
        steps: list[tuple[str, Callable[[], object]]] = []
        if is_locked:
            steps.append(("lock", lambda: parts.lock.release(node, pod.namespace, pod.name)))
        if pod.annotations.get(names.POD_NODE):
            steps.append(("reservation", lambda: parts.writer.clear(pod)))
        for what, step in steps:
            try:
                step()
            except KubeError as e:
                log.warning("undo_failed", extra=kv(pod=pod.key, what=what, error=str(e)))

    def _notify(self, args: BindArgs, reason: str, message: str) -> None:
        note = EventNote(
            kind="Pod",
            namespace=args.namespace,
            name=args.name,
            uid=args.uid,
            reason=reason,
            message=message,
            is_warning=reason == FAILED,
        )
        self._out.notify(note)


def _why_over(before: Pod, now: Pod, vendors: Sequence[VendorProtocol]) -> str:
    """Why a failed binding is not retried; "" if only unrelated fields of the pod changed."""
    if now.uid != before.uid:
        return "was replaced by another pod"
    if now.node_name:
        return f"is now bound to node {now.node_name}"
    if now.is_being_deleted or now.is_over:
        return "is being deleted or has ended"
    if reservation_marks(before, vendors) != reservation_marks(now, vendors):
        return "carries another reservation by now"
    if before.annotations.get(names.POD_BIND_PHASE) != now.annotations.get(names.POD_BIND_PHASE):
        return "was given up by its node's daemon"
    return ""
