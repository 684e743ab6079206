"""What Allocate writes: the served slot, the phase, the lock, an Event. Nothing else is changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from hami_node.errors import Conflict, GrantMismatch, KubeError
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.allocate.candidate import Candidate
from hami_node.node.allocate.live_use import LiveUse
from hami_node.node.allocate.refusals import RECREATE
from hami_node.ports import EventNote, JsonPatch, Kube
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.values.json_patch import annotation_pointer

log = logging.getLogger(__name__)

REFUSED_EVENT: Final = "AllocationRefused"
PATCH_TRIES: Final = 4
PATCH_PAUSE_S: Final = 0.25


class Locks(Protocol):
    """The node lock."""

    def release(self, pod: Pod) -> bool:
        """Free the lock if exactly this pod owns it; True if it did. Raises KubeError."""


class PodWriter:
    """Writes the outcome of an Allocate to its pod and frees the node lock."""

    def __init__(
        self,
        *,
        kube: Kube,
        locks: Locks,
        live: LiveUse,
        vendors: Sequence[VendorProtocol],
        notify: Callable[[EventNote], None],
        stop: threading.Event,
    ) -> None:
        """Wire the parts. `vendors` are those served on this node; `notify` never blocks."""
        self._vendors = tuple(vendors)
        self._kube = kube
        self._locks = locks
        self._live = live
        self._emit = notify
        self._stop = stop

    def commit(self, candidate: Candidate) -> None:
        """Empty the served slot and, with the last one, set the phase and free the lock."""
        if candidate.is_borrowing:
            self._confirm(candidate)
            self._live.served(candidate.pod)
            return
        for attempt in range(PATCH_TRIES):
            try:
                patched = self._kube.json_patch_pod(
                    candidate.pod.namespace, candidate.pod.name, self._served_patch(candidate)
                )
                break
            except Conflict:
                candidate = self._read_again(candidate)
            except KubeError as e:
                if not e.is_transient or attempt == PATCH_TRIES - 1:
                    raise
                # The write may have succeeded although its response was lost.
                self._stop.wait(PATCH_PAUSE_S * 2**attempt)
                candidate = self._read_after_doubt(candidate)
        else:
            raise GrantMismatch(f"{candidate.name}: the pod keeps changing: {RECREATE}")
        self._live.patched(patched)
        if self._is_last(candidate):
            self._free_lock(patched)

    def _confirm(self, candidate: Candidate) -> None:
        """Read the pod: borrowing writes nothing to it that would fail if it had changed."""
        pod = self._kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        if pod.uid != candidate.pod.uid or any(
            pod.annotations.get(key) != candidate.pod.annotations.get(key)
            for key in (candidate.keys.allocated, candidate.keys.to_allocate)
        ):
            raise GrantMismatch(
                f"{candidate.name}: its reservation changed while it was served: {RECREATE}"
            )

    def _read_again(self, candidate: Candidate) -> Candidate:
        """The pod as it is now; its slot must still wait with the same grants."""
        pod = self._kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        held = candidate.vendor.held_by(pod)
        if pod.uid != candidate.pod.uid or not held.is_waiting(candidate.lender):
            raise GrantMismatch(
                f"{candidate.name}: its reservation changed while it was served: {RECREATE}"
            )
        if held.by_container.get(candidate.lender) != candidate.grants:
            raise GrantMismatch(
                f"{candidate.name}: its reservation was rewritten while it was served: {RECREATE}"
            )
        return replace(candidate, pod=pod, held=held)

    def _read_after_doubt(self, candidate: Candidate) -> Candidate:
        """After an error whose effect is unknown: success if the pod shows our own patch."""
        try:
            pod = self._kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        except KubeError as e:
            if not e.is_transient:
                raise
            return candidate
        expected = _served_text(candidate)
        if (
            pod.uid == candidate.pod.uid
            and pod.annotations.get(candidate.keys.to_allocate) == expected
            and candidate.pod.annotations.get(candidate.keys.to_allocate) != expected
        ):
            held = candidate.vendor.held_by(pod)
            if held.slot_map is None:
                raise GrantMismatch(f"{candidate.name}: {held.problem}: {RECREATE}")
            return replace(candidate, pod=pod, held=held)
        return candidate

    def _is_last(self, candidate: Candidate) -> bool:
        """True once this container is served and none of the pod's waits, whatever the vendor."""
        slots = candidate.held.slot_map
        if slots is None or set(slots.waiting) - {candidate.lender}:
            return False
        others = (
            vendor.held_by(candidate.pod)
            for vendor in self._vendors
            if vendor.cards is not candidate.vendor.cards
        )
        return not any(held.is_any_waiting or held.problem for held in others)

    def _served_patch(self, candidate: Candidate) -> JsonPatch:
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
            {"op": "replace", "path": to_allocate, "value": _served_text(candidate)},
        ]
        if self._is_last(candidate):
            patch.append(_phase(names.PHASE_SUCCESS))
        return patch

    def _free_lock(self, pod: Pod) -> None:
        try:
            self._locks.release(pod)
        except KubeError as e:
            # The pod is served; the lock keeper retries.
            log.warning("lock_not_freed", extra=kv(pod=pod.key, error=str(e)))

    def fail(self, pod: Pod, why: str) -> None:
        """Set the phase to failed, write an Event, free the lock. Best effort, independently."""
        self.notify(pod, REFUSED_EVENT, why)
        try:
            self._kube.json_patch_pod(pod.namespace, pod.name, _failed_patch(pod))
        except KubeError as e:
            log.warning("phase_not_written", extra=kv(pod=pod.key, error=str(e)))
        self._free_lock(pod)

    def notify(self, pod: Pod, reason: str, message: str) -> None:
        """Write an Event about the pod."""
        self._emit(event_about(pod, reason, message))


def _served_text(candidate: Candidate) -> str:
    slots = candidate.held.slot_map
    return slots.without(candidate.lender) if slots is not None else ""


def _failed_patch(pod: Pod) -> JsonPatch:
    patch: list[Mapping[str, object]] = [{"op": "test", "path": "/metadata/uid", "value": pod.uid}]
    if not pod.annotations:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    return [*patch, _phase(names.PHASE_FAILED)]


def _phase(value: str) -> Mapping[str, object]:
    return {"op": "add", "path": annotation_pointer(names.POD_BIND_PHASE), "value": value}


def event_about(pod: Pod, reason: str, message: str) -> EventNote:
    """A warning Event about a pod."""
    return EventNote(
        kind="Pod",
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        reason=reason,
        message=message,
    )
