"""What of the reservations on this node is in live use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, KeysView, Mapping
from typing import Final

from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants
from hami_node.errors import WireError
from hami_node.logs import kv
from hami_node.model import ContainerGrants, ContainerKind, Device, Pod, Uuid
from hami_node.node.loans import lenders
from hami_node.ports import Clock, Watched
from hami_node.wire import names
from hami_node.wire.pod_codec import decode_grants
from hami_node.wire.reservation import are_inits_over, count_of, counts_of, read_reservation
from hami_node.wire.slots import SlotMap

log = logging.getLogger(__name__)

UNSEEN_S: Final = 300.0
"""How long our own patch of a pod that the watch has never shown counts: longer than a watch may
be dead without a sign."""


class LiveUse:
    """What containers that were served hold of each card, until their pods have ended.

    The watch may lag behind our own patches, so a pod that we patched counts as we left it until
    the watch shows that or something newer.
    """

    def __init__(
        self,
        *,
        watched: Watched,
        resource: str,
        has_served: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        """Wire the sources. `has_served` knows `<pod uid>_<container>` folders."""
        self._watched = watched
        self._resource = resource
        self._has_served = has_served
        self._clock = clock
        self._lock = threading.Lock()
        self._patched: dict[str, tuple[Pod, float]] = {}
        self._seen: set[str] = set()
        self._known: dict[str, tuple[tuple[str, ...], PodGrants]] = {}
        self._held: dict[str, dict[str, ContainerGrants]] = {}
        self._gone: dict[str, tuple[tuple[str, str], PodGrants]] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self._usage = NodeUsage()
        self._devices: tuple[Device, ...] = ()
        self._counted: dict[str, PodGrants] = {}
        self._listed: frozenset[tuple[str, str]] = frozenset()
        self._ended: set[str] = set()

    def patched(self, pod: Pod) -> None:
        """Our patch was answered with this pod."""
        with self._lock:
            self._patched[pod.uid] = (pod, self._clock.monotonic())
            key = (pod.namespace, pod.name)
            self._gone = {uid: one for uid, one in self._gone.items() if one[0] != key}

    def settle(self, listed: Iterable[tuple[str, str]]) -> None:
        """kubelet's word on who holds device IDs: (namespace, name) of each such pod.

        A pod that was deleted by force is gone from the API server while its containers run; it
        holds its cards until kubelet lists it no more.
        """
        with self._lock:
            self._holding()  # what vanished since the last look is judged by this list too
            self._listed = frozenset(listed)
            self._gone = {uid: one for uid, one in self._gone.items() if one[0] in self._listed}

    def unlisted(self) -> tuple[Pod, ...]:
        """Pods that hold something as the watch has it, but nothing in kubelet's last list."""
        holders = self.holders()
        with self._lock:
            return tuple(
                pod
                for pod in self._holding().values()
                if pod.uid in holders and (pod.namespace, pod.name) not in self._listed
            )

    def ended_as(self, pod: Pod, now: Pod | None) -> bool:
        """What the API server has under a pod's name now; True if the pod is over or gone."""
        is_ended = now is None or now.uid != pod.uid or now.is_over
        if is_ended:
            with self._lock:
                self._ended.add(pod.uid)
        return is_ended

    def served(self, pod: Pod) -> None:
        """A container of this pod was served without a change of its annotations."""
        with self._lock:
            self._known.pop(pod.uid, None)  # read again: a folder may have been made

    def pods(self) -> tuple[Pod, ...]:
        """The newest known state of every pod on this node."""
        with self._lock:
            return self._newest()

    def cards(self, devices: tuple[Device, ...], leave_out: str = "") -> Mapping[Uuid, DeviceUsage]:
        """Usage of each card by served containers of all pods but the one left out (by uid)."""
        holders = self.holders()
        with self._lock:
            wanted = {uid: grants for uid, (_, grants) in self._gone.items()} | holders
            wanted.pop(leave_out, None)
            self._count(devices, wanted)
            return self._usage.cards

    def _count(self, devices: tuple[Device, ...], wanted: Mapping[str, PodGrants]) -> None:
        """Bring the kept usage up to date: only what changed since the last call is counted."""
        if devices != self._devices:
            self._devices = devices
            self._usage.replace_devices(devices)
        for uid in self._counted.keys() - wanted.keys():
            self._usage.remove(uid)
        for uid, grants in wanted.items():
            if self._counted.get(uid) is not grants:
                self._usage.add(uid, grants)
        self._counted = dict(wanted)

    def holders(self) -> dict[str, PodGrants]:
        """What each pod holds now, by uid; pods that hold nothing are left out."""
        with self._lock:
            current = self._holding()
            held = {pod.uid: self._grants(pod) for pod in current.values()}
            self._names = {pod.uid: (pod.namespace, pod.name) for pod in current.values()}
        return {uid: grants for uid, grants in held.items() if any(grants.containers)}

    def _holding(self) -> dict[str, Pod]:
        """Pods that have not ended, by uid; the others are forgotten."""
        pods = self._newest()
        self._ended &= {pod.uid for pod in pods}
        current = {p.uid: p for p in pods if not p.is_over and p.uid not in self._ended}
        self._forget({pod.uid for pod in pods}, current.keys())
        return current

    def _forget(self, present: set[str], current: KeysView[str]) -> None:
        """Drop what ended; what vanished without an end is remembered for `settle`."""
        for uid, (_, grants) in self._known.items():
            if uid not in present and uid in self._names and any(grants.containers):
                self._gone[uid] = (self._names[uid], grants)
        self._known = {uid: one for uid, one in self._known.items() if uid in current}
        self._held = {uid: one for uid, one in self._held.items() if uid in current}

    def of_pod(self, pod: Pod) -> PodGrants:
        """What containers of one pod that have slots of their own were served."""
        slots = read_reservation(pod, self._resource).slots
        if slots is None:
            return PodGrants(containers=())
        return _pod_grants(pod, _served_slots(slots))

    def _newest(self) -> tuple[Pod, ...]:
        pods = {pod.uid: pod for pod in self._watched.pods()}
        self._seen &= pods.keys() | self._patched.keys()
        self._seen |= pods.keys() & self._patched.keys()
        for uid, (patched, since_s) in list(self._patched.items()):
            shown = pods.get(uid)
            if shown is None:
                is_gone = uid in self._seen or self._clock.monotonic() - since_s > UNSEEN_S
            else:
                is_gone = _version(shown) >= _version(patched)
            if is_gone:
                del self._patched[uid]
            else:
                pods[uid] = patched
        return tuple(pods.values())

    def _grants(self, pod: Pod) -> PodGrants:
        marks = (
            pod.annotations.get(names.POD_ALLOCATED, ""),
            pod.annotations.get(names.POD_TO_ALLOCATE, ""),
            str(are_inits_over(pod)),
        )
        known = self._known.get(pod.uid)
        if known is not None and known[0] == marks:
            return known[1]
        grants = self._read(pod)
        self._known[pod.uid] = (marks, grants)
        return grants

    def _read(self, pod: Pod) -> PodGrants:
        """What the annotations say, but never less or other than what was seen held before.

        Whoever owns a pod may write its annotations; what its containers hold stays what it is.
        """
        if not counts_of(pod, self._resource):
            return PodGrants(containers=())  # whoever asks for no card holds none, whatever it says
        held = self._held.setdefault(pod.uid, {})
        if pod.annotations.get(names.POD_ALLOCATED):
            reservation = read_reservation(pod, self._resource)
            if reservation.slots is not None:
                for name, grants in self._served(pod, reservation.slots).items():
                    held.setdefault(name, grants)
            else:
                log.warning("reservation_unclear", extra=kv(pod=pod.key, why=reservation.problem))
                if not held:
                    return self._at_most(pod)
        return _pod_grants(pod, held)

    @staticmethod
    def _at_most(pod: Pod) -> PodGrants:
        """All that an unclear reservation may hold: rather a refused pod than a full card."""
        try:
            return PodGrants(containers=decode_grants(pod.annotations[names.POD_ALLOCATED]))
        except WireError:
            return PodGrants(containers=())  # told above; nothing in it can be counted

    def _served(self, pod: Pod, slots: SlotMap) -> dict[str, ContainerGrants]:
        """Own slots that were emptied, and every slot that an init container may be using."""
        served = _served_slots(slots)
        for container in pod.containers:
            count = count_of(container, self._resource)
            if container.kind is ContainerKind.APP or not count or container.name in slots.granted:
                continue
            if self._has_served(f"{pod.uid}_{container.name}"):
                served |= {name: slots.granted[name] for name in lenders(slots, pod, count)}
        return served


def _served_slots(slots: SlotMap) -> dict[str, ContainerGrants]:
    return {name: grants for name, grants in slots.granted.items() if not slots.is_waiting(name)}


def _pod_grants(pod: Pod, served: Mapping[str, ContainerGrants]) -> PodGrants:
    return PodGrants(
        containers=tuple(served.get(one.name, ()) for one in pod.containers),
        kinds=tuple(one.kind for one in pod.containers),
        are_inits_over=are_inits_over(pod),
    )


def _version(pod: Pod) -> int:
    return int(pod.resource_version) if pod.resource_version.isdigit() else 0
