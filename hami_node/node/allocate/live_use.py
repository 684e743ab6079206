"""Which of the reservations on this node are in live use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants
from hami_node.model import Device, Pod, Uuid
from hami_node.node.allocate.newest_pods import NewestPods
from hami_node.node.allocate.served_grants import ServedGrants, served_slots
from hami_node.ports import Clock, Watched
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.reservation import are_inits_over


class LiveUse:
    """What containers that were served hold of each card, until their pods have ended."""

    def __init__(
        self,
        *,
        watched: Watched,
        vendors: Sequence[VendorProtocol],
        has_served: Callable[[VendorProtocol, str], bool],
        clock: Clock,
    ) -> None:
        """Wire the sources. `has_served` looks up a vendor's `<pod uid>_<container>` folders."""
        self._lock = threading.Lock()
        self._newest = NewestPods(watched, clock)
        self._served = ServedGrants(vendors, has_served)
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
            self._newest.patched(pod)
            key = (pod.namespace, pod.name)
            self._gone = {uid: left for uid, left in self._gone.items() if left[0] != key}

    def settle(self, listed: Iterable[tuple[str, str]]) -> None:
        """Apply kubelet's list of pods that hold device IDs: (namespace, name) of each.

        A pod that was deleted by force is gone from the API server while its containers run; it
        holds its cards until kubelet no longer lists it.
        """
        with self._lock:
            self._holding()  # pods that vanished since the last call are checked too
            self._listed = frozenset(listed)
            self._gone = {uid: left for uid, left in self._gone.items() if left[0] in self._listed}

    def unlisted(self) -> tuple[Pod, ...]:
        """Pods that hold something according to the watch, but nothing in kubelet's last list."""
        holders = self.holders()
        with self._lock:
            return tuple(
                pod
                for pod in self._holding().values()
                if pod.uid in holders and (pod.namespace, pod.name) not in self._listed
            )

    def ended_as(self, pod: Pod, now: Pod | None) -> bool:
        """Apply what the API server has under a pod's name now; True if the pod has ended."""
        is_ended = now is None or now.uid != pod.uid or now.is_over
        if is_ended:
            with self._lock:
                self._ended.add(pod.uid)
        return is_ended

    def served(self, pod: Pod) -> None:
        """A container of this pod was served without a change of its annotations."""
        with self._lock:
            self._served.read_again(pod.uid)

    def pods(self) -> tuple[Pod, ...]:
        """The newest known state of every pod on this node."""
        with self._lock:
            return self._newest.all()

    def cards(self, devices: tuple[Device, ...], leave_out: str = "") -> Mapping[Uuid, DeviceUsage]:
        """Usage of each card by served containers of all pods but the one left out (by uid)."""
        holders = self.holders()
        with self._lock:
            wanted = {uid: grants for uid, (_, grants) in self._gone.items()} | holders
            wanted.pop(leave_out, None)
            self._count(devices, wanted)
            return self._usage.cards

    def _count(self, devices: tuple[Device, ...], wanted: Mapping[str, PodGrants]) -> None:
        """Update the kept usage: only what changed since the last call is counted."""
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
            held = {pod.uid: self._served.of(pod) for pod in current.values()}
            self._names = {pod.uid: (pod.namespace, pod.name) for pod in current.values()}
        return {uid: grants for uid, grants in held.items() if any(grants.containers)}

    def of_pod(self, pod: Pod, vendor: VendorProtocol) -> PodGrants:
        """What the containers of a pod that have their own slots were served of a vendor."""
        served = served_slots(vendor.held_by(pod))
        return PodGrants(
            containers=tuple(served.get(container.name, ()) for container in pod.containers),
            kinds=tuple(container.kind for container in pod.containers),
            are_inits_over=are_inits_over(pod),
        )

    def _holding(self) -> dict[str, Pod]:
        """Pods that have not ended, by uid; the others are forgotten."""
        pods = self._newest.all()
        present = {pod.uid for pod in pods}
        self._ended &= present
        current = {pod.uid: pod for pod in pods if not pod.is_over and pod.uid not in self._ended}
        # Pods that vanished before they ended are remembered for `settle`.
        for uid, grants in self._served.last_known().items():
            if uid not in present and uid in self._names and any(grants.containers):
                self._gone[uid] = (self._names[uid], grants)
        self._served.keep(current.keys())
        return current
