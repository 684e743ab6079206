"""What containers hold of cards that another plugin serves by right, as kubelet lists it.

Each container has an entry in the ledger, so that it outlives kubelet's restarts, whose list is
empty at first, and ours; it goes with its pod, as every entry. The daemon grants nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from hami_node.model import ContainerKind, Pod
from hami_node.ports import Clock, HeldContainer
from hami_node.record.ledger import Entry, Ledger, Source


class ObservedHoldings:
    """Keeps such entries. Thread-safe: its only state is the ledger."""

    def __init__(
        self,
        resources: Collection[str],
        *,
        ledger: Ledger,
        pods: Callable[[], Iterable[Pod]],
        clock: Clock,
    ) -> None:
        """Look for device IDs of these resources, in pods that `pods` returns."""
        self._resources = frozenset(resources)
        self._ledger, self._pods, self._clock = ledger, pods, clock

    def look(self, listed: Sequence[HeldContainer]) -> None:
        """Record what kubelet's list shows and the ledger does not have."""
        shown = [item for item in listed if self._resources & item.device_ids.keys()]
        if not shown:
            return
        pods = {(pod.namespace, pod.name): pod for pod in self._pods() if not pod.is_over}
        entries = self._ledger.entries()
        now_s = self._clock.now()
        self._ledger.adopt(
            entry
            for item in shown
            if (pod := pods.get((item.namespace, item.pod))) is not None
            for entry in self._entries(item, pod, now_s)
            if not _is_of_namesake(entry, entries)
        )

    def _entries(self, item: HeldContainer, pod: Pod, now_s: float) -> Iterator[Entry]:
        """One for each resource, which stands in place of the vendor: nothing is granted."""
        kinds = {container.name: container.kind for container in pod.containers}
        for resource in self._resources & item.device_ids.keys():
            yield Entry(
                pod_uid=pod.uid,
                namespace=pod.namespace,
                pod=pod.name,
                container=item.container,
                kind=kinds.get(item.container, ContainerKind.APP),
                vendor=resource,
                resource=resource,
                device_ids=tuple(sorted(item.device_ids[resource])),
                grants=(),
                lender=item.container,
                time_s=now_s,
                source=Source.ADOPTED,
            )

    def held(self) -> Mapping[str, tuple[HeldContainer, ...]]:
        """What each pod holds, by uid."""
        found: dict[str, tuple[HeldContainer, ...]] = {}
        for entry in self._ledger.entries():
            if entry.vendor == entry.resource and entry.resource in self._resources:
                item = HeldContainer(
                    namespace=entry.namespace,
                    pod=entry.pod,
                    container=entry.container,
                    device_ids={entry.resource: entry.device_ids},
                )
                found[entry.pod_uid] = (*found.get(entry.pod_uid, ()), item)
        return found


def _is_of_namesake(entry: Entry, entries: Iterable[Entry]) -> bool:
    """kubelet's list names no uid: IDs that an earlier pod of the name holds are that one's."""
    return any(
        (other.namespace, other.pod) == (entry.namespace, entry.pod)
        and other.pod_uid != entry.pod_uid
        and other.resource == entry.resource
        and not set(other.device_ids).isdisjoint(entry.device_ids)
        for other in entries
    )
