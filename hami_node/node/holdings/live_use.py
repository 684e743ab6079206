"""What containers on this node hold of each card, by the ledger, until their pods have ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants
from hami_node.logs import kv
from hami_node.model import ContainerGrants, ContainerKind, Device, Pod, Uuid, is_own_id, own_ids
from hami_node.node.holdings.claims import Claims, entries_of, ids_of, listed_entries
from hami_node.node.holdings.endings import Endings, one_of_each_pod
from hami_node.node.holdings.newest_pods import NewestPods
from hami_node.ports import Clock, HeldContainer, Watched
from hami_node.record.ledger import Entry, Ledger, Source
from hami_node.vendors.holding import keeps_inits
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.reservation import are_inits_over

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Basis:
    """All that a pod's use is computed from: equal bases mean an equal use.

    `are_inits_over`: its init containers have ended, and the node's scheduler counts no such.
    """

    entries: tuple[Entry, ...]
    containers: tuple[str, ...]
    are_inits_over: bool


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
        self._endings = Endings()
        self._built: dict[str, tuple[_Basis, PodGrants]] = {}
        self._usage = NodeUsage()
        self._devices: tuple[Device, ...] = ()
        self._counted: dict[str, PodGrants] = {}

    # -- what happened -----------------------------------------------------------------------------
    def patched(self, pod: Pod) -> None:
        """Our patch was answered with this pod; an earlier pod of its name is gone."""
        with self._lock:
            self._newest.patched(pod)
            for one in one_of_each_pod(self._ledger.entries()):
                if one.pod_key == pod.key and one.pod_uid != pod.uid:
                    self._endings.gone(one.pod_uid)

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
                self._endings.list_is(listed)
            has_changed = self._bring_up_to_date(self._endings.is_over)
        if listed is not None:
            self._on_listed(listed)
        return has_changed

    def refresh(self) -> bool:
        """Apply what the watch shows, without kubelet's list. True if the ledger has changed."""
        with self._settling:
            return self._bring_up_to_date(lambda one, _: self._endings.has_ended(one.pod_uid))

    def ended_as(self, one: Entry, now: Pod | None) -> bool:
        """Apply what the API server has now under the name of the pod of `one`.

        True if that pod holds no more.
        """
        uid = one.pod_uid
        with self._lock:
            if now is None or now.uid != uid:
                self._endings.gone(uid)
            elif now.is_over:
                self._endings.ended(uid)
            is_over = self._endings.is_over(one, self._ledger.entries())
        if is_over:
            self._ledger.free({uid})
        return is_over

    # -- what is held ------------------------------------------------------------------------------
    def unlisted(self) -> tuple[Entry, ...]:
        """One entry of each pod that has nothing in kubelet's last list: it may have ended."""
        with self._lock:
            entries = self._looked()[1]
            return tuple(
                one
                for one in one_of_each_pod(entries)
                if not self._endings.has_ended(one.pod_uid)
                and not self._endings.is_listed(one, entries)
            )

    def missing(self) -> tuple[Entry, ...]:
        """One entry of each pod that is not in the watch: it may be gone."""
        with self._lock:
            shown, entries = self._newest.shown(), self._looked()[1]
            return tuple(one for one in one_of_each_pod(entries) if one.pod_uid not in shown)

    def is_listed(self, entry: Entry) -> bool:
        """True where kubelet's last list has device IDs for this very container."""
        with self._lock:
            name = entry.namespace, entry.pod
            listed = self._endings.listed(entry.pod_uid, name, self._ledger.entries())
            return bool(ids_of(listed, entry.container, entry.resource))

    def pods(self) -> tuple[Pod, ...]:
        """The newest known state of every pod on this node."""
        with self._lock:
            return self._newest.all()

    def cards(self, devices: tuple[Device, ...], leave_out: str = "") -> Mapping[Uuid, DeviceUsage]:
        """Usage of each card by served containers of all pods but the one left out (by uid)."""
        wanted = self.holders()
        wanted.pop(leave_out, None)
        with self._lock:
            self._count(devices, wanted)
            return self._usage.cards

    def holders(self) -> dict[str, PodGrants]:
        """What each pod holds now, by uid; pods that hold nothing are left out."""
        with self._lock:
            pods, entries = self._looked()
            by_uid: dict[str, list[Entry]] = {}
            for entry in (*entries, *self._unrecorded(pods.values(), entries)):
                if not self._endings.has_ended(entry.pod_uid):
                    by_uid.setdefault(entry.pod_uid, []).append(entry)
            forgets = not keeps_inits(self._watched.node(), self._vendors.values())
            self._built = {
                uid: self._build(uid, held, pods.get(uid), forgets_inits=forgets)
                for uid, held in by_uid.items()
            }
            return {uid: grants for uid, (_, grants) in self._built.items()}

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

    # -- the ledger --------------------------------------------------------------------------------
    def _bring_up_to_date(self, is_over: Callable[[Entry, Sequence[Entry]], bool]) -> bool:
        with self._lock:
            pods, entries = self._looked()
            over = {one.pod_uid for one in one_of_each_pod(entries) if is_over(one, entries)}
            kept = [entry for entry in entries if entry.pod_uid not in over]
            found = self._unrecorded(pods.values(), kept) if self._endings.has_list else []
            self._claims.keep(pods.keys())
        freed = self._ledger.free(over)
        for entry in freed:
            log.info("grants_freed", extra=kv(container=entry.name, uid=entry.pod_uid))
        now_s = self._clock.now()
        adopted = self._ledger.adopt(replace(entry, time_s=now_s) for entry in found)
        for entry in adopted:
            fields = kv(container=entry.name, uid=entry.pod_uid, source=entry.source.value)
            log.info("grants_adopted", extra=fields)
        return bool(freed or adopted)

    def _looked(self) -> tuple[dict[str, Pod], tuple[Entry, ...]]:
        """The pods by uid and the entries, as they are now."""
        pods, entries = {pod.uid: pod for pod in self._newest.all()}, self._ledger.entries()
        self._endings.look(pods, entries)
        return pods, entries

    def _unrecorded(self, pods: Iterable[Pod], entries: Sequence[Entry]) -> list[Entry]:
        """What pods that have not ended hold by annotations or fixed shares, without an entry."""
        recorded: dict[tuple[str, str], set[str]] = {}
        of_name: dict[tuple[str, str], list[Entry]] = {}
        for entry in entries:
            recorded.setdefault((entry.pod_uid, entry.vendor), set()).add(entry.container)
            of_name.setdefault((entry.namespace, entry.pod), []).append(entry)
        source = Source.REBUILT if self._ledger.was_lost else Source.ADOPTED
        found: list[Entry] = []
        cards = {card.uuid: card for card in self._cards()}
        own = frozenset(own_ids(cards.values()))
        for pod in pods:
            if not self._endings.counts(pod.uid):
                continue
            name = pod.namespace, pod.name
            there = self._endings.listed(pod.uid, name, of_name.get(name, ()))
            listed = {
                container: frozenset(
                    (resource, name)
                    for resource, name in ids
                    if resource in self._resources or is_own_id(name, cards, own)
                )
                for container, ids in there.items()
            }
            if self._endings.has_list and not any(listed.values()):
                continue
            for claim in self._claims.of(pod):
                known = recorded.get((pod.uid, claim.word), set())
                if known and ("" in known or known >= claim.held.by_container.keys()):
                    continue  # all that it holds is on record
                found.extend(entries_of(pod, claim, listed, known, source))
            for entry in listed_entries(pod, self._vendors.values(), cards, listed, source):
                if entry.container not in recorded.get((pod.uid, entry.vendor), set()):
                    found.append(entry)
        return found

    # -- sums --------------------------------------------------------------------------------------
    def _build(
        self, uid: str, entries: Sequence[Entry], pod: Pod | None, *, forgets_inits: bool
    ) -> tuple[_Basis, PodGrants]:
        basis = _Basis(
            tuple(entries),
            tuple(item.name for item in pod.containers) if pod is not None else (),
            forgets_inits and pod is not None and are_inits_over(pod),
        )
        known = self._built.get(uid)
        if known is not None and known[0] == basis:
            return known
        held = held_by(entries, basis.containers)
        return basis, replace(held, are_inits_over=basis.are_inits_over)

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


def held_by(entries: Iterable[Entry], containers: Iterable[str] = ()) -> PodGrants:
    """A pod's grants in the order of its containers, what belongs to none of them at last."""
    held: dict[str, ContainerGrants] = dict.fromkeys(containers, ())
    kinds = dict.fromkeys(held, ContainerKind.APP)
    for entry in entries:
        held[entry.container] = (*held.get(entry.container, ()), *entry.grants)
        kinds[entry.container] = entry.kind
    return PodGrants(containers=tuple(held.values()), kinds=tuple(kinds.values()))
