"""What Allocate writes: the served slot, the phase, the lock, an Event. Nothing else is touched."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from hami_node.errors import Conflict, GrantMismatch, KubeError
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.identity import Candidate
from hami_node.node.refusals import RECREATE
from hami_node.node.reservations import LiveUse
from hami_node.ports import EventNote, JsonPatch, Kube
from hami_node.wire import names
from hami_node.wire.reservation import read_reservation

log = logging.getLogger(__name__)

REFUSED_EVENT: Final = "AllocationRefused"
PATCH_TRIES: Final = 4
PATCH_PAUSE_S: Final = 0.25


class Locks(Protocol):
    """The node lock."""

    def release(self, pod: Pod) -> bool:
        """Free the lock if this very pod owns it; True if it did. Raises KubeError."""


class PodWriter:
    """Writes the outcome of an Allocate to its pod and frees the node lock."""

    def __init__(
        self,
        *,
        kube: Kube,
        locks: Locks,
        live: LiveUse,
        notify: Callable[[EventNote], None],
        stop: threading.Event,
    ) -> None:
        """Wire the parts. `notify` never blocks."""
        self._kube = kube
        self._locks = locks
        self._live = live
        self._notify = notify
        self._stop = stop

    def commit(self, candidate: Candidate, resource: str) -> None:
        """Empty the served slot and, with the last one, set the phase and free the lock."""
        if candidate.is_borrowing:
            self._confirm(candidate)
            self._live.served(candidate.pod)
            return
        for attempt in range(PATCH_TRIES):
            try:
                patched = self._kube.json_patch_pod(
                    candidate.pod.namespace, candidate.pod.name, _served_patch(candidate)
                )
                break
            except Conflict:
                candidate = self._read_again(candidate, resource)
            except KubeError as e:
                if not e.is_transient or attempt == PATCH_TRIES - 1:
                    raise
                # The write may have happened although its answer was lost.
                self._stop.wait(PATCH_PAUSE_S * 2**attempt)
                candidate = self._read_after_doubt(candidate, resource)
        else:
            raise GrantMismatch(f"{candidate.name}: the pod keeps changing: {RECREATE}")
        self._live.patched(patched)
        if _is_last(candidate):
            self._free_lock(patched)

    def _confirm(self, candidate: Candidate) -> None:
        """A loan writes nothing that would fail on another pod, so the pod is read instead."""
        pod = self._kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        if pod.uid != candidate.pod.uid or any(
            pod.annotations.get(key) != candidate.pod.annotations.get(key)
            for key in (names.POD_ALLOCATED, names.POD_TO_ALLOCATE)
        ):
            raise GrantMismatch(
                f"{candidate.name}: its reservation changed while it was served: {RECREATE}"
            )

    def _read_again(self, candidate: Candidate, resource: str) -> Candidate:
        """The pod as it is now; its slot must still wait with the same grants."""
        pod = self._kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        reservation = read_reservation(pod, resource)
        slots = reservation.slots
        if pod.uid != candidate.pod.uid or slots is None or not slots.is_waiting(candidate.lender):
            raise GrantMismatch(
                f"{candidate.name}: its reservation changed while it was served: {RECREATE}"
            )
        if slots.grants_of(candidate.lender) != candidate.grants:
            raise GrantMismatch(
                f"{candidate.name}: its reservation was rewritten while it was served: {RECREATE}"
            )
        return replace(candidate, pod=pod, reservation=reservation)

    def _read_after_doubt(self, candidate: Candidate, resource: str) -> Candidate:
        """After an error whose effect is unknown: our own patch, seen standing, is success."""
        try:
            pod = self._kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        except KubeError as e:
            if not e.is_transient:
                raise
            return candidate
        expected = _served_text(candidate)
        if (
            pod.uid == candidate.pod.uid
            and pod.annotations.get(names.POD_TO_ALLOCATE) == expected
            and candidate.pod.annotations.get(names.POD_TO_ALLOCATE) != expected
        ):
            reservation = read_reservation(pod, resource)
            if reservation.slots is None:
                raise GrantMismatch(f"{candidate.name}: {reservation.problem}: {RECREATE}")
            return replace(candidate, pod=pod, reservation=reservation)
        return candidate

    def _free_lock(self, pod: Pod) -> None:
        try:
            self._locks.release(pod)
        except KubeError as e:
            # The pod is served; the lock's keeper tries again.
            log.warning("lock_not_freed", extra=kv(pod=pod.key, error=str(e)))

    def fail(self, pod: Pod, why: str) -> None:
        """Phase failed, an Event, the lock freed. Best effort, each on its own."""
        self.tell(pod, REFUSED_EVENT, why)
        try:
            self._kube.json_patch_pod(pod.namespace, pod.name, _failed_patch(pod))
        except KubeError as e:
            log.warning("phase_not_written", extra=kv(pod=pod.key, error=str(e)))
        self._free_lock(pod)

    def tell(self, pod: Pod, reason: str, message: str) -> None:
        """Write an Event about the pod."""
        self._notify(event_about(pod, reason, message))


def _served_text(candidate: Candidate) -> str:
    slots = candidate.reservation.slots
    return slots.without(candidate.lender) if slots is not None else ""


def _is_last(candidate: Candidate) -> bool:
    slots = candidate.reservation.slots
    return slots is not None and not (set(slots.waiting) - {candidate.lender})


def _served_patch(candidate: Candidate) -> JsonPatch:
    """One patch: only if the pod is the same and its reservation untouched."""
    annotations = candidate.pod.annotations
    old = annotations.get(names.POD_TO_ALLOCATE, "")
    patch: list[Mapping[str, object]] = [
        {"op": "test", "path": "/metadata/uid", "value": candidate.pod.uid},
        {
            "op": "test",
            "path": _path(names.POD_ALLOCATED),
            "value": annotations.get(names.POD_ALLOCATED, ""),
        },
        {"op": "test", "path": _path(names.POD_TO_ALLOCATE), "value": old},
        {"op": "replace", "path": _path(names.POD_TO_ALLOCATE), "value": _served_text(candidate)},
    ]
    if _is_last(candidate):
        patch.append(_phase(names.PHASE_SUCCESS))
    return patch


def _failed_patch(pod: Pod) -> JsonPatch:
    patch: list[Mapping[str, object]] = [{"op": "test", "path": "/metadata/uid", "value": pod.uid}]
    if not pod.annotations:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    return [*patch, _phase(names.PHASE_FAILED)]


def _phase(value: str) -> Mapping[str, object]:
    return {"op": "add", "path": _path(names.POD_BIND_PHASE), "value": value}


def _path(annotation: str) -> str:
    escaped = annotation.replace("~", "~0").replace("/", "~1")
    return f"/metadata/annotations/{escaped}"


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
