"""Writes reservations onto pods, and takes them off again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hami_node.errors import Conflict, PodTaken
from hami_node.extender.counted import reservation_marks
from hami_node.extender.decisions import Reserved
from hami_node.model import ContainerKind, Node, Pod, Vendor
from hami_node.ports import Clock, ExtenderKube
from hami_node.wire import names
from hami_node.wire.placement_codec import encode_placement
from hami_node.wire.reservation import RESERVATION_KEYS

MAX_LABEL: Final = 63
"""Longest value of a label; HAMi 2.10's monitor selects pods by the node's name in one."""
TRIES: Final = 3


class ReservationWriter:
    """Each method is one request where nobody else writes the pod at that moment."""

    def __init__(self, kube: ExtenderKube, clock: Clock) -> None:
        """Write through this API."""
        self._kube, self._clock = kube, clock

    def annotations_of(
        self, pod: Pod, reserved: Reserved, node: Node | None = None
    ) -> dict[str, str | None]:
        """The annotations of a decision, in a form that the node's plugin reads.

        None removes what an earlier decision left.
        """
        grants = reserved.placed.grants
        now_s = self._clock.now()
        texts: dict[str, str | None] = {
            key: None for key in RESERVATION_KEYS if key in pod.annotations
        }
        containers, held = pod.containers, grants.containers
        if node is not None and _counts_apps_only(node) and _is_for_apps(pod, reserved):
            first = sum(one.kind is not ContainerKind.APP for one in containers)
            containers, held = containers[first:], held[first:]
        texts |= encode_placement(
            reserved.placed.node, containers, held, grants.mig, reserved.devices
        )
        texts[names.POD_TIME] = str(int(now_s))
        if texts.get(names.NEURON_IDS) is not None:
            texts[names.NEURON_ALLOC_TIME] = str(int(now_s * 1e9))
        return texts

    def write(
        self,
        pod: Pod,
        annotations: Mapping[str, str | None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Pod:
        """Store a decision on the pod; the pod as it stands then.

        The pod has to be unbound still: the patch names the version that we know, and after a
        conflict the pod is read again.

        Args:
            pod: as it was when it was decided.
            annotations: the decision.
            is_wanted: False once a later call decides; then nothing is written any more.

        Raises:
            PodTaken: it is bound, leaving, or another pod by now.
            Conflict: a later call decides, or the pod changes all the time.
            KubeError: the API server refuses or can't be reached.
        """
        node = annotations.get(names.POD_NODE) or ""
        label = node if 0 < len(node) <= MAX_LABEL else None

        def patch(seen: Pod) -> Pod:
            if not is_wanted():
                raise _OvertakenError(f"a later call decides about pod {pod.key}", 409)
            # what other calls have left by now goes as well
            left = {key: None for key in RESERVATION_KEYS if key in seen.annotations}
            labels = {names.POD_NODE: label} if label or names.POD_NODE in seen.labels else None
            return self._kube.patch_pod_exactly(seen, left | dict(annotations), labels)

        return self._exactly(pod, patch)

    def clear(self, pod: Pod) -> Pod:
        """Take exactly this reservation off the pod; the pod as it is then.

        A pod that is bound keeps what it carries: that is what it runs on.

        Raises:
            PodTaken: it is bound, leaving, or another pod by now.
            KubeError: the API server refuses or can't be reached.
        """
        marks = reservation_marks(pod)

        def patch(seen: Pod) -> Pod:
            if reservation_marks(seen) != marks:
                return seen  # it is gone, which is what was wanted
            paths = [_at(key) for key in RESERVATION_KEYS if key in seen.annotations]
            if names.POD_NODE in seen.labels:
                paths.append(_at(names.POD_NODE, "labels"))
            removals = [{"op": "remove", "path": path} for path in paths]
            return self._kube.json_patch_pod(seen.namespace, seen.name, [*_tests(seen), *removals])

        return self._exactly(pod, patch)

    def read(self, pod: Pod) -> Pod:
        """The pod, or another one of its name, as it is now.

        Raises:
            KubeError: it is gone, or the API server can't be reached.
        """
        return self._kube.read_pod(pod.namespace, pod.name)

    def _exactly(self, pod: Pod, patch: Callable[[Pod], Pod]) -> Pod:
        """Patch the pod in a version in which it is this pod and unbound."""
        seen = pod if pod.resource_version else self.read(pod)
        for _ in range(TRIES):
            if seen.uid != pod.uid:
                raise PodTaken(f"pod {pod.key} is another one by now", seen)
            if seen.node_name:
                raise PodTaken(f"pod {pod.key} is bound to {seen.node_name} by now", seen)
            if seen.is_being_deleted or seen.is_over:
                raise PodTaken(f"pod {pod.key} is leaving", seen)
            try:
                return patch(seen)
            except _OvertakenError:
                raise
            except Conflict:
                seen = self.read(pod)
        raise Conflict(f"pod {pod.key} changes faster than it can be written", 409)


class _OvertakenError(Conflict):
    """Not this version of the pod is in the way, but another decision."""


def _counts_apps_only(node: Node) -> bool:
    """Whether the node's plugin takes a slot's number for that of an app container.

    2.5 to 2.7, known by csv, do; a number beyond the last one ends their process. Source: HAMi
    2.7 nvinternal/plugin/util.go GetNextDeviceRequest.
    """
    register = node.annotations.get(names.NODE_REGISTER, "").strip()
    return bool(register) and not register.startswith(("[", "{"))


def _is_for_apps(pod: Pod, reserved: Reserved) -> bool:
    """Whether NVIDIA's cards are all that was granted, and app containers all who got any."""
    grants = reserved.placed.grants
    got = [(one.kind, held) for one, held in zip(pod.containers, grants.containers, strict=True)]
    return not grants.mig and all(
        kind is ContainerKind.APP and grant.vendor is Vendor.NVIDIA
        for kind, held in got
        for grant in held
    )


def _tests(pod: Pod) -> list[dict[str, object]]:
    """That it is this pod, in this version."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": pod.resource_version},
    ]


def _at(key: str, block: str = "annotations") -> str:
    return f"/metadata/{block}/" + key.replace("~", "~0").replace("/", "~1")
