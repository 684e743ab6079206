"""One pod's share of what is still to be written to the API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hami_node.ports import EventNote, JsonPatch, Kube
from hami_node.wire import names
from hami_node.wire.values.json_patch import annotation_pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Debt:
    """What is owed to one pod; "" for what is not.

    Attributes:
        uid, namespace, name: the pod.
        phase: the bind phase to write.
        lock: the exact text of the node lock to remove.
        reason, message: of a warning Event.
        has_annotations: false where the pod had none, so that there is no map to add to.
    """

    uid: str
    namespace: str
    name: str
    phase: str = ""
    lock: str = ""
    reason: str = ""
    message: str = ""
    has_annotations: bool = True

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_any(self) -> bool:
        """False once everything is written."""
        return bool(self.phase or self.lock or self.reason)

    @property
    def event(self) -> EventNote:
        """The Event."""
        return EventNote(
            kind="Pod",
            namespace=self.namespace,
            name=self.name,
            uid=self.uid,
            reason=self.reason,
            message=self.message,
        )

    def joined(self, newer: Debt) -> Debt:
        """Both debts; of two values for the same thing the newer counts."""
        return replace(
            newer,
            phase=newer.phase or self.phase,
            lock=newer.lock or self.lock,
            reason=newer.reason or self.reason,
            message=newer.message or self.message,
        )

    def without(self, seen: Debt, left: Debt) -> Debt:
        """This debt, which was `seen` before something was added, after all but `left` was paid."""
        is_event_paid = (self.reason, self.message) == (seen.reason, seen.message)
        return replace(
            self,
            phase=left.phase if self.phase == seen.phase else self.phase,
            lock=left.lock if self.lock == seen.lock else self.lock,
            reason=left.reason if is_event_paid else self.reason,
            message=left.message if is_event_paid else self.message,
        )


def phase_patch(kube: Kube, debt: Debt) -> JsonPatch | None:
    """The patch that writes the phase to exactly this pod; None if the pod is another one.

    Raises:
        KubeError: a pod without annotations has to be read, and can't be.
    """
    patch: list[Mapping[str, object]] = [{"op": "test", "path": "/metadata/uid", "value": debt.uid}]
    if not debt.has_annotations:
        pod = kube.read_pod(debt.namespace, debt.name)
        if pod.uid != debt.uid:
            return None
        if not pod.annotations:
            version = pod.resource_version
            patch.append({"op": "test", "path": "/metadata/resourceVersion", "value": version})
            patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    return [*patch, set_phase(debt.phase)]


def set_phase(value: str) -> Mapping[str, object]:
    """Write the bind phase."""
    return {"op": "add", "path": annotation_pointer(names.POD_BIND_PHASE), "value": value}
