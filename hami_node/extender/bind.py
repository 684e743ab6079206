"""POST /bind: lock the node where it needs that, bind; undo on each failure.

The binding carries the phase that tells the node's daemon to expect the pod: the API server stores
both or none (annotations of a Binding become the pod's), so no pod is left half way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from hami_node.extender.counted import reservation_marks, version_of
from hami_node.extender.filter import Outlets
from hami_node.extender.messages import BindArgs, decode_bind_args, encode_error
from hami_node.extender.reservations import ReservationWriter
from hami_node.extender.rules import request_of
from hami_node.extender.state import ClusterState
from hami_node.extender.turns import LOOK_S, Turns
from hami_node.logs import kv
from hami_node.model import Node, Pod, Vendor
from hami_node.ports import Clock, EventNote, ExtenderKube
from hami_node.wire import names

log = logging.getLogger(__name__)

SUCCEEDED: Final = "BindingSucceed"
FAILED: Final = "BindingFailed"
"""Reasons of the Events, as HAMi names them."""
LATE_S: Final = 0.5
"""After so long the API server is asked again about a lock that the watch does not show."""
RECHECK_S: Final = 2.0
"""After so long it is asked whether the owner of a lock still needs it."""

_DONE: Final = (names.PHASE_SUCCESS, names.PHASE_FAILED)

FindPod = Callable[[str, str], Pod | None]
"""A pod by namespace and name, as the watch has it."""


class BindRefusedError(HamiError):
    """The pod can't be bound as asked; the text says why and what helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindParts:
    """What binding works with.

    Attributes:
        kube: the API.
        state: who holds what.
        writer: of reservations.
        lock: of nodes.
        find_pod: the watch's cache.
        clock: for the wait.
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
    """Answers /bind. Thread-safe; calls for different pods run side by side."""

    def __init__(self, parts: BindParts, outlets: Outlets) -> None:
        """Work with `parts`, tell `outlets`."""
        self._parts, self._out, self._turns = parts, outlets, Turns()

    def answer(self, body: bytes) -> bytes:
        """The answer to one call.

        Raises:
            WireError: the body is no bind call.
            NotLeading: another replica decides.
        """
        self._out.require_lead()
        args = decode_bind_args(body)
        try:
            self.bind(args)
        except (BindRefusedError, LockHeld, KubeError) as e:
            self._out.on_result("lock-held" if isinstance(e, LockHeld) else "failed")
            self._tell(args, FAILED, str(e))
            log.warning("bind_failed", extra=kv(pod=args.key, node=args.node, error=str(e)))
            return encode_error(str(e))
        self._out.on_result("bound")
        self._tell(args, SUCCEEDED, f"Successfully binding node [{args.node}] to {args.key}")
        return encode_error("")

    def bind(self, args: BindArgs) -> None:
        """Bind one pod.

        Raises:
            BindRefusedError: there is no reservation that could be bound.
            LockHeld: the node's lock was not freed in time.
            KubeError: the API server refuses or can't be reached.
            NotLeading: another replica decides.
        """
        pod = self._pod(args)
        if pod.node_name:
            if pod.node_name == args.node:
                return  # an earlier call whose answer was lost
            raise BindRefusedError(f"pod {args.key} is bound to node {pod.node_name} already")
        if pod.is_being_deleted:
            raise BindRefusedError(f"pod {args.key} is leaving: it can't be bound any more")
        if not self._asks(pod):
            self._bind_plain(pod, args)
            return
        with self._parts.state.binding(args.uid) as is_free:
            if not is_free:
                raise BindRefusedError(f"pod {args.key} is filtered or bound by another call")
            self._bind_asking(self._parts.state.latest(args.uid) or pod, args)

    def _bind_asking(self, pod: Pod, args: BindArgs) -> None:
        """Bind a pod that asks for cards; nobody else decides about it meanwhile."""
        if pod.node_name == args.node:
            return  # the other call was quicker
        node = self._reserved_node(pod, args)
        needs_lock = self._needs_lock(node, pod)
        try:
            if needs_lock:
                self._lock(node, pod)
            self._out.require_lead()
        except NotLeading:
            # lock and reservation may be the next leader's by now, who binds the same pod
            self._parts.state.release(args.uid)
            raise
        except BaseException as e:
            # a lock whose answer was lost may be ours as well
            self._undo(pod, args.node, is_locked=not isinstance(e, LockHeld))
            raise
        self._bind_reserved(pod, args, is_locked=needs_lock)

    def _bind_plain(self, pod: Pod, args: BindArgs) -> None:
        """Bind a pod without cards, where kube-scheduler has no list of managedResources.

        Only one that names our scheduler: nobody is asked here who he is, and a binding goes past
        taints and room.
        """
        if pod.scheduler_name != self._parts.scheduler_name:
            why = "asks for no cards and names another scheduler: its own scheduler has to bind it"
            raise BindRefusedError(f"pod {args.key} {why}")
        self._parts.kube.bind_pod(replace(pod, resource_version=""), args.node, {})

    def _pod(self, args: BindArgs) -> Pod:
        """The pod with its reservation: as our own patch was answered, the watch, or a read."""
        shown = self._parts.find_pod(args.namespace, args.name)
        # of two in the same version the state knows more: that it is bound by now
        known = [one for one in (self._parts.state.latest(args.uid), shown) if one is not None]
        known = [
            one for one in known if one.uid == args.uid and one.annotations.get(names.POD_NODE)
        ]
        if known:
            pod = max(known, key=version_of)
        else:
            pod = self._parts.kube.read_pod(args.namespace, args.name)
        self._parts.state.learned(pod)
        if pod.uid != args.uid:
            raise BindRefusedError(f"pod {args.key} is another one by now ({pod.uid})")
        return pod

    def _asks(self, pod: Pod) -> bool:
        try:
            return not request_of(pod, self._parts.state.rules).is_empty
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
            why = f"its reservation no longer fits: {', '.join(cards)} is full, sick or gone"
        else:
            return node
        self._undo(pod, args.node, is_locked=False)
        raise BindRefusedError(f"pod {args.key} can't be bound to {args.node}: {why}")

    # -- the node lock -----------------------------------------------------------------------------
    def _needs_lock(self, node: Node, pod: Pod) -> bool:
        """True where the daemon can't tell pods apart without."""
        if node.annotations.get(names.NODE_IDENTITY) == names.IDENTITY_POD_RESOURCES:
            return False
        request = request_of(pod, self._parts.state.rules)
        # AWS's plugin knows no lock
        return any(ask.vendor is Vendor.NVIDIA for one in request.containers for ask in one.asks)

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
                raise LockHeld(f"node {node.name} is locked, and other pods wait for it as well")
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
        """Wait until the watch shows another lock, or none; False when the time is over."""
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
        """True if the lock's pod needs it no more: deleted, over, served, refused or elsewhere."""
        try:
            pod = self._parts.kube.read_pod(namespace, name)
        except NotFound:
            return True
        if pod.is_over or pod.annotations.get(names.POD_BIND_PHASE) in _DONE:
            return True
        return (pod.node_name or pod.annotations.get(names.POD_NODE)) != node

    # -- the binding -------------------------------------------------------------------------------
    def _bind_reserved(self, pod: Pod, args: BindArgs, *, is_locked: bool) -> None:
        """Bind the pod in the very version that carries this reservation.

        A binding that is slow, here or at the API server, must not meet another reservation.
        """
        for is_last in (False, False, True):
            try:
                self._parts.kube.bind_pod(pod, args.node, self._announcement())
                break
            except KubeError as e:
                now = self._now(args, e) or pod
                if (now.uid, now.node_name) == (args.uid, args.node):
                    break  # only the answer was lost
                why = _why_over(pod, now)
                if why or is_last or now.resource_version == pod.resource_version:
                    self._undo(pod, args.node, is_locked=is_locked)
                    if why:
                        raise BindRefusedError(f"pod {args.key} {why}") from e
                    raise
                pod = now
        self._parts.state.bound(args.uid, args.node)

    def _announcement(self) -> dict[str, str]:
        """What tells the node's daemon to expect the pod."""
        return {
            names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
            names.POD_BIND_TIME: str(int(self._parts.clock.now())),
        }

    def _now(self, args: BindArgs, error: KubeError) -> Pod | None:
        """After a failed binding: the pod as it is; None where that changes nothing.

        Raises:
            KubeError: nobody can tell; then everything stays until the watch shows it.
        """
        if not error.is_transient and not isinstance(error, Conflict):
            return None
        try:
            now = self._parts.kube.read_pod(args.namespace, args.name)
        except NotFound:
            return None
        except KubeError as e:
            self._parts.state.doubt(args.uid)
            raise KubeError(f"{error}; whether it was bound can't be told: {e}", e.status) from e
        self._parts.state.learned(now)
        return now

    def _undo(self, pod: Pod, node: str, *, is_locked: bool) -> None:
        """Free lock and reservation; what can't be written now is left to the sweeper."""
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

    def _tell(self, args: BindArgs, reason: str, message: str) -> None:
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


def _why_over(before: Pod, now: Pod) -> str:
    """Why a binding that failed is not tried again; "" where others wrote what does not matter."""
    if now.uid != before.uid:
        return "is another one by now"
    if now.node_name:
        return f"is bound to node {now.node_name} by now"
    if now.is_being_deleted or now.is_over:
        return "is leaving"
    if reservation_marks(before) != reservation_marks(now):
        return "carries another reservation by now"
    if before.annotations.get(names.POD_BIND_PHASE) != now.annotations.get(names.POD_BIND_PHASE):
        return "was given up by its node's daemon"
    return ""
