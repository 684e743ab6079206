"""Which container is a call for? Allocate does not name it; kubelet's pod-resources list shows it.

While kubelet waits for Allocate its list contains the pod under admission, without devices for the
containers not yet served. Kubelets before 1.34 also list ended pods, so the list is checked against
the API server's state. If it stays ambiguous, the call is refused with the candidates' names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from hami_node.errors import KubeError, KubeletError, NoPendingPod, NotFound
from hami_node.logs import kv
from hami_node.model import Container, ContainerKind, Pod
from hami_node.node.allocate.candidate import Candidate, candidate_of, only_candidate
from hami_node.node.allocate.live_use import LiveUse
from hami_node.ports import HeldContainer, Kube, PodResources
from hami_node.vendors.protocol import HeldGrants, VendorProtocol
from hami_node.wire import names
from hami_node.wire.reservation import count_of

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

MAX_ASKED: Final = 8
"""Holders that are read from the API server before a refusal."""
MEMORY: Final = 4096
"""How many served and refused containers are remembered."""

_Held = Mapping[str, tuple[str, ...]]
"""Device IDs of our resource by container name, of one pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySources:
    """Where to look for the container of a call.

    Attributes:
        resources: kubelet's list.
        lock_owner: `namespace/name` of the node lock's pod, or "".
        refused: uids of pods that were refused, whichever resource the call was for.
    """

    live: LiveUse
    kube: Kube
    resources: PodResources
    lock_owner: Callable[[], str]
    refused: dict[str, None] = field(default_factory=dict)


