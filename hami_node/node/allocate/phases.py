"""The bind phase of refused pods: whoever placed them learns of it there."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hami_node.errors import Conflict, KubeError, NotFound
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.parts import ClusterParts
from hami_node.ports import JsonPatch
from hami_node.wire import names
from hami_node.wire.values.json_patch import annotation_pointer

log = logging.getLogger(__name__)


class Phases:
    """A step of the loop. Nothing is remembered: a refused pod without the phase is found again."""

    def __init__(self, cluster: ClusterParts) -> None:
        """Write through the cluster's client."""
        self._kube, self._live, self._refused = cluster.kube, cluster.live, cluster.refused

    def look(self) -> None:
        """Write the phase to every refused pod that lacks it.

        Raises:
            KubeError: one of them can't be written now; the others were tried.
        """
        failure: KubeError | None = None
        for pod in self._live.pods():
            if not self._lacks_phase(pod):
                continue
            try:
                self._write(pod)
            except KubeError as e:
                failure = e
                if not e.status:
                    break  # the API server can't be reached: nor would it be for the others
        if failure is not None:
            raise failure

    def _lacks_phase(self, pod: Pod) -> bool:
        """What kubelet has failed was refused too, by a daemon that was killed meanwhile."""
        phase = pod.annotations.get(names.POD_BIND_PHASE)
        if self._refused.get(pod.uid):
            return phase != names.PHASE_FAILED
        return bool(pod.refusal) and phase == names.PHASE_ALLOCATING

    def _write(self, pod: Pod) -> None:
        try:
            patched = self._kube.json_patch_pod(pod.namespace, pod.name, _failed(pod))
        except (Conflict, NotFound) as e:  # it is gone, another one, or was written meanwhile
            log.info("phase_not_written", extra=kv(pod=pod.key, error=str(e)))
        else:
            self._live.patched(patched)


def _failed(pod: Pod) -> JsonPatch:
    """Only to exactly this pod. One without annotations has no map to add to."""
    patch: list[Mapping[str, object]] = [{"op": "test", "path": "/metadata/uid", "value": pod.uid}]
    if not pod.annotations:
        version = pod.resource_version
        patch.append({"op": "test", "path": "/metadata/resourceVersion", "value": version})
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    return [*patch, phase_set(names.PHASE_FAILED)]


def phase_set(value: str) -> Mapping[str, object]:
    """Write the bind phase."""
    return {"op": "add", "path": annotation_pointer(names.POD_BIND_PHASE), "value": value}
