"""What containers on this node hold of each card, by the ledger, until their pods have ended.

kubelet's list alone ends nobody: it is empty while kubelet starts, names no uid, and before 1.34
holds ended pods. A pod has ended by its phase, or when its uid is gone from the API server and
kubelet does not list its IDs any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants
from hami_node.logs import kv
from hami_node.model import ContainerGrants, ContainerKind, Device, Pod, Uuid, is_own_id, own_ids
from hami_node.node.holdings.claims import Claims, Id, ListedIds, entries_of, ids_of, listed_entries
from hami_node.node.holdings.newest_pods import NewestPods
from hami_node.ports import Clock, HeldContainer, Watched
from hami_node.record.ledger import Entry, Ledger, Source
from hami_node.vendors.holding import keeps_inits
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.reservation import are_inits_over

log = logging.getLogger(__name__)


class LiveUse:
    """The ledger decides; annotations count only where it has no entry for a container.

    Anybody may write them: they count for pods with cards of ours in kubelet's list, and before it
    was first read for pods that run. Init containers that have ended count where the node's
    scheduler counts them: who counts more than it refuses what it has placed. `settle` keeps the
    ledger up to date: it adds what other plugins have served and drops what has ended. The ledger's
    file is written under a lock of its own, so reading never waits for a disk.
    """

    def __init__(
        self,
        *,
        watched: Watched,
        vendors: Sequence[VendorProtocol],
        ledger: Ledger,
        clock: Clock,
        on_listed: Callable[[Sequence[HeldContainer]], None] = lambda _: None,
        cards: Callable[[], Iterable[Device]] = tuple,
    ) -> None:
        """Wire the sources. `vendors` are those served on this node, `cards` its cards.

        `on_listed` gets each list of kubelet's once the ledger has what it shows.
        """
        self._on_listed, self._cards = on_listed, cards
        self._settling = threading.Lock()
        self._lock = threading.Lock()
        self._vendors = {vendor.cards.word: vendor for vendor in vendors}
        self._resources = frozenset(name for vendor in vendors for name in vendor.resources)
        self._watched = watched
        self._newest, self._claims = NewestPods(watched, clock), Claims(vendors)
        self._ledger, self._clock = ledger, clock
        self._listed: Mapping[str, ListedIds] | None = None
        """kubelet's last list; None where it could not be read."""
        self._pods: dict[str, Pod] = {}
        """By uid, as they were at the last look."""
        self._shown: frozenset[str] = frozenset()
        """Pods on record that the watch itself showed at the last look, by uid."""
        self._vanished: frozenset[str] = frozenset()
        """Pods on record that it has shown, and shows no more."""
        self._has_ended: dict[str, bool] = {}
        """Pods that hold nothing by the API server's word; false where it has them no more."""
        self._unrecorded: tuple[Entry, ...] | None = None
        """What pods held at the last look that was not on record; None before the first."""
        self._usage, self._counted = NodeUsage(), dict[str, PodGrants]()
        self._devices: tuple[Device, ...] = ()

    # -- what happened -----------------------------------------------------------------------------
    def patched(self, pod: Pod) -> None:
        """Our patch was answered with this pod; an earlier pod of its name is gone."""
        with self._lock:
            self._newest.patched(pod)
            for one in _one_of_each_pod(self._ledger.entries()):
                if one.pod_key == pod.key and one.pod_uid != pod.uid:
                    self._has_ended.setdefault(one.pod_uid, False)

    def noticed(self, pod: Pod) -> None:
        """A pod that a call is for: it is there, though the watch may not show it yet."""
        with self._lock:
            if all(pod.uid != known.uid for known in self._newest.all()):
                self._newest.patched(pod)

    def settle(self, listed: Sequence[HeldContainer] | None) -> bool:
        """Apply kubelet's list, read just now; None where it could not be read.

        Without it nobody is taken for gone, and what runs counts by the API server's word.
        True if the ledger has changed.
        """
        with self._settling:
            with self._lock:
                self._listed = None if listed is None else _by_pod(listed)
            has_changed = self._bring_up_to_date(self._is_over)
        if listed is not None:
            self._on_listed(listed)
        return has_changed

    def refresh(self) -> bool:
        """Apply what the watch shows, without kubelet's list. True if the ledger has changed."""
        with self._settling:
            return self._bring_up_to_date(lambda one, _: self._ended_by_phase(one.pod_uid))

    def ended_as(self, one: Entry, now: Pod | None) -> bool:
        """Apply what the API server has now under the name of the pod of `one`.

        True if that pod holds no more.
        """
        uid = one.pod_uid
        with self._lock:
            if now is None or now.uid != uid:
                self._has_ended.setdefault(uid, False)
            elif now.is_over:
                self._has_ended[uid] = True
            is_over = self._is_over(one, self._ledger.entries())
        if is_over:
            self._ledger.free({uid})
        return is_over

    # -- who is there ------------------------------------------------------------------------------
    def unlisted(self) -> tuple[Entry, ...]:
        """One entry of each pod that has nothing in kubelet's last list: it may have ended."""
        with self._lock:
            entries = self._look()
            return tuple(
                one
                for one in _one_of_each_pod(entries)
                if not self._ended_by_phase(one.pod_uid) and not self._is_listed(one, entries)
            )

    def missing(self) -> tuple[Entry, ...]:
        """One entry of each pod that is not in the watch: it may be gone."""
        with self._lock:
            shown = self._newest.shown()
            return tuple(one for one in _one_of_each_pod(self._look()) if one.pod_uid not in shown)

    def is_listed(self, entry: Entry) -> bool:
        """True where kubelet's last list has device IDs for this very container."""
        with self._lock:
            listed = self._of_pod(entry.pod_uid, entry.pod_key, self._ledger.entries())
            return bool(ids_of(listed, entry.container, entry.resource))

    def pods(self) -> tuple[Pod, ...]:
        """The newest known state of every pod on this node."""
        with self._lock:
            return self._newest.all()

    # -- what is held ------------------------------------------------------------------------------
    def cards(self, devices: tuple[Device, ...], leave_out: str = "") -> Mapping[Uuid, DeviceUsage]:
        """Usage of each card by served containers of all pods but the one left out (by uid).

        Only what changed since the last call is counted.
        """
        with self._lock:
            wanted = self._holders(leave_out)
            if devices != self._devices:
                self._devices = devices
                self._usage.replace_devices(devices)
            for uid in self._counted.keys() - wanted.keys():
                self._usage.remove(uid)
            for uid, grants in wanted.items():
                if self._counted.get(uid) != grants:
                    self._usage.add(uid, grants)
            self._counted = wanted
            return self._usage.cards

    def holders(self) -> dict[str, PodGrants]:
        """What each pod holds now, by uid; pods that hold nothing are left out."""
        with self._lock:
            return self._holders()

    def of_pod(self, pod: Pod, vendor: VendorProtocol) -> PodGrants:
        """What the containers of a pod were served of a vendor from slots of their own."""
        word = vendor.cards.word
        own = {
            entry.container: entry.grants
            for entry in self._ledger.of_pod(pod.uid)
            if entry.vendor == word and entry.lender == entry.container
        }
        return PodGrants(
            containers=tuple(own.get(container.name, ()) for container in pod.containers),
            kinds=tuple(container.kind for container in pod.containers),
        )

    def _holders(self, leave_out: str = "") -> dict[str, PodGrants]:
        """By the ledger, and by what was not on record at the last look."""
        if self._unrecorded is None:
            self._unrecorded = self._not_on_record(self._look())
        by_uid: dict[str, list[Entry]] = {}
        for entry in self._ledger.entries():
            uid = entry.pod_uid
            if uid != leave_out and not self._has_ended.get(uid):
                by_uid.setdefault(uid, []).append(entry)
        for entry in self._unrecorded:
            uid, is_new = entry.pod_uid, self._ledger.find(*entry.key) is None
            if uid != leave_out and uid not in self._has_ended and is_new:
                by_uid.setdefault(uid, []).append(entry)
        forgets = not keeps_inits(self._watched.node(), self._vendors.values())
        found: dict[str, PodGrants] = {}
        for uid, entries in by_uid.items():
            pod = self._pods.get(uid)
            found[uid] = held_by(
                entries,
                () if pod is None else [item.name for item in pod.containers],
                are_inits_over=forgets and pod is not None and are_inits_over(pod),
            )
        return found

    # -- the ledger --------------------------------------------------------------------------------
    def _bring_up_to_date(self, is_over: Callable[[Entry, Sequence[Entry]], bool]) -> bool:
        with self._lock:
            entries = self._look()
            over = {one.pod_uid for one in _one_of_each_pod(entries) if is_over(one, entries)}
            found = self._not_on_record([it for it in entries if it.pod_uid not in over])
            self._unrecorded, is_sure = found, self._listed is not None
            self._claims.keep(self._pods.keys())
        freed = self._ledger.free(over) if over else ()
        for entry in freed:
            log.info("grants_freed", extra=kv(container=entry.name, uid=entry.pod_uid))
        if not (found and is_sure):
            return bool(freed)
        now_s = self._clock.now()
        adopted = self._ledger.adopt(replace(entry, time_s=now_s) for entry in found)
        for entry in adopted:
            fields = kv(container=entry.name, uid=entry.pod_uid, source=entry.source.value)
            log.info("grants_adopted", extra=fields)
        return bool(freed or adopted)

    def _look(self) -> tuple[Entry, ...]:
        """All entries; what the pods are now is noted beside."""
        entries = self._ledger.entries()
        self._pods = {pod.uid: pod for pod in self._newest.all()}
        recorded = {entry.pod_uid for entry in entries}
        self._vanished = (self._vanished | self._shown) & (recorded - self._pods.keys())
        self._shown = self._newest.shown() & recorded
        ended = {uid: True for uid, pod in self._pods.items() if pod.is_over}
        known = recorded | self._pods.keys()
        self._has_ended = {
            uid: is_by_phase for uid, is_by_phase in self._has_ended.items() if uid in known
        } | ended
        return entries

    def _ended_by_phase(self, uid: str) -> bool:
        return self._has_ended.get(uid, False)

    def _is_over(self, one: Entry, entries: Sequence[Entry]) -> bool:
        """True when the pod of `one` holds nothing any more; `entries` are all of the ledger."""
        uid = one.pod_uid
        if self._ended_by_phase(uid):
            return True
        is_gone = uid in self._has_ended or uid in self._vanished
        return is_gone and self._listed is not None and not self._is_listed(one, entries)

    def _is_listed(self, one: Entry, entries: Sequence[Entry]) -> bool:
        """True when kubelet's last list has device IDs of the very pod of `one`."""
        there = frozenset[Id]().union(*self._of_pod(one.pod_uid, one.pod_key, entries).values())
        own = [entry for entry in entries if entry.pod_uid == one.pod_uid]
        if not all(entry.device_ids for entry in own):
            resources = {entry.resource for entry in own}
            return any(resource in resources for resource, _ in there)
        return bool(there & _ids(own))

    def _of_pod(self, uid: str, name: str, entries: Iterable[Entry]) -> ListedIds:
        """What kubelet's last list has for the containers of this very pod.

        The list names no uid: IDs that are on record for a namesake are the namesake's.
        """
        there = (self._listed or {}).get(name)
        if not there:
            return {}
        theirs = _ids(it for it in entries if it.pod_key == name and it.pod_uid != uid)
        return {item: ids - theirs for item, ids in there.items()}

    def _not_on_record(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """What pods that have not ended hold by annotations or fixed shares, without an entry."""
        recorded: dict[tuple[str, str], set[str]] = {}
        of_name: dict[str, list[Entry]] = {}
        for entry in entries:
            recorded.setdefault((entry.pod_uid, entry.vendor), set()).add(entry.container)
            of_name.setdefault(entry.pod_key, []).append(entry)
        source = Source.REBUILT if self._ledger.was_lost else Source.ADOPTED
        found: list[Entry] = []
        cards = {card.uuid: card for card in self._cards()}
        own = frozenset(own_ids(cards.values()))
        for pod in self._pods.values():
            if pod.uid in self._has_ended:
                continue
            there = self._of_pod(pod.uid, pod.key, of_name.get(pod.key, ()))
            listed = {item: self._ours(ids, cards, own) for item, ids in there.items()}
            if self._listed is not None and not any(listed.values()):
                continue
            for claim in self._claims.of(pod):
                known = recorded.get((pod.uid, claim.word), set())
                if not known or not ("" in known or known >= claim.held.by_container.keys()):
                    found.extend(entries_of(pod, claim, listed, known, source))
            for entry in listed_entries(pod, self._vendors.values(), cards, listed, source):
                if entry.container not in recorded.get((pod.uid, entry.vendor), set()):
                    found.append(entry)
        return tuple(found)

    def _ours(
        self, ids: frozenset[Id], cards: Collection[Uuid], own: Collection[str]
    ) -> frozenset[Id]:
        """The IDs of our resources, and others in the form of ours: a resource was renamed."""
        return frozenset(
            (resource, name)
            for resource, name in ids
            if resource in self._resources or is_own_id(name, cards, own)
        )


def held_by(
    entries: Iterable[Entry], containers: Iterable[str] = (), *, are_inits_over: bool = False
) -> PodGrants:
    """A pod's grants in the order of its containers, what belongs to none of them at last."""
    held: dict[str, ContainerGrants] = dict.fromkeys(containers, ())
    kinds = dict.fromkeys(held, ContainerKind.APP)
    for entry in entries:
        held[entry.container] = (*held.get(entry.container, ()), *entry.grants)
        kinds[entry.container] = entry.kind
    return PodGrants(
        containers=tuple(held.values()),
        kinds=tuple(kinds.values()),
        are_inits_over=are_inits_over,
    )


def _by_pod(listed: Sequence[HeldContainer]) -> Mapping[str, ListedIds]:
    found: dict[str, dict[str, frozenset[Id]]] = {}
    for item in listed:
        ids = {(resource, name) for resource, names in item.device_ids.items() for name in names}
        containers = found.setdefault(item.pod_key, {})
        containers[item.container] = containers.get(item.container, frozenset()) | ids
    return found


def _one_of_each_pod(entries: Iterable[Entry]) -> Collection[Entry]:
    """An entry of each pod, which stands for the pod."""
    return {entry.pod_uid: entry for entry in entries}.values()


def _ids(entries: Iterable[Entry]) -> frozenset[Id]:
    return frozenset((entry.resource, name) for entry in entries for name in entry.device_ids)
