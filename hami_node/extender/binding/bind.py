"""POST /bind: lock the node where necessary, bind the pod; undo everything on failure.

The Binding carries the phase by which the node's daemon expects the pod, and the reservation where
no pod carries it yet: the API server stores all or nothing (annotations of a Binding are copied to
the pod), so no pod is left half bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Final

from hami_node.cluster.client import KubeClient
from hami_node.engine.fleet.fleet import NoNode
from hami_node.engine.place import PodRequest, Refused
from hami_node.errors import (
    Conflict,
    HamiError,
    KubeError,
    LockHeld,
    NotFound,
    NotLeading,
    PodTaken,
    WireError,
)
from hami_node.extender.binding.bind_lock import BindLock
from hami_node.extender.binding.sending import Sending, settle_late, why_over
from hami_node.extender.filter import Outlets
from hami_node.extender.http.messages import BindArgs, decode_bind_args, encode_error
from hami_node.extender.placing import PodPlacer, Stored
from hami_node.extender.state.carried import Carried, can_carry
from hami_node.logs import kv
from hami_node.model import Node, Pod
from hami_node.ports import Clock, EventNote, Fence
from hami_node.vendors.request import request_of
from hami_node.wire import names

log = logging.getLogger(__name__)

SUCCEEDED: Final = "BindingSucceed"
FAILED: Final = "BindingFailed"
"""Reasons of the Events, as HAMi names them."""


class BindRefusedError(HamiError):
    """The pod can't be bound as requested; the text gives the reason and a remedy."""


class _OutcomeUnknownError(KubeError):
    """Whether the pod was bound can't be found out now."""


