"""Writes reservations to pods, and removes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hami_node.cluster.client import KubeClient
from hami_node.errors import Conflict, KubeError, PodTaken
from hami_node.extender.state.decisions import Reserved
from hami_node.extender.state.pod_book import reservation_marks
from hami_node.logs import kv
from hami_node.model import Node, Pod
from hami_node.ports import Clock, Fence
from hami_node.vendors.holding import reservation_keys
from hami_node.vendors.placement import encode_placement
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.reservation import encode_victims
from hami_node.wire.values import annotation_pointer, pointer

log = logging.getLogger(__name__)

MAX_LABEL: Final = 63
"""Longest value of a label; HAMi 2.10's monitor selects pods by a label with the node's name."""
TRIES: Final = 3


class ReservationWriter:
    """Each method makes one request, unless somebody else writes the pod at that moment."""

    def __init__(self, kube: KubeClient, clock: Clock, vendors: Sequence[VendorProtocol]) -> None:
        """Write through this API, in the formats of these vendors."""
        self._kube, self._clock, self._vendors = kube, clock, vendors
        self._keys = reservation_keys(vendors)

    def annotations_of(
        self, pod: Pod, reserved: Reserved, node: Node | None = None
    ) -> dict[str, str | None]:
        """The annotations of a decision, in the format that the node's plugin reads.

        None removes what an earlier decision left behind.
        """
        left: dict[str, str | None] = {key: None for key in self._keys if key in pod.annotations}
        return left | encode_placement(
            node or Node(name=reserved.placed.node),
            pod.containers,
            reserved.placed.grants.containers,
            reserved.devices,
            self._vendors,
            self._clock.now(),
        )

    def write(
        self,
        pod: Pod,
        annotations: Mapping[str, str | None],
        is_wanted: Callable[[], bool],
        fence: Fence,
    ) -> Pod:
        """Store a decision on the pod; returns the resulting pod.

        The pod must still be unbound: the patch names the version that we know, and after a
        conflict the pod is read again.

        Args:
            pod: as it was at the decision.
            annotations: the decision.
            is_wanted: False once a later call decides; then nothing more is written.
            fence: checked before each attempt.

        Raises:
            NotLeading: another replica decides by now.
            PodTaken: it is bound, being deleted, ended or replaced by another pod.
            Conflict: a later call decides, or the pod keeps changing.
            KubeError: the API server refuses or can't be reached.
        """
        node = annotations.get(names.POD_NODE) or ""
        label = node if 0 < len(node) <= MAX_LABEL else None
        kube = self._kube.fenced(fence)

        def patch(seen: Pod) -> Pod:
            if not is_wanted():
                raise _OvertakenError(f"a later call decides about pod {pod.key}", 409)
            # annotations that other calls have left meanwhile are removed as well
            left = {key: None for key in self._keys if key in seen.annotations}
            labels = {names.POD_NODE: label} if label or names.POD_NODE in seen.labels else None
            return kube.patch_pod_exactly(seen, left | dict(annotations), labels)

        return self._exactly(pod, patch)

    def note_victims(self, pod: Pod, victims: Mapping[str, tuple[str, ...]], fence: Fence) -> None:
        """Note by node who is evicted for the pod. Raises as `clear`."""
        note, kube = encode_victims(victims), self._kube.fenced(fence)

        def patch(seen: Pod) -> Pod:
            if seen.annotations.get(names.POD_VICTIMS) == note:
                return seen
            return kube.patch_pod_exactly(seen, {names.POD_VICTIMS: note})

        self._exactly(pod, patch)

    def clear(self, pod: Pod, fence: Fence) -> Pod:
        """Remove exactly this reservation from the pod; returns the resulting pod.

        A bound pod keeps its reservation: its containers run with it.

        Raises:
            NotLeading: by the fence, another replica decides by now.
            PodTaken: it is bound, being deleted, ended or replaced by another pod.
            KubeError: the API server refuses or can't be reached.
        """
        marks, kube = reservation_marks(pod, self._vendors), self._kube.fenced(fence)

        def patch(seen: Pod) -> Pod:
            if reservation_marks(seen, self._vendors) != marks:
                return seen  # already removed
            paths = [annotation_pointer(key) for key in self._keys if key in seen.annotations]
            if names.POD_NODE in seen.labels:
                paths.append(pointer("metadata", "labels", names.POD_NODE))
            removals = [{"op": "remove", "path": path} for path in paths]
            return kube.json_patch_pod(seen.namespace, seen.name, [*_tests(seen), *removals])

        return self._exactly(pod, patch)

    def seal(self, pod: Pod, fence: Fence) -> Pod:
        """Write the unbound pod, so that no Binding of an earlier version can be stored any more.

        Returns the resulting pod, which carries nothing new. Raises as `clear`.
        """
        kube, key = self._kube.fenced(fence), names.POD_BIND_TIME

        def patch(seen: Pod) -> Pod:
            # what changes nothing would leave the version
            stamp = None if key in seen.annotations else str(int(self._clock.now()))
            return kube.patch_pod_exactly(seen, {key: stamp}, None)

        sealed = self._exactly(pod, patch)
        if key not in sealed.annotations:
            return sealed
        try:
            return kube.patch_pod_exactly(sealed, {key: None}, None)
        except KubeError as e:
            # the next decision removes it
            log.debug("seal_not_removed", extra=kv(pod=pod.key, error=str(e)))
            return sealed

    def read(self, pod: Pod) -> Pod:
        """The pod of this name as it is now; it may be another pod.

        Raises:
            KubeError: it was deleted, or the API server can't be reached.
        """
        return self._kube.read_pod(pod.namespace, pod.name)

    def _exactly(self, pod: Pod, patch: Callable[[Pod], Pod]) -> Pod:
        """Patch a version of the pod in which it is the same pod and unbound."""
        seen = pod if pod.resource_version else self.read(pod)
        for _ in range(TRIES):
            if seen.uid != pod.uid:
                raise PodTaken(f"pod {pod.key} was replaced by another pod", seen)
            if seen.node_name:
                raise PodTaken(f"pod {pod.key} is now bound to {seen.node_name}", seen)
            if seen.is_being_deleted or seen.is_over:
                raise PodTaken(f"pod {pod.key} is being deleted or has ended", seen)
            try:
                return patch(seen)
            except _OvertakenError:
                raise
            except Conflict:
                seen = self.read(pod)
        raise Conflict(f"pod {pod.key} changes faster than it can be written", 409)


class _OvertakenError(Conflict):
    """The conflict is not the version of the pod, but another decision."""


def _tests(pod: Pod) -> list[dict[str, object]]:
    """Tests that it is this pod, in this version."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": pod.resource_version},
    ]
