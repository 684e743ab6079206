"""What Allocate writes to the pod inside the call: the served slot, with the last one the phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hami_node.clock import Deadline
from hami_node.errors import Conflict, GrantMismatch, KubeError
from hami_node.model import Pod
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.phases import phase_set
from hami_node.node.allocate.refusals import RECREATE
from hami_node.node.allocate.terms import Candidate
from hami_node.node.state import NodeState
from hami_node.ports import DaemonKube, JsonPatch
from hami_node.vendors.on_node.answer import MadePart
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.limiters import with_limiter
from hami_node.wire.values import annotation_pointer

TRY_S: Final = 2.5
"""The limit of one request, so that a lost one can be sent again within the call."""
PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 1.0

Made = Sequence[MadePart | None]
"""The parts of divided cards that exist for a container's grants, grant by grant."""


class PodWriter:
    """Empties slots of one vendor's reservations."""

    def __init__(self, node: NodeState, vendor: VendorProtocol, locks: LockKeeper) -> None:
        """Write through the cluster's client; `locks` frees the node's lock."""
        self._node, self._kube, self._vendor = node, node.kube, vendor
        self._keys, self._locks = vendor.keys.grants, locks

    def commit(self, candidate: Candidate, made: Made, limiter: str, deadline: Deadline) -> None:
        """Empty the served slot, and with the last one set the phase; then the lock can go.

        The patch checks that the reservation is still the one that was read: without it nothing
        may be served. It also notes the version of what limits the container. Borrowing writes
        nothing that would fail if the pod had changed, so there the pod is read.

        Raises:
            GrantMismatch: the reservation or the pod is no longer what it was.
            KubeError: it can't be written in time.
        """
        if candidate.is_borrowing:
            self._tried(lambda kube, _: self._confirmed(candidate, kube), deadline)
            return

        def patched(kube: DaemonKube, is_unclear: bool) -> Pod:
            now = self._read_again(candidate, kube) if is_unclear else candidate
            patch = self._served_patch(now, made, limiter)
            return kube.json_patch_pod(now.pod.namespace, now.pod.name, patch)

        pod = self._tried(patched, deadline)
        if pod.is_over or pod.has_started:
            raise GrantMismatch(
                f"{candidate.name}: its pod is {pod.phase} already, so this call is not for "
                f"it: {RECREATE}"
            )
        self._node.live.patched(pod)
        if pod.annotations.get(names.POD_BIND_PHASE) == names.PHASE_SUCCESS:
            self._locks.release(pod)

    def _tried(self, attempt: Callable[[DaemonKube, bool], Pod], deadline: Deadline) -> Pod:
        """Until it is clear whether it was done; the later attempts are told that it is unclear."""
        pause_s, is_unclear = PAUSE_S, False
        while True:
            try:
                return attempt(self._kube.within(deadline.at_most(TRY_S)), is_unclear)
            except KubeError as e:
                is_worth_it = e.is_transient or isinstance(e, Conflict)
                if not is_worth_it or not deadline.pause(pause_s):
                    raise
            pause_s, is_unclear = min(2 * pause_s, LONGEST_PAUSE_S), True

    def _confirmed(self, candidate: Candidate, kube: DaemonKube) -> Pod:
        """The pod as it is now: its reservation is the one that was read."""
        before, pod = candidate.pod, kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        if pod.uid != before.uid or any(
            pod.annotations.get(key) != before.annotations.get(key)
            for key in (self._keys.allocated, self._keys.to_allocate)
        ):
            raise _changed(candidate)
        return pod

    def _read_again(self, candidate: Candidate, kube: DaemonKube) -> Candidate:
        """The pod as it is now: it shows our own patch, or its slot waits with the same grants."""
        pod = kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        held = self._vendor.held_by(pod)
        is_ours = pod.annotations.get(self._keys.to_allocate) == _served_text(candidate)
        if pod.uid != candidate.pod.uid or not (is_ours or held.is_waiting(candidate.lender)):
            raise _changed(candidate)
        if held.by_container.get(candidate.lender) != candidate.grants:
            raise GrantMismatch(
                f"{candidate.name}: its reservation was rewritten while it was served: {RECREATE}"
            )
        return replace(candidate, pod=pod, held=held)

    def _is_last(self, candidate: Candidate) -> bool:
        """True once this container is served and none of the pod's waits, whatever the vendor."""
        slots = candidate.held.slot_map
        if slots is None or set(slots.waiting) - {candidate.lender}:
            return False
        others = (
            vendor.held_by(candidate.pod)
            for vendor in self._node.served
            if vendor.cards is not self._vendor.cards
        )
        return not any(held.is_any_waiting or held.problem for held in others)

    def _served_patch(self, candidate: Candidate, made: Made, limiter: str) -> JsonPatch:
        """One patch: only if the pod is the same and its reservation untouched.

        Nor must a patch apply that arrives late, after the pod was refused.
        """
        pod, keys = candidate.pod, self._keys
        annotations, phase = pod.annotations, pod.annotations.get(names.POD_BIND_PHASE)
        patch: list[Mapping[str, object]] = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            _test(keys.allocated, annotations.get(keys.allocated, "")),
            _test(keys.to_allocate, annotations.get(keys.to_allocate, "")),
        ]
        if phase is not None:
            patch.append(_test(names.POD_BIND_PHASE, phase))
        to_allocate = annotation_pointer(keys.to_allocate)
        patch.append({"op": "replace", "path": to_allocate, "value": _served_text(candidate)})
        patch += self._parts_noted(candidate, made)
        if limiter:
            noted = with_limiter(annotations, candidate.container.name, limiter)
            path = annotation_pointer(names.POD_LIMITERS)
            patch.append({"op": "add", "path": path, "value": noted})
        if self._is_last(candidate):
            patch.append(phase_set(names.PHASE_SUCCESS))
        return patch

    def _parts_noted(self, candidate: Candidate, made: Made) -> JsonPatch:
        """What the made parts are, for readers of the pod; only over the text that was read.

        It comes with the same request: others may write anything else of the pod meanwhile.
        """
        pod, patch = candidate.pod, list[Mapping[str, object]]()
        numbers = {
            index: (part.uuid, part.numbers) for index, part in enumerate(made) if part is not None
        }
        position = pod.containers.index(candidate.container)
        noted = self._vendor.with_made(pod, position, numbers) if numbers else {}
        for key, text in noted.items():
            before = pod.annotations.get(key)
            if before is not None and before != text:
                patch.append(_test(key, before))
                patch.append({"op": "replace", "path": annotation_pointer(key), "value": text})
        return patch


def _served_text(candidate: Candidate) -> str:
    slots = candidate.held.slot_map
    return slots.without(candidate.lender) if slots is not None else ""


def _test(key: str, value: str) -> Mapping[str, object]:
    return {"op": "test", "path": annotation_pointer(key), "value": value}


def _changed(candidate: Candidate) -> GrantMismatch:
    return GrantMismatch(
        f"{candidate.name}: its reservation changed while it was served: {RECREATE}"
    )