class PodBinder:
    """Answers /bind. Thread-safe; calls for different pods run concurrently."""

    def __init__(
        self,
        placer: PodPlacer,
        kube: KubeClient,
        lock: BindLock,
        outlets: Outlets,
        clock: Clock,
        scheduler_name: str,
        sending: Sending | None = None,
    ) -> None:
        """Bind what `placer` places; report to `outlets`.

        Args:
            placer: decides where /filter has not; state, writer and the watch's pods are its own.
            kube: the API.
            lock: locks nodes.
            outlets: where results go.
            clock: the time.
            scheduler_name: pods without cards are bound for this scheduler only.
            sending: sends Bindings that carry their reservation; None where nobody else can lead.
        """
        self._placer, self._kube, self._lock, self._out = placer, kube, lock, outlets
        self._state, self._writer, self._find_pod = placer.state, placer.writer, placer.find_pod
        self._clock, self._scheduler_name = clock, scheduler_name
        self._sending = sending or Sending()

    def answer(self, body: bytes) -> bytes:
        """The answer to one call.

        Raises:
            WireError: the body is not a bind call.
            NotLeading: another replica decides.
        """
        fence = self._out.require_lead()
        args = decode_bind_args(body)
        try:
            self._bind(args, fence)
        except (BindRefusedError, LockHeld, KubeError) as e:
            self._out.on_result("lock-held" if isinstance(e, LockHeld) else "failed")
            self._notify(args, FAILED, str(e))
            log.warning("bind_failed", extra=kv(pod=args.key, node=args.node, error=str(e)))
            return encode_error(str(e))
        self._out.on_result("bound")
        self._notify(args, SUCCEEDED, f"Successfully binding node [{args.node}] to {args.key}")
        return encode_error("")

    def _bind(self, args: BindArgs, fence: Fence) -> None:
        pod = self._pod(args)
        if pod.node_name:
            if pod.node_name == args.node:
                return  # by an earlier call whose response was lost
            raise BindRefusedError(f"pod {args.key} is already bound to node {pod.node_name}")
        if pod.is_being_deleted:
            raise BindRefusedError(f"pod {args.key} is being deleted: it can't be bound any more")
        if self._request(pod, args.node).is_empty:
            self._bind_plain(pod, args, fence)
            return
        with self._state.binding(pod) as is_free:
            if not is_free:
                raise BindRefusedError(f"pod {args.key} is filtered or bound by another call")
            self._settled(pod, fence)
            pod = self._state.latest(args.uid) or pod
            if pod.node_name != args.node:  # else the other call was faster
                self._bind_asking(pod, self._request(pod, args.node), args, fence)

    def _bind_asking(self, pod: Pod, request: PodRequest, args: BindArgs, fence: Fence) -> None:
        """Bind a pod that asks for cards; no other call decides about it meanwhile.

        Raises:
            BindRefusedError: it can't be bound there.
            LockHeld: the node's lock was not freed in time.
            KubeError: the API server refuses or can't be reached.
            NotLeading: another replica decides.
        """
        node = self._node(pod, args, fence)
        pod = self._reserved(pod, request, args, fence)
        needs_lock = self._lock.is_needed(node, pod)
        try:
            if needs_lock:
                with self._lock.held(node, pod, fence):
                    self._bind_reserved(pod, args, fence)
            else:
                self._bind_reserved(pod, args, fence)
        except NotLeading:
            # lock and reservation may already belong to the next leader, which binds the same pod
            self._state.release(args.uid)
            raise
        except _OutcomeUnknownError:
            raise  # everything stays until the watch shows it
        except BaseException as e:
            # if the response to the locking was lost, the lock may be ours as well
            is_locked = needs_lock and not isinstance(e, LockHeld)
            self._undo(pod, args.node, fence, is_locked=is_locked)
            raise

    def _settled(self, pod: Pod, fence: Fence) -> None:
        """Before anything else is decided: what became of a Binding that was not answered.

        Raises:
            BindRefusedError: the pod is gone.
            KubeError: that can't be found out now; the cards stay charged.
        """
        state = self._state
        if state.may_arrive(pod.uid):
            settle_late(state, self._writer, pod, fence)
            if state.is_gone(pod.uid):
                raise BindRefusedError(f"pod {pod.key} was deleted, or has ended")
        state.learned(pod)

    def _bind_plain(self, pod: Pod, args: BindArgs, fence: Fence) -> None:
        """Bind a pod without cards, where kube-scheduler has no list of managedResources.

        Only if it names our scheduler: a binding bypasses taints and free resources.
        """
        if pod.scheduler_name != self._scheduler_name:
            why = "asks for no cards and names another scheduler: its own scheduler has to bind it"
            raise BindRefusedError(f"pod {args.key} {why}")
        kube = self._kube.fenced(fence)
        kube.bind_pod(replace(pod, resource_version=""), args.node, {})

    def _pod(self, args: BindArgs) -> Pod:
        """The pod: from our own patch's response, from the watch, or a read if need be."""
        watched = self._find_pod(args.namespace, args.name)
        is_carried = self._state.carried(args.uid, args.node) is not None
        # of two in the same version the state's comes first: it may already be marked as bound
        reserved = [
            pod
            for pod in (self._state.latest(args.uid), watched)
            if pod is not None
            and (pod.uid == args.uid and pod.key == args.key and pod.resource_version)
            and (is_carried or pod.annotations.get(names.POD_NODE))
        ]
        if reserved:
            pod = max(reserved, key=attrgetter("version"))
        else:
            try:
                pod = self._kube.read_pod(args.namespace, args.name)
            except NotFound:
                known = self._state.latest(args.uid)
                if known is None or known.key == args.key:  # not another pod
                    self._state.release(args.uid)
                raise
        self._state.learned(pod)
        if pod.uid != args.uid:
            raise BindRefusedError(f"pod {args.key} was replaced by another pod ({pod.uid})")
        return pod

    def _request(self, pod: Pod, node: str = "") -> PodRequest:
        """What the pod asks for; a reservation on the node that its Binding carries knows it."""
        carried = self._state.carried(pod.uid, node)
        if carried is not None and carried.is_alike(pod):
            return carried.request
        try:
            return request_of(pod, self._state.rules.vendors)
        except WireError as e:
            raise BindRefusedError(f"the pod can't be served: {e}") from e

    # -- the reservation ---------------------------------------------------------------------------
    def _node(self, pod: Pod, args: BindArgs, fence: Fence) -> Node:
        """The node, unless the pod's reservation is elsewhere."""
        state = self._state
        holder, node = state.reservation_of(args.uid), state.node(args.node)
        if node is None:
            raise self._refused(pod, args, fence, f"node {args.node} does not exist")
        if holder not in ("", args.node):
            why = f"its reservation is on node {holder}, not on {args.node}"
            raise self._refused(pod, args, fence, why)
        return node

    def _reserved(self, pod: Pod, request: PodRequest, args: BindArgs, fence: Fence) -> Pod:
        """The pod with a reservation on the node that this process has made.

        Anybody who may edit the pod may have written another one, so it proves nothing: then, and
        after a change of the leader, cards are chosen again on this node.
        """
        state = self._state
        carried = state.carried(args.uid, args.node)
        if carried is not None and carried.request != request:
            why = "it does not ask for what was reserved for it any more"
            raise self._refused(pod, args, fence, why)
        if self._is_own(pod, args.node):
            if cards := state.overcommitted(args.uid):
                why = (
                    f"its reservation no longer fits: {', '.join(cards)} is full, unhealthy or gone"
                )
                raise self._refused(pod, args, fence, why)
            return pod
        answer = self._placer.place(pod, request, (args.node,), fence, is_binding=True)
        if isinstance(answer, Stored):
            log.info("placed_at_bind", extra=kv(pod=args.key, node=args.node, cards=answer.cards))
            return answer.pod
        if isinstance(answer, NoNode):
            found = self._placer.why_nowhere(pod, request, (args.node,), answer)
            why = found.why if isinstance(found, Refused) else found.summary
        else:
            why = answer.why
        why = f"this scheduler did not make its reservation, and can't make one there now: {why}"
        raise self._refused(pod, args, fence, why)

    def _is_own(self, pod: Pod, name: str) -> bool:
        """Whether this process has reserved the node, and the pod or its Binding says just that."""
        state = self._state
        node = state.node(name)
        if state.carried(pod.uid, name) is None:
            return state.is_own(pod, name)
        return node is not None and can_carry(node, pod, state.rules.vendors)

    def _refused(self, pod: Pod, args: BindArgs, fence: Fence, why: str) -> BindRefusedError:
        self._undo(pod, args.node, fence, is_locked=False)
        return BindRefusedError(f"pod {args.key} can't be bound to {args.node}: {why}")

    # -- the binding -------------------------------------------------------------------------------
    def _bind_reserved(self, pod: Pod, args: BindArgs, fence: Fence) -> None:
        """Bind the pod in exactly the version that carries this reservation.

        A binding that is slow, here or at the API server, must not apply to another reservation.
        """
        kube, state = self._kube.fenced(fence), self._state
        carried = state.carried(args.uid, args.node)
        reservation = {} if carried is None else carried.annotations
        announced = {**reservation, **self._announcement()}
        for is_last in (False, False, True):
            try:
                self._sending.bind(kube, pod, args.node, announced, is_carried=bool(reservation))
                break
            except KubeError as e:
                if e.is_transient and e.status != 429:
                    state.doubt_carried(args.uid, pod.resource_version)
                now = self._now(args, pod, e) or pod
                if (now.uid, now.node_name) == (args.uid, args.node):
                    break  # only the response was lost
                if why := self._why_over(pod, now, carried):
                    raise BindRefusedError(f"pod {args.key} {why}") from e
                if is_last or now.resource_version == pod.resource_version:
                    raise
                if state.carried(args.uid, args.node) is not carried:
                    raise  # released as soon as the pod was seen in another version
                pod = now
        state.bound(args.uid, args.node, announced)

    def _why_over(self, before: Pod, now: Pod, carried: Carried | None) -> str:
        """Why a failed binding is not retried; "" if only unrelated fields of the pod changed."""
        if why := why_over(before, now, self._state.rules.vendors):
            return why
        if carried is not None and self._request(now) != carried.request:
            return "does not ask for what was reserved for it any more"
        return ""

    def _announcement(self) -> dict[str, str]:
        """The annotations by which the node's daemon expects the pod."""
        return {
            names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
            names.POD_BIND_TIME: str(int(self._clock.now())),
        }

    def _now(self, args: BindArgs, sent: Pod, error: KubeError) -> Pod | None:
        """After a failed binding: the pod as it is; None where that changes nothing.

        Raises:
            _OutcomeUnknownError: the outcome is unknown.
        """
        if not error.is_transient and not isinstance(error, Conflict):
            return None
        try:
            now = self._kube.read_pod(args.namespace, args.name)
        except NotFound:
            return None
        except KubeError as e:
            self._state.doubt(args.uid, sent.resource_version)
            why = f"{error}; whether it was bound is unknown: {e}"
            raise _OutcomeUnknownError(why, e.status) from e
        self._state.learned(now)
        return now

    def _undo(self, pod: Pod, node: str, fence: Fence, *, is_locked: bool) -> None:
        """Release lock and reservation; what can't be written now is left to the sweeper.

        The cards are free only after the pod was written: a binding that failed without an answer
        may still arrive, but not in another version of the pod.
        """
        if self._state.is_late(pod.uid):
            self._undo_late(pod, fence)
            return
        self._state.void(pod.uid)
        steps: list[tuple[str, Callable[[], object]]] = []
        if pod.annotations.get(names.POD_NODE):
            steps.append(("reservation", lambda: self._writer.clear(pod, fence)))
        if is_locked:
            steps.append(("lock", lambda: self._lock.release(node, pod, fence)))
        is_cleared = True
        for what, step in steps:
            try:
                step()
            except PodTaken as e:
                self._state.learned(e.pod)
            except NotFound:
                continue  # the pod was deleted, or the node
            except (KubeError, NotLeading) as e:
                is_cleared = is_cleared and what != "reservation"
                log.warning("undo_failed", extra=kv(pod=pod.key, what=what, error=str(e)))
        if is_cleared:
            self._state.release(pod.uid)

    def _undo_late(self, pod: Pod, fence: Fence) -> None:
        """The same for a reservation that only its Binding carries, which may still arrive."""
        try:
            settle_late(self._state, self._writer, pod, fence)
        except (KubeError, NotLeading) as e:
            # the next filter, bind or sweep tries again; the cards stay charged until then
            log.warning(
                "undo_failed", extra=kv(pod=pod.key, what="carried reservation", error=str(e))
            )

    def _notify(self, args: BindArgs, reason: str, message: str) -> None:
        note = EventNote(
            kind="Pod",
            namespace=args.namespace,
            name=args.name,
            uid=args.uid,
            reason=reason,
            message=message,
            is_warning=reason == FAILED,
            is_routine=reason != FAILED,
        )
        self._out.notify(note)
