"""What Allocate writes to the pod inside the call: the served slot, with the last one the phase."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hami_node.clock import Deadline
from hami_node.errors import Conflict, GrantMismatch, KubeError
from hami_node.model import Pod
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.phases import phase_set
from hami_node.node.identity.candidate import Candidate
from hami_node.node.identity.refusals import RECREATE
from hami_node.node.parts import ClusterParts
from hami_node.ports import DaemonKube, EventNote, JsonPatch
from hami_node.wire import names
from hami_node.wire.limiters import with_limiter
from hami_node.wire.values.json_patch import annotation_pointer

log = logging.getLogger(__name__)

REFUSED_EVENT: Final = "AllocationRefused"
TRY_S: Final = 2.5
"""The limit of one request, so that a lost one can be sent again within the call."""
PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 1.0


class PodWriter:
    """Writes the outcome of an Allocate to its pod; what can wait is done after the call."""

    def __init__(self, cluster: ClusterParts, locks: LockKeeper) -> None:
        """Write through the cluster's client; `locks` frees the node's lock."""
        self._cluster, self._kube, self._locks = cluster, cluster.kube, locks

    def commit(self, candidate: Candidate, deadline: Deadline, limiter: str = "") -> None:
        """Empty the served slot, and with the last one set the phase; then the lock can go.

        The patch checks that the reservation is still the one that was read: without it nothing
        may be served. It also notes the version of what limits the container.

        Raises:
            GrantMismatch: the reservation or the pod is no longer what it was.
            KubeError: it can't be written in time.
        """
        if candidate.is_borrowing:
            self._confirm(candidate, deadline)
            return
        patched = self._patched(candidate, deadline, limiter)
        if patched.is_over or patched.has_started:
            raise GrantMismatch(
                f"{candidate.name}: its pod is {patched.phase} already, so this call is not for "
                f"it: {RECREATE}"
            )
        self._cluster.live.patched(patched)
        if patched.annotations.get(names.POD_BIND_PHASE) == names.PHASE_SUCCESS:
            self._locks.release(patched)

    def _patched(self, candidate: Candidate, deadline: Deadline, limiter: str) -> Pod:
        """The pod after our patch, which is tried until it is clear whether it was applied."""
        pause_s, is_unclear = PAUSE_S, False
        while True:
            kube = self._kube.within(deadline.at_most(TRY_S))
            try:
                if is_unclear:
                    candidate = self._read_again(candidate, kube)
                patch = self._served_patch(candidate, limiter)
                return kube.json_patch_pod(candidate.pod.namespace, candidate.pod.name, patch)
            except KubeError as e:
                is_worth_it = e.is_transient or isinstance(e, Conflict)
                if not is_worth_it or not deadline.pause(pause_s):
                    raise
            pause_s, is_unclear = min(2 * pause_s, LONGEST_PAUSE_S), True

    def _confirm(self, candidate: Candidate, deadline: Deadline) -> None:
        """Read the pod: borrowing writes nothing to it that would fail if it had changed."""
        pod = self._read(candidate, deadline)
        if pod.uid != candidate.pod.uid or any(
            pod.annotations.get(key) != candidate.pod.annotations.get(key)
            for key in (candidate.keys.allocated, candidate.keys.to_allocate)
        ):
            raise GrantMismatch(
                f"{candidate.name}: its reservation changed while it was served: {RECREATE}"
            )

    def _read(self, candidate: Candidate, deadline: Deadline) -> Pod:
        pause_s = PAUSE_S
        while True:
            kube = self._kube.within(deadline.at_most(TRY_S))
            try:
                return kube.read_pod(candidate.pod.namespace, candidate.pod.name)
            except KubeError as e:
                if not e.is_transient or not deadline.pause(pause_s):
                    raise
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _read_again(self, candidate: Candidate, kube: DaemonKube) -> Candidate:
        """The pod as it is now: it shows our own patch, or its slot waits with the same grants."""
        pod = kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        held = candidate.vendor.held_by(pod)
        is_ours = pod.annotations.get(candidate.keys.to_allocate) == _served_text(candidate)
        if pod.uid != candidate.pod.uid or not (is_ours or held.is_waiting(candidate.lender)):
            raise GrantMismatch(
                f"{candidate.name}: its reservation changed while it was served: {RECREATE}"
            )
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
            for vendor in self._cluster.served
            if vendor.cards is not candidate.vendor.cards
        )
        return not any(held.is_any_waiting or held.problem for held in others)

    def _served_patch(self, candidate: Candidate, limiter: str = "") -> JsonPatch:
        """One patch: only if the pod is the same and its reservation untouched."""
        annotations, keys = candidate.pod.annotations, candidate.keys
        to_allocate = annotation_pointer(keys.to_allocate)
        patch: list[Mapping[str, object]] = [
            {"op": "test", "path": "/metadata/uid", "value": candidate.pod.uid},
            {
                "op": "test",
                "path": annotation_pointer(keys.allocated),
                "value": annotations.get(keys.allocated, ""),
            },
            {"op": "test", "path": to_allocate, "value": annotations.get(keys.to_allocate, "")},
            *_same_phase(candidate.pod),
            {"op": "replace", "path": to_allocate, "value": _served_text(candidate)},
        ]
        patch += _identity(candidate)
        if limiter:
            noted = with_limiter(annotations, candidate.container.name, limiter)
            path = annotation_pointer(names.POD_LIMITERS)
            patch.append({"op": "add", "path": path, "value": noted})
        if self._is_last(candidate):
            patch.append(phase_set(names.PHASE_SUCCESS))
        return patch

    def fail(self, pod: Pod, why: str) -> None:
        """Have the phase written and the lock released, soon; an Event. Never raises or waits."""
        self._cluster.refused[pod.uid] = True
        self.tell(pod, why)
        self._locks.release(pod)
        self._cluster.wake("phases")

    def tell(self, pod: Pod, why: str) -> None:
        """An Event about the refusal, and nothing else. Never raises or waits."""
        self.notify(pod, REFUSED_EVENT, why)

    def notify(self, pod: Pod, reason: str, message: str) -> None:
        """Write an Event about the pod."""
        self._cluster.notify(EventNote.about(pod, reason, message))


def _served_text(candidate: Candidate) -> str:
    slots = candidate.held.slot_map
    return slots.without(candidate.lender) if slots is not None else ""


def _identity(candidate: Candidate) -> JsonPatch:
    """What the made parts of cards are, for readers of the pod; only over the text that was read.

    It comes with the same request: others may write anything else of the pod meanwhile.
    """
    pod, patch = candidate.pod, list[Mapping[str, object]]()
    made = {
        index: (part.uuid, part.numbers)
        for index, part in enumerate(candidate.made)
        if part is not None
    }
    position = pod.containers.index(candidate.container)
    noted = candidate.vendor.with_made(pod, position, made) if made else {}
    for key, text in noted.items():
        path, before = annotation_pointer(key), pod.annotations.get(key)
        if before is not None and before != text:
            patch.append({"op": "test", "path": path, "value": before})
            patch.append({"op": "replace", "path": path, "value": text})
    return patch


def _same_phase(pod: Pod) -> JsonPatch:
    """A patch that arrives late, after the pod was refused, must not apply."""
    phase = pod.annotations.get(names.POD_BIND_PHASE)
    path = annotation_pointer(names.POD_BIND_PHASE)
    return [] if phase is None else [{"op": "test", "path": path, "value": phase}]
