"""Which pods in the ledger have ended: by the API server, and by kubelet's list of device IDs.

kubelet's list alone ends nobody: it is empty while kubelet starts, names no uid, and before 1.34
holds ended pods. A pod has ended by its phase, or when its uid is gone from the API server and
kubelet does not list its IDs any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hami_node.model import Pod
from hami_node.ports import HeldContainer
from hami_node.record.ledger import Entry

Name = tuple[str, str]
"""(namespace, name) of a pod."""
Id = tuple[str, str]
"""A resource and a device ID of it."""


class Endings:
    """Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._seen: set[str] = set()
        self._vanished: set[str] = set()  # from the watch, which may show them again
        self._ended: set[str] = set()
        self._gone: set[str] = set()
        self._listed: Mapping[Name, Mapping[str, frozenset[Id]]] | None = None

    @property
    def has_list(self) -> bool:
        """True once kubelet's list was read."""
        return self._listed is not None

    def list_is(self, listed: Sequence[HeldContainer] | None) -> None:
        """Take kubelet's list; None where it could not be read."""
        if listed is None:
            self._listed = None
            return
        found: dict[Name, dict[str, frozenset[Id]]] = {}
        for item in listed:
            ids = frozenset(
                (resource, name) for resource, names in item.device_ids.items() for name in names
            )
            containers = found.setdefault((item.namespace, item.pod), {})
            containers[item.container] = containers.get(item.container, frozenset()) | ids
        self._listed = found

    def look(self, pods: Mapping[str, Pod], entries: Iterable[Entry]) -> None:
        """Take the pods that are known, by uid, beside all entries of the ledger."""
        recorded = {entry.pod_uid for entry in entries}
        self._vanished = (self._vanished | self._seen) & (recorded - pods.keys())
        self._seen = pods.keys() & recorded
        self._ended |= {uid for uid, pod in pods.items() if pod.is_over}
        self._ended &= recorded | pods.keys()
        self._gone &= recorded | pods.keys()

    def ended(self, uid: str) -> None:
        """The API server said that the pod has ended."""
        self._ended.add(uid)

    def gone(self, uid: str) -> None:
        """The API server said that it has no such pod; the watch may lag behind."""
        self._gone.add(uid)

    def has_ended(self, uid: str) -> bool:
        """True for a pod that has ended by its phase."""
        return uid in self._ended

    def counts(self, uid: str) -> bool:
        """True for a pod whose annotations count: the API server has it, and it has not ended."""
        return uid not in self._ended and uid not in self._gone

    def is_over(self, one: Entry, entries: Sequence[Entry]) -> bool:
        """True when the pod of `one` holds nothing any more; `entries` are all of the ledger."""
        uid = one.pod_uid
        if uid in self._ended:
            return True
        is_gone = uid in self._gone or uid in self._vanished
        return is_gone and self._listed is not None and not self.is_listed(one, entries)

    def is_listed(self, one: Entry, entries: Sequence[Entry]) -> bool:
        """True when kubelet's last list has device IDs of the very pod of `one`.

        The list names no uid: IDs that are on record for a namesake are the namesake's.
        """
        there = frozenset[Id]().union(
            *self.listed(one.pod_uid, (one.namespace, one.pod), entries).values()
        )
        own = [entry for entry in entries if entry.pod_uid == one.pod_uid]
        if not all(entry.device_ids for entry in own):
            resources = {entry.resource for entry in own}
            return any(resource in resources for resource, _ in there)
        return bool(there & _ids(own))

    def listed(
        self, uid: str, name: Name, entries: Iterable[Entry]
    ) -> Mapping[str, frozenset[tuple[str, str]]]:
        """What kubelet's last list has for the containers of this very pod."""
        there = (self._listed or {}).get(name, {})
        others = _of_namesakes(uid, name, entries) if there else frozenset()
        return {container: ids - others for container, ids in there.items()}


def one_of_each_pod(entries: Iterable[Entry]) -> Collection[Entry]:
    """An entry of each pod, which stands for the pod."""
    return {entry.pod_uid: entry for entry in entries}.values()


def _of_namesakes(uid: str, name: Name, entries: Iterable[Entry]) -> frozenset[Id]:
    return _ids(
        entry for entry in entries if (entry.namespace, entry.pod) == name and entry.pod_uid != uid
    )


def _ids(entries: Iterable[Entry]) -> frozenset[Id]:
    return frozenset((entry.resource, name) for entry in entries for name in entry.device_ids)
