"""The bind phase of refused pods: whoever placed them learns of it there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from hami_node.errors import KubeError
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.state import NodeState
from hami_node.ports import JsonPatch
from hami_node.wire import names
from hami_node.wire.values import annotation_pointer

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 60.0
MAX_UNANSWERED: Final = 2
"""Pods in one pass for which there was no answer at all."""


class Phases:
    """A step of the loop. Nothing is queued: a refused pod without the phase is found again."""

    def __init__(self, node: NodeState) -> None:
        """Write through the cluster's client."""
        self._kube, self._live, self._refused = node.kube, node.live, node.refused
        self._clock = node.clock
        self._tries: dict[str, tuple[int, float]] = {}
        """Of pods that could not be written, by uid: how often, and when next."""

    def look(self) -> float | None:
        """Write the phase to every refused pod that lacks it; seconds until some is tried again.

        A pod that can't be written, whoever forbids it, keeps no other from its phase.
        """
        lacking = {pod.uid: pod for pod in self._live.pods() if self._lacks_phase(pod)}
        self._tries = {uid: tried for uid, tried in self._tries.items() if uid in lacking}
        now_s, unanswered = self._clock.monotonic(), 0
        for uid in sorted(lacking, key=lambda uid: self._tries.get(uid, (0, 0.0))):
            failures, next_s = self._tries.get(uid, (0, now_s))
            if next_s > now_s:
                continue
            error = self._write(lacking[uid])
            if error is None:
                self._tries.pop(uid, None)
                continue
            log.warning("phase_not_written", extra=kv(pod=lacking[uid].key, error=str(error)))
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(failures, 16), LONGEST_PAUSE_S)
            self._tries[uid] = failures + 1, now_s + pause_s
            unanswered += not error.status
            if unanswered == MAX_UNANSWERED:
                break  # the API server can't be reached: nor would it be for the others
        if not lacking:
            return None
        waits = (self._tries.get(uid, (0, now_s + FIRST_PAUSE_S))[1] for uid in lacking)
        return max(min(waits) - self._clock.monotonic(), FIRST_PAUSE_S / 2)

    def _lacks_phase(self, pod: Pod) -> bool:
        """What kubelet has failed was refused too, by a daemon that was killed meanwhile."""
        phase = pod.annotations.get(names.POD_BIND_PHASE)
        if self._refused.get(pod.uid):
            return phase != names.PHASE_FAILED
        return bool(pod.refusal) and phase in (names.PHASE_ALLOCATING, names.PHASE_SUCCESS)

    def _write(self, pod: Pod) -> KubeError | None:
        """What went wrong; also for a pod that is gone or another one, which the watch may lag."""
        try:
            patched = self._kube.json_patch_pod(pod.namespace, pod.name, _failed(pod))
        except KubeError as e:
            return e
        self._live.patched(patched)
        return None


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
