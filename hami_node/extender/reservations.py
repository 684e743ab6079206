"""Writes reservations onto pods, and takes them off again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hami_node.errors import Conflict
from hami_node.extender.state import Reserved
from hami_node.model import Pod
from hami_node.ports import Clock, ExtenderKube
from hami_node.wire import names
from hami_node.wire.placement_codec import encode_placement

MAX_LABEL: Final = 63
"""Longest value of a label; HAMi 2.10's monitor selects pods by the node's name in one."""
TRIES: Final = 3
KEYS: Final = (
    names.POD_NODE,
    names.POD_TIME,
    names.POD_TO_ALLOCATE,
    names.POD_ALLOCATED,
    names.POD_MIG_ALLOCATIONS,
    names.POD_BIND_PHASE,
    names.POD_BIND_TIME,
    names.POD_NEURON_ALLOCATED,
    names.NEURON_IDS,
    names.NEURON_RESOURCE_TYPE,
    names.NEURON_ALLOC_TIME,
    names.NEURON_IS_ALLOCATED,
    names.NEURON_PREDICATE_NODE,
)
"""Every annotation of a reservation."""
_MARKS: Final = (names.POD_NODE, names.POD_TIME, names.POD_ALLOCATED, names.POD_NEURON_ALLOCATED)


class ReservationWriter:
    """Each method is one request where nobody else writes the pod at that moment."""

    def __init__(self, kube: ExtenderKube, clock: Clock) -> None:
        """Write through this API."""
        self._kube, self._clock = kube, clock

    def annotations_of(self, pod: Pod, reserved: Reserved) -> dict[str, str | None]:
        """The annotations of a decision; None removes what an earlier one left."""
        grants = reserved.placed.grants
        now_s = self._clock.now()
        texts: dict[str, str | None] = {key: None for key in KEYS if key in pod.annotations}
        texts |= encode_placement(
            reserved.placed.node, pod.containers, grants.containers, grants.mig, reserved.devices
        )
        texts[names.POD_TIME] = str(int(now_s))
        if texts.get(names.NEURON_IDS) is not None:
            texts[names.NEURON_ALLOC_TIME] = str(int(now_s * 1e9))
        return texts

    def write(self, pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
        """Store a decision on the pod; the pod as it stands then.

        The pod has to be unbound still: the patch names the version that we know, and after a
        conflict the pod is read again.

        Raises:
            Conflict: it is bound, or another pod by now.
            KubeError: the API server refuses or can't be reached.
        """
        node = annotations.get(names.POD_NODE) or ""
        labels = {names.POD_NODE: node} if 0 < len(node) <= MAX_LABEL else None
        seen = pod
        for _ in range(TRIES):
            if seen.uid != pod.uid or seen.node_name or seen.is_being_deleted:
                state = f"bound to {seen.node_name}" if seen.node_name else "gone"
                raise Conflict(f"pod {pod.key} is {state} by now", 409)
            try:
                return self._kube.patch_pod_exactly(seen, annotations, labels)
            except Conflict:
                seen = self._kube.read_pod(pod.namespace, pod.name)
        raise Conflict(f"pod {pod.key} changes faster than it can be reserved for", 409)

    def start_binding(self, pod: Pod) -> Pod:
        """Set the phase that tells the node's daemon to expect the pod.

        Raises:
            Conflict: the pod no longer carries this reservation.
            KubeError: the API server refuses or can't be reached.
        """
        values = {
            names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
            names.POD_BIND_TIME: str(int(self._clock.now())),
        }
        patch = _tests(pod)
        patch += [{"op": "add", "path": _at(key), "value": text} for key, text in values.items()]
        return self._kube.json_patch_pod(pod.namespace, pod.name, patch)

    def clear(self, pod: Pod) -> Pod:
        """Take exactly this reservation off the pod.

        Raises:
            Conflict: the pod carries another one, none, or is another pod.
            KubeError: the API server refuses or can't be reached.
        """
        patch = _tests(pod)
        patch += [{"op": "remove", "path": _at(key)} for key in KEYS if key in pod.annotations]
        return self._kube.json_patch_pod(pod.namespace, pod.name, patch)


def _tests(pod: Pod) -> list[dict[str, object]]:
    """That it is this pod, with this reservation."""
    tests: list[dict[str, object]] = [{"op": "test", "path": "/metadata/uid", "value": pod.uid}]
    tests += [
        {"op": "test", "path": _at(key), "value": pod.annotations[key]}
        for key in _MARKS
        if key in pod.annotations
    ]
    return tests


def _at(key: str) -> str:
    return "/metadata/annotations/" + key.replace("~", "~0").replace("/", "~1")
