"""What Allocate writes: the served slot and the phase inside the call, all else afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hami_node.clock import Deadline
from hami_node.errors import Conflict, GrantMismatch, KubeError
from hami_node.model import Pod
from hami_node.node.allocate.debt import Debt, set_phase
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.owed import OwedWrites
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.identity.candidate import Candidate
from hami_node.node.identity.refusals import RECREATE
from hami_node.ports import DaemonKube, EventNote, JsonPatch
from hami_node.vendors.protocol import VendorProtocol
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
    """Writes the outcome of an Allocate to its pod, and notes what is owed after it."""

    def __init__(
        self,
        *,
        kube: DaemonKube,
        locks: LockKeeper,
        live: LiveUse,
        vendors: Sequence[VendorProtocol],
        notify: Callable[[EventNote], None],
        owed: OwedWrites,
    ) -> None:
        """Wire the parts. `vendors` are those served on this node; `notify` never blocks."""
        self._vendors = tuple(vendors)
        self._kube = kube
        self._locks = locks
        self._live = live
        self._emit = notify
        self._owed = owed

    def commit(self, candidate: Candidate, deadline: Deadline, limiter: str = "") -> None:
        """Empty the served slot, and with the last one set the phase; the node lock is owed then.

        The patch checks that the reservation is still the one that was read: without it nothing
        may be served. It also notes the version of what limits the container.

        Raises:
            GrantMismatch: the reservation or the pod is no longer what it was.
            KubeError: it can't be written in time.
        """
        self._owed.forgive(candidate.pod.uid)
        if candidate.is_borrowing:
            self._confirm(candidate, deadline)
            return
        patched = self._patched(candidate, deadline, limiter)
        if patched.is_over or patched.has_started:
            raise GrantMismatch(
                f"{candidate.name}: its pod is {patched.phase} already, so this call is not for "
                f"it: {RECREATE}"
            )
        self._live.patched(patched)
        if patched.annotations.get(names.POD_BIND_PHASE) == names.PHASE_SUCCESS:
            self._owed.add(self._debt(patched))

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
            for vendor in self._vendors
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
            patch.append(set_phase(names.PHASE_SUCCESS))
        return patch

    def fail(self, pod: Pod, why: str) -> None:
        """Owe the phase failed, an Event and the release of its lock. Never raises or waits."""
        failed = replace(
            self._debt(pod), phase=names.PHASE_FAILED, reason=REFUSED_EVENT, message=why
        )
        self._owed.add(failed)

    def forgive(self, pod: Pod) -> None:
        """It is served after all: it is told of no refusal any more. Never raises or waits."""
        self._owed.forgive(pod.uid)

    def tell(self, pod: Pod, why: str) -> None:
        """Owe an Event about the refusal, and nothing else. Never raises or waits."""
        self._owed.add(
            Debt(
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                reason=REFUSED_EVENT,
                message=why,
            )
        )

    def _debt(self, pod: Pod) -> Debt:
        """The release of the pod's lock, if it has one."""
        return Debt(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            lock=self._locks.text_of(pod),
            has_annotations=bool(pod.annotations),
        )

    def notify(self, pod: Pod, reason: str, message: str) -> None:
        """Write an Event about the pod."""
        self._emit(EventNote.about(pod, reason, message))


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
