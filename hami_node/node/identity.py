"""Which container does kubelet mean? Allocate does not say; kubelet's pod-resources list does.

While kubelet waits for Allocate its list holds the pod under admission with nothing for the
containers not yet served. Kubelets before 1.34 list ended pods too, so what the list shows is
checked against the API server's state. Doubt is a refusal that names the candidates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from hami_node.errors import KubeError, KubeletError, NoPendingPod, NotFound
from hami_node.logs import kv
from hami_node.model import Container, ContainerGrants, ContainerKind, Pod
from hami_node.node.loans import lenders
from hami_node.node.reservations import LiveUse
from hami_node.ports import HeldContainer, Kube, PodResources
from hami_node.wire import names
from hami_node.wire.reservation import Reservation, count_of, read_reservation

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

MAX_ASKED: Final = 8
"""Holders that the API server is asked about before a refusal."""
MEMORY: Final = 4096
"""How many served and refused containers are remembered."""

_Held = Mapping[str, tuple[str, ...]]
"""Device IDs of our resource by container name, of one pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A container that an Allocate call may mean.

    Attributes:
        lender: the container whose slot is used; its own name, or for an init container without
            a slot that of an app container, whose reservation stays. "" when `problem` says why
            there is none.
        is_repeat: the container was served before; it gets the same bytes again.
        loan: what a container without a slot takes of its lender's grants.
        problem: why this container can't be served, for people; "" when it can.
    """

    pod: Pod
    container: Container
    reservation: Reservation
    lender: str = ""
    loan: ContainerGrants | None = None
    is_repeat: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        """`namespace/pod/container`, for people."""
        return f"{self.pod.key}/{self.container.name}"

    @property
    def grants(self) -> ContainerGrants:
        """What the reservation holds for the container; () when there is none."""
        if self.loan is not None:
            return self.loan
        slots = self.reservation.slots
        return (slots.grants_of(self.lender) or ()) if slots is not None else ()

    @property
    def is_borrowing(self) -> bool:
        """True when the slot stays for another container."""
        return self.lender != self.container.name


class Identity:
    """Finds the container behind a call. Holds who was served and who was refused."""

    def __init__(
        self,
        *,
        live: LiveUse,
        kube: Kube,
        resources: PodResources,
        resource: str,
        node_name: str,
        has_served: Callable[[str], bool],
        lock_owner: Callable[[], str],
    ) -> None:
        """Wire the sources. `lock_owner` is `namespace/name` of the node lock's pod, or ""."""
        self._live = live
        self._kube = kube
        self._resources = resources
        self._resource = resource
        self._node_name = node_name
        self._has_served = has_served
        self._lock_owner = lock_owner
        self._served: dict[frozenset[str], tuple[str, str]] = {}
        self._refused: dict[str, None] = {}

    def was_served(self, candidate: Candidate, device_ids: Sequence[str]) -> None:
        """Remember the answer's owner: the same IDs again are a repeat."""
        owner = (candidate.pod.uid, candidate.container.name)
        _remember(self._served, frozenset(device_ids), owner)

    def was_refused(self, pod: Pod) -> None:
        """kubelet fails a refused pod for good: it is no candidate again."""
        _remember(self._refused, pod.uid, None)

    def find(self, device_ids: Sequence[str]) -> Candidate:
        """The one container that is meant.

        Raises:
            NoPendingPod: none or several could be; the text names them.
            KubeError: a pod has to be read and the API server does not answer.
        """
        return self._find(len(device_ids), device_ids)

    def find_next(self, count: int) -> Candidate:
        """The one container that waits for `count` cards. Raises as `find` does."""
        return self._find(count, ())

    def notice_ended(self) -> bool:
        """Ask about holders that kubelet does not list, before a refusal; True if one has ended."""
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
            held = _by_pod(self._resources.list(), self._resource)
        except KubeletError as e:
            log.warning("identity_by_lock", extra=kv(error=str(e)))
            self._live.settle(())  # without kubelet's word the API server's counts
            return self._by_lock(tuple(pods.values()), count)
        self._live.settle(key for key, containers in held.items() if any(containers.values()))
        found = self._waiting(held, pods)
        if not found:
            # A pod of the same name that ended may hide the one that kubelet means.
            found = self._hidden(held, pods)
        if not found and device_ids:
            return self._repeat(held, pods, device_ids)
        if len(found) > 1:
            # The watch may lag behind pods that ended a moment ago.
            found = [
                candidate
                for one in found
                if (candidate := self._unserved_now(one.pod, held)) is not None
            ]
        return _the_one(found, count, self._resource)

    def _waiting(
        self, held: Mapping[tuple[str, str], _Held], pods: Mapping[tuple[str, str], Pod]
    ) -> list[Candidate]:
        """Every listed container that waits. A pod that can't be read counts if no other does."""
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
        """Listed pods whose namesake in the watch is over or was refused, read anew."""
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
        """The pod's next container, from the watch; read anew when that can't be right."""
        pod = pods.get(key)
        if pod is not None and not any(count_of(one, self._resource) for one in pod.containers):
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
        asking = [one for one in pod.containers if count_of(one, self._resource)]
        if not asking or held.get(asking[-1].name):
            return None  # kubelet serves in order: the last is served, so all are
        reservation = read_reservation(pod, self._resource)
        for place, container in enumerate(pod.containers):
            count = count_of(container, self._resource)
            if not count:
                continue
            if container.kind is ContainerKind.INIT:
                # kubelet serves in order: whatever holds something after it says that it is over
                is_served = any(
                    held.get(later.name) for later in pod.containers[place + 1 :]
                ) or self._is_unlisted_served(pod, container, reservation)
            elif container.name in held:
                is_served = bool(held[container.name])
            else:
                is_served = self._is_unlisted_served(pod, container, reservation)
            if not is_served:
                return _candidate(pod, container, reservation, count)
        return None

    def _is_unlisted_served(self, pod: Pod, container: Container, reservation: Reservation) -> bool:
        """For containers that kubelet does not list (plain inits): slot or folder tells."""
        slots = reservation.slots
        if slots is not None and slots.grants_of(container.name) is not None:
            return not slots.is_waiting(container.name)
        return self._has_served(f"{pod.uid}_{container.name}")

    def _repeat(
        self,
        held: Mapping[tuple[str, str], _Held],
        pods: Mapping[tuple[str, str], Pod],
        device_ids: Sequence[str],
    ) -> Candidate:
        """A call for a container already served: known by its device IDs, still listed as held."""
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
                reservation = read_reservation(pod, self._resource)
                count = count_of(container, self._resource)
                candidate = _candidate(pod, container, reservation, count, is_repeat=True)
                if count == len(wanted) and not candidate.problem:
                    return candidate
        raise NoPendingPod(
            f"no pod on node {self._node_name} waits for {len(device_ids)} {self._resource}, by "
            "kubelet's pod-resources list: create the pod again"
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
        return _the_one(found, count, self._resource)

    def _next_waiting(self, pod: Pod) -> Candidate | None:
        """As `_next`, when only the reservation tells who was served."""
        slots = read_reservation(pod, self._resource).slots
        if slots is None:
            return None
        served = {name: ("served",) for name in slots.granted if not slots.is_waiting(name)}
        return self._next(pod, served)


def _the_one(found: Sequence[Candidate], count: int, resource: str) -> Candidate:
    if len(found) == 1:
        one = found[0]
        asked = count_of(one.container, resource)
        if asked != count:
            raise NoPendingPod(
                f"kubelet asks for {count} {resource}, and the only container that waits, "
                f"{one.name}, asks for {asked}: create the pod again"
            )
        return one
    matching = [one for one in found if count_of(one.container, resource) == count]
    if len(matching) == 1 and found:
        # Device counts tell the others apart: they can't be meant.
        return matching[0]
    if not found:
        raise NoPendingPod(f"no pod waits for {count} {resource} here: create the pod again")
    listed = ", ".join(sorted(one.name for one in found))
    raise NoPendingPod(
        f"{len(found)} containers could be meant ({listed}) and hami-node does not guess: create "
        "the pods again, one at a time",
        candidates=tuple(one.pod for one in found),
    )


def _candidate(
    pod: Pod,
    container: Container,
    reservation: Reservation,
    count: int,
    *,
    is_repeat: bool = False,
) -> Candidate:
    slots = reservation.slots
    lender, problem = "", reservation.problem
    if slots is not None:
        if slots.grants_of(container.name) is not None:
            lender = container.name
            if not is_repeat and not slots.is_waiting(lender):
                problem = "its reservation was used up before"
        elif container.kind is ContainerKind.SIDECAR:
            problem = (
                "the scheduler reserved nothing for this sidecar, which runs beside the others: "
                "give its limits to an app container, or use a scheduler that knows sidecars"
            )
        else:
            lender = next(iter(lenders(slots, pod, count)), "")
            if not lender:
                problem = f"no reservation of {count} cards is left for this container"
    return Candidate(
        pod=pod,
        container=container,
        reservation=reservation,
        lender=lender,
        is_repeat=is_repeat,
        problem=problem,
    )


def _holds(held: _Held, container: Container, wanted: frozenset[str]) -> bool:
    """True if kubelet lists these IDs for the container.

    Init containers are not listed; the containers after them hold the same IDs.
    """
    if container.kind is ContainerKind.INIT:
        return any(wanted & set(ids) for ids in held.values())
    return frozenset(held.get(container.name, ())) == wanted


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    """Keep the newest entries only: what is older can't be asked for again."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > MEMORY:
        del memory[next(iter(memory))]


def _by_pod(
    listed: Sequence[HeldContainer], resource: str
) -> dict[tuple[str, str], dict[str, tuple[str, ...]]]:
    pods: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for one in listed:
        ids = one.device_ids.get(resource, ())
        pods.setdefault((one.namespace, one.pod), {})[one.container] = ids
    return pods