class Identity:
    """Finds the container behind a call. Remembers which were served and which refused."""

    def __init__(
        self,
        *,
        vendor: VendorProtocol,
        resource: str,
        served_resources: Collection[str],
        sources: IdentitySources,
        node_name: str,
        has_served: Callable[[str], bool],
    ) -> None:
        """Find the containers that ask for `resource`, one of those that this daemon serves.

        `has_served` looks up the `<pod uid>_<container>` folders of this resource.
        """
        self._vendor, self._resource = vendor, resource
        self._served_resources = frozenset(served_resources)
        self._live, self._kube = sources.live, sources.kube
        self._resources, self._lock_owner = sources.resources, sources.lock_owner
        self._node_name = node_name
        self._has_served = has_served
        self._served: dict[frozenset[str], tuple[str, str]] = {}
        self._refused = sources.refused

    def was_served(self, candidate: Candidate, device_ids: Sequence[str]) -> None:
        """Remember the container that was served: the same IDs again are a repeat."""
        owner = (candidate.pod.uid, candidate.container.name)
        _remember(self._served, frozenset(device_ids), owner)

    def was_refused(self, pod: Pod) -> None:
        """kubelet fails a refused pod for good: it is never a candidate again."""
        _remember(self._refused, pod.uid, None)

    def find(self, device_ids: Sequence[str]) -> Candidate:
        """The container that the call is for.

        Raises:
            NoPendingPod: there is none, or several are possible; the text names them.
            KubeError: a pod has to be read and the API server does not answer.
        """
        return self._find(len(device_ids), device_ids)

    def find_next(self, count: int) -> Candidate:
        """The only container that waits for `count` cards. Raises as `find` does."""
        return self._find(count, ())

    def notice_ended(self) -> bool:
        """Read holders that kubelet does not list, before a refusal; True if any has ended."""
        found = False
        for pod in self._live.unlisted()[:MAX_ASKED]:
            try:
                now = self._kube.read_pod(pod.namespace, pod.name)
            except NotFound:
                now = None
            except KubeError as e:
                log.warning("holder_not_read", extra=kv(pod=pod.key, error=str(e)))
                continue
            found = self._live.ended_as(pod, now) or found
        return found

    def _find(self, count: int, device_ids: Sequence[str]) -> Candidate:
        pods = {(pod.namespace, pod.name): pod for pod in self._live.pods()}
        try:
            listed = self._resources.list()
        except KubeletError as e:
            log.warning("identity_by_lock", extra=kv(error=str(e)))
            self._live.settle(())  # without kubelet's list the API server's state counts
            return self._by_lock(tuple(pods.values()), count)
        self._live.settle(
            (item.namespace, item.pod)
            for item in listed
            if any(item.device_ids.get(resource) for resource in self._served_resources)
        )
        held = _by_pod(listed, self._resource)
        found = self._waiting(held, pods)
        if not found:
            # An ended pod of the same name may hide the pod that the call is for.
            found = self._hidden(held, pods)
        if not found and device_ids:
            return self._repeat(held, pods, device_ids)
        if len(found) > 1:
            # The watch may lag behind pods that ended a moment ago.
            found = [
                candidate
                for waiting in found
                if (candidate := self._unserved_now(waiting.pod, held)) is not None
            ]
        return only_candidate(found, count, self._resource)

    def _waiting(
        self, held: Mapping[tuple[str, str], _Held], pods: Mapping[tuple[str, str], Pod]
    ) -> list[Candidate]:
        """Every listed container that waits. If there is none, a pod that can't be read raises."""
        found: list[Candidate] = []
        unread: KubeError | None = None
        for key, containers in held.items():
            try:
                candidate = self._unserved(key, containers, pods)
            except KubeError as e:
                log.warning("pod_not_read", extra=kv(pod="/".join(key), error=str(e)))
                unread = e
                continue
            if candidate is not None:
                found.append(candidate)
        if not found and unread is not None:
            raise unread
        return found

    def _hidden(
        self, held: Mapping[tuple[str, str], _Held], pods: Mapping[tuple[str, str], Pod]
    ) -> list[Candidate]:
        """Listed pods whose namesake in the watch has ended or was refused, read again."""
        found = []
        for key, containers in held.items():
            pod = pods.get(key)
            if pod is None or not (pod.is_over or pod.uid in self._refused):
                continue
            if containers and all(containers.values()):
                continue
            candidate = self._read_next(key, containers)
            if candidate is not None and candidate.pod.uid != pod.uid:
                found.append(candidate)
        return found

    def _unserved(
        self, key: tuple[str, str], held: _Held, pods: Mapping[tuple[str, str], Pod]
    ) -> Candidate | None:
        """The pod's next container, from the watch; read again when that can't be right."""
        pod = pods.get(key)
        if pod is not None and not any(count_of(item, self._resource) for item in pod.containers):
            return None
        if pod is not None:
            candidate = self._next(pod, held)
            if candidate is None or not candidate.problem:
                return candidate
        elif all(held.values()) and held:
            return None  # fully served, and the watch will show it
        return self._read_next(key, held)

    def _unserved_now(self, pod: Pod, held: Mapping[tuple[str, str], _Held]) -> Candidate | None:
        key = (pod.namespace, pod.name)
        return self._read_next(key, held[key])

    def _read_next(self, key: tuple[str, str], held: _Held) -> Candidate | None:
        try:
            pod = self._kube.read_pod(*key)
        except NotFound:
            return None
        return self._next(pod, held)

    def _next(self, pod: Pod, held: _Held) -> Candidate | None:
        """The first container in kubelet's order that is not served yet."""
        if pod.is_over or pod.uid in self._refused:
            return None
        if pod.node_name not in ("", self._node_name):
            return None
        if pod.annotations.get(names.POD_BIND_PHASE) == names.PHASE_FAILED:
            return None
        asking = [item for item in pod.containers if count_of(item, self._resource)]
        if not asking or held.get(asking[-1].name):
            return None  # kubelet serves in order: the last is served, so all are
        grants = self._vendor.held_by(pod)
        for i, container in enumerate(pod.containers):
            count = count_of(container, self._resource)
            if not count:
                continue
            if container.kind is ContainerKind.INIT:
                # kubelet serves in order: if a later container holds something, this has ended
                is_served = any(
                    held.get(later.name) for later in pod.containers[i + 1 :]
                ) or self._is_unlisted_served(pod, container, grants)
            elif container.name in held:
                is_served = bool(held[container.name])
            else:
                is_served = self._is_unlisted_served(pod, container, grants)
            if not is_served:
                return candidate_of(self._vendor, pod, container, grants, count)
        return None

    def _is_unlisted_served(self, pod: Pod, container: Container, grants: HeldGrants) -> bool:
        """For containers that kubelet does not list (plain inits): slot or folder show it."""
        slots = grants.slot_map
        if slots is not None and slots.grants_of(container.name) is not None:
            return not slots.is_waiting(container.name)
        return self._has_served(f"{pod.uid}_{container.name}")

    def _repeat(
        self,
        held: Mapping[tuple[str, str], _Held],
        pods: Mapping[tuple[str, str], Pod],
        device_ids: Sequence[str],
    ) -> Candidate:
        """A call for a container already served: found by its device IDs, still listed as held."""
        wanted = frozenset(device_ids)
        remembered = self._served.get(wanted)
        for key, containers in held.items():
            pod = pods.get(key)
            if pod is None or pod.is_over:
                continue
            for container in pod.containers:
                if not _holds(containers, container, wanted):
                    continue
                if (
                    container.kind is ContainerKind.INIT
                    and (pod.uid, container.name) != remembered
                    and not self._has_served(f"{pod.uid}_{container.name}")
                ):
                    continue
                grants = self._vendor.held_by(pod)
                count = count_of(container, self._resource)
                candidate = candidate_of(
                    self._vendor, pod, container, grants, count, is_repeat=True
                )
                if count == len(wanted) and not candidate.problem:
                    return candidate
        raise NoPendingPod(
            f"no pod on node {self._node_name} waits for {len(device_ids)} {self._resource}, "
            "according to kubelet's pod-resources list: delete and recreate the pod"
        )

    def _by_lock(self, pods: Sequence[Pod], count: int) -> Candidate:
        """Without kubelet's list: the lock's owner, or the only pod that waits."""
        owner = self._lock_owner()
        found = []
        for pod in pods:
            if owner and pod.key != owner:
                continue
            if pod.annotations.get(names.POD_BIND_PHASE) != names.PHASE_ALLOCATING:
                continue
            candidate = self._next_waiting(pod)
            if candidate is not None and len(candidate.grants) == count:
                found.append(candidate)
        return only_candidate(found, count, self._resource)

    def _next_waiting(self, pod: Pod) -> Candidate | None:
        """As `_next`, when only the reservation shows which containers were served."""
        slots = self._vendor.held_by(pod).slot_map
        if slots is None:
            return None
        served = {name: ("served",) for name in slots.granted if not slots.is_waiting(name)}
        return self._next(pod, served)


def _holds(held: _Held, container: Container, wanted: frozenset[str]) -> bool:
    """True if kubelet lists these IDs for the container.

    Init containers are not listed; the containers after them hold the same IDs.
    """
    if container.kind is ContainerKind.INIT:
        return any(wanted & set(ids) for ids in held.values())
    return frozenset(held.get(container.name, ())) == wanted


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    """Keep the newest entries only: older ones are not needed again."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > MEMORY:
        del memory[next(iter(memory))]


def _by_pod(
    listed: Sequence[HeldContainer], resource: str
) -> dict[tuple[str, str], dict[str, tuple[str, ...]]]:
    pods: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for item in listed:
        ids = item.device_ids.get(resource, ())
        pods.setdefault((item.namespace, item.pod), {})[item.container] = ids
    return pods
