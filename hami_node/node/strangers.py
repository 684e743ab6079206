"""Who else has this node's cards: kubelet's list and the pods, against the ledger and the offer.

kubelet's list shows device IDs, whatever the resource. One that this daemon did not give, and that
names a card of ours, closes that card until its pod has ended: such a pod carries no reservation,
so the card would look free. One of a resource of ours that we never offered tells that another
plugin has taken the resource: kubelet calls the last one registered, tells the one before nothing,
and keeps its stream open. Cards that another plugin serves by right are put on record, for the
vendor's auditor. As everywhere, kubelet's list alone ends nobody: it is empty while kubelet starts.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from hami_node.errors import KubeletError
from hami_node.logs import kv
from hami_node.model import Device, Pod, Uuid, is_own_id, own_ids
from hami_node.node.holdings.claims import Claims
from hami_node.node.kubelet.lifecycle import KUBELET_SOCKET, own_sockets
from hami_node.node.resource import NodeResource
from hami_node.node.state import NodeState
from hami_node.ports import EventNote, HeldContainer
from hami_node.record.ledger import Entry, Ledger, Source
from hami_node.text import cut
from hami_node.vendors.on_node.publication import CardSources
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.spec import AnyVendor, Auditor, AuditOutlets

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
SURE_S: Final = 15.0
"""How long a device is missing before people are told: a driver that is unwell shows fewer, too."""
TAKEN_EVENT: Final = "ResourceTaken"
VANISHED_EVENT: Final = "DeviceVanished"
MAX_PODS: Final = 3
"""Pods that are named for one card."""
MAX_NAMED: Final = 5
MAX_ID_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class _Listed:
    """A device ID that kubelet lists, and the container that has it."""

    pod: str
    container: str
    resource: str
    device_id: str

    @property
    def name(self) -> str:
        """`namespace/pod/container`, for people."""
        return f"{self.pod}/{self.container}"


@dataclass(slots=True)
class _Own:
    """What tells our own device IDs: cards, and the IDs that are not made from a card's UUID."""

    uuids: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)

    def add(self, cards: Sequence[Device]) -> None:
        self.uuids.update(card.uuid for card in cards)
        self.ids.update(own_ids(cards))

    def has(self, device_id: str) -> bool:
        return is_own_id(device_id, self.uuids, self.ids)


@dataclass(slots=True)
class _Holder:
    """A pod with cards from another plugin.

    Attributes:
        uid: as the API server had it; "" before the watch has shown the pod.
        cards: the resource by which it holds each card.
    """

    uid: str
    cards: dict[Uuid, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Rival:
    """What is known of a resource of ours since our last registration.

    Attributes:
        registration: its number.
        before: strange IDs that were held then: from before we took the resource.
        taken: why the resource is another plugin's; "" while it is ours.
        sockets: those of other plugins when it was found out.
    """

    registration: int
    before: frozenset[_Listed]
    taken: str = ""
    sockets: frozenset[str] = frozenset()


class Strangers:
    """Takes each list of kubelet's that the daemon reads anyway, and audits. Thread-safe."""

    def __init__(self, node: NodeState) -> None:
        """Nothing has been looked at yet."""
        self._node = node
        self._lock, self._auditing = threading.Lock(), threading.Lock()
        self._holders: dict[str, _Holder] = {}
        self._reasons: Mapping[Uuid, str] = MappingProxyType({})
        self._offered: dict[str, _Own] = {}
        """All that a resource has offered so far."""
        self._rivals: dict[str, _Rival] = {}
        self.taken: dict[str, bool] = {}
        """Resources that ever were another plugin's, and whether they are now."""
        self._others = frozenset(
            name for vendor in node.vendors for name in vendor.listed(self._own(vendor))
        )
        auditors = ((vendor, self._auditor(vendor)) for vendor in node.vendors)
        self._auditors = {vendor.settings.kind: it for vendor, it in auditors if it is not None}
        self._missing_since_s: dict[tuple[str, str, str], float] = {}

    def _own(self, vendor: AnyVendor) -> object:
        return self._node.settings().of(vendor.settings.kind)

    def _auditor(self, vendor: AnyVendor) -> Auditor | None:
        """The auditor of the pods of a vendor that others serve."""
        if vendor.auditor is None or vendor.counter is None:
            return None
        outlets = AuditOutlets(
            notify=self._node.notify,
            count=self._node.metrics.of_vendors[vendor.counter.name].count,
            sysfs_root=self._node.settings().sysfs_root,
            clock=self._node.clock,
        )
        return vendor.auditor(outlets, lambda: self._own(vendor))

    # -- what is known -----------------------------------------------------------------------------
    def closed(self) -> dict[Uuid, str]:
        """Why cards, or cores of them, are closed although they work."""
        audited = {
            uuid: found.reason
            for auditor in self._auditors.values()
            for uuid, found in auditor.closed.items()
        }
        return {**audited, **self._reasons}

    def sources_of(self, vendor: AnyVendor) -> CardSources:
        """What is published of a vendor that others serve."""
        auditor = self._auditors.get(vendor.settings.kind)
        return CardSources() if auditor is None else CardSources(closed=lambda: auditor.closed)

    def pods_holding(self) -> int:
        """How many pods hold our cards from another plugin."""
        return len(self._holders)

    def why_taken(self, resource: str) -> str:
        """Why kubelet calls another plugin for this resource; "" as far as is known."""
        rival = self._rivals.get(resource)
        return rival.taken if rival is not None else ""

    def drifted(self) -> int:
        """How many pods hold other cards than were reserved, by the last audit."""
        return sum(auditor.drifted for auditor in self._auditors.values())

    # -- what happened -----------------------------------------------------------------------------
    def begin(self) -> None:
        """The record is complete: the first report may follow."""
        self.audit()
        self._node.recorded.set()

    def settled(self, listed: Sequence[HeldContainer]) -> None:
        """kubelet's list, once the record has what it shows of our own containers."""
        ids = tuple(_flat(listed))
        self._close_held(ids)
        self._record_others(ids)

    def look(self) -> float:
        """Read kubelet's list; seconds until the next time. Unreadable, it changes nothing."""
        try:
            listed = self._node.kubelet.list()
        except KubeletError as e:
            log.debug("strangers_unknown", extra=kv(error=str(e)))
            return INTERVAL_S
        if self._node.recorded.is_set():
            self.settled(listed)
        ids = tuple(_flat(listed))
        for resource in self._node.resources:
            if resource.lifecycle.registered.is_set() and resource.uuids():
                self._look_for_rival(resource, ids)
        return INTERVAL_S

    def audit(self) -> None:
        """Let the auditors check this node's pods.

        The NUMA hints follow containers that have ended, too.
        """
        if self._node.recorded.is_set():
            for resource in self._node.resources:
                resource.update_hints(self._node.ledger.entries())
        node, auditors = self._node.view.node(), self._auditors.values()
        if node is None:
            return
        with self._auditing:
            before = [auditor.closed for auditor in auditors]
            for auditor in auditors:
                auditor.audit(node, self._node.live.pods(), self._held_of_others())
            has_changed = before != [auditor.closed for auditor in auditors]
        if has_changed:
            self._node.wake()

    def look_at_lost(self, entries: Iterable[Entry], lost: Mapping[str, frozenset[str]]) -> None:
        """Tell people of devices on record that are offered no more, once; `lost` by resource."""
        now_s, before = self._node.clock.monotonic(), self._missing_since_s
        since: dict[tuple[str, str, str], float] = {}
        for entry in entries:
            for name in lost.get(entry.resource, frozenset()).intersection(entry.device_ids):
                key = entry.pod_uid, entry.container, name
                since[key] = before.get(key, now_s)
                if now_s - since[key] >= SURE_S:
                    since[key] = math.inf  # never again
                    whose = Pod(uid=entry.pod_uid, namespace=entry.namespace, name=entry.pod)
                    why = _vanished(entry, name)
                    self._node.notify(EventNote.about(whose, VANISHED_EVENT, why))
        self._missing_since_s = since

    # -- our cards, from other plugins -------------------------------------------------------------
    def _close_held(self, ids: Sequence[_Listed]) -> None:
        inventories = [resource.inventory for resource in self._node.resources]
        with self._lock:
            found = self._held_from_others(ids)
            if not found and not self._holders:
                return
            self._holders = self._merged(found)
            self._reasons = MappingProxyType(_reasons(self._holders))
            changes = [inventory.close_cards(self._reasons) for inventory in inventories]
        for uuid in (uuid for change in changes for uuid in change.failed):
            log.warning("card_closed", extra=kv(uuid=uuid, reason=self._reasons.get(uuid)))
        for uuid in (uuid for change in changes for uuid in change.recovered):
            log.info("card_opened", extra=kv(uuid=uuid))
        if any(changes):
            self._node.wake()

    def _held_from_others(self, ids: Sequence[_Listed]) -> dict[str, dict[Uuid, str]]:
        """The cards of each pod, and by which resource it has them.

        An ID of our own resource that names no card is of all of them, for any may be meant.
        """
        names = {resource.name for resource in self._node.resources}
        strange: list[tuple[_Listed, bool, tuple[Uuid, ...]]] = []
        for owner in self._node.vendor_cards:
            for resource in owner.resources:
                cards, own = resource.inventory.cards, _Own()
                own.add(cards)
                for each in ids:
                    has_form = own.has(each.device_id)
                    if each.resource in names and has_form:
                        continue
                    held = owner.foreign_cards(each.device_id, cards)
                    if held is None and each.resource == resource.name:
                        held = tuple(card.uuid for card in cards)
                    if held:
                        strange.append((each, has_form, held))
        found: dict[str, dict[Uuid, str]] = {}
        for each, held in self._not_ours(strange):
            found.setdefault(each.pod, {}).update(dict.fromkeys(held, each.resource))
        return found

    def _not_ours(
        self, strange: Sequence[tuple[_Listed, bool, tuple[Uuid, ...]]]
    ) -> Iterator[tuple[_Listed, tuple[Uuid, ...]]]:
        """Those that are not on record; nor a share of an ended pod, which was freed with it.

        Of what was not served here only IDs in the form that shares a card count: any other was
        given by a plugin that gives whole cards, whatever the pod's annotations say.
        """
        if not strange:
            return
        entries, pods = self._node.ledger.entries(), self._node.live.pods()
        served = _ids(entry for entry in entries if entry.source is Source.SERVED)
        known = _ids(entries)
        over = {pod.key for pod in pods if pod.is_over}
        for each, has_form, held in strange:
            key = each.resource, each.device_id
            is_ours = key in served or (has_form and (key in known or each.pod in over))
            if not is_ours:
                yield each, held

    def _merged(self, found: Mapping[str, Mapping[Uuid, str]]) -> dict[str, _Holder]:
        """Those that the list shows, and those that it has left out although they live."""
        pods = {pod.key: pod for pod in self._node.live.pods()}
        merged: dict[str, _Holder] = {}
        for name, cards in found.items():
            pod = pods.get(name)
            merged[name] = _Holder(pod.uid if pod is not None else "", dict(cards))
        for name, holder in self._holders.items():
            pod = pods.get(name)
            lives = pod is not None and not pod.is_over and holder.uid in ("", pod.uid)
            if name not in merged and lives:
                merged[name] = holder
        return merged

    # -- our resources, from other plugins ---------------------------------------------------------
    def _look_for_rival(self, resource: NodeResource, ids: Sequence[_Listed]) -> None:
        own = self._offered.setdefault(resource.name, _Own())
        own.add(resource.inventory.cards)
        strange = frozenset(
            each for each in ids if each.resource == resource.name and not own.has(each.device_id)
        )
        number, rival = resource.lifecycle.registrations, self._rivals.get(resource.name)
        if rival is None or rival.registration != number:
            self._begin_anew(resource.name, number, strange)
            return
        sockets = frozenset(self._other_sockets())
        new = strange - rival.before
        if rival.taken:
            if rival.sockets - sockets:
                log.info("rival_gone", extra=kv(resource=resource.name))
                resource.lifecycle.restart()
        elif new:
            rival.taken, rival.sockets = self._taken(resource.name, new, sockets), sockets
            log.error("resource_taken", extra=kv(resource=resource.name, why=rival.taken))
            self.taken = {**self.taken, resource.name: True}
            node = self._node.view.node()
            if node is not None:
                self._node.notify(EventNote.about(node, TAKEN_EVENT, rival.taken))

    def _begin_anew(self, resource: str, number: int, strange: frozenset[_Listed]) -> None:
        """After our registration the resource is ours; pods from before may keep their IDs."""
        if self.why_taken(resource):
            log.info("resource_retaken", extra=kv(resource=resource))
            self.taken = {**self.taken, resource: False}
        self._rivals[resource] = _Rival(number, strange)
        if strange:
            named = _named({each.name for each in strange}, MAX_NAMED)
            log.warning("foreign_ids_held", extra=kv(resource=resource, containers=named))

    def _other_sockets(self) -> Iterator[str]:
        folder = self._node.settings().plugin_dir
        ours = {
            path.name for each in self._node.resources for path in own_sockets(folder, each.name)
        }
        for path in folder.glob("*.sock"):
            if path.name != KUBELET_SOCKET and path.name not in ours:
                yield path.name

    def _taken(self, resource: str, new: Collection[_Listed], sockets: Collection[str]) -> str:
        first = min(new, key=lambda each: each.name)
        others = _named(sockets, MAX_NAMED) if sockets else "none that can be told"
        return (
            f"another device plugin has taken {resource}: container {first.name} was given "
            f"{cut(first.device_id, MAX_ID_CHARS)}, which is none of this daemon's device IDs; "
            f"sockets of other plugins in {self._node.settings().plugin_dir}: {others}; remove "
            "that plugin from this node, then this daemon registers again"
        )

    # -- cards that others serve by right ----------------------------------------------------------
    def _record_others(self, ids: Sequence[_Listed]) -> None:
        """Record what kubelet lists of them; the daemon grants nothing of it.

        An entry outlives kubelet's restarts, whose list is empty at first, and ours; it goes with
        its pod, as every entry.
        """
        shown: dict[tuple[str, str, str], list[str]] = {}
        for each in ids:
            if each.resource in self._others:
                key = each.pod, each.container, each.resource
                shown.setdefault(key, []).append(each.device_id)
        if not shown:
            return
        ledger, now_s = self._node.ledger, self._node.clock.now()
        live = self._node.live.pods()
        pods = {pod.key: pod for pod in live if not pod.is_over}
        entries, found = ledger.entries(), list[Entry]()
        for (name, container, resource), ids_held in shown.items():
            pod = pods.get(name)
            if pod is not None and not _is_of_namesake(pod, resource, ids_held, entries):
                # the resource stands in place of the vendor
                entry = Entry.of(
                    pod, container, vendor=resource, resource=resource, device_ids=ids_held
                )
                found.append(replace(entry, source=Source.ADOPTED, time_s=now_s))
        ledger.adopt(found)

    def _held_of_others(self) -> Mapping[str, tuple[HeldContainer, ...]]:
        """What each pod holds of them, by uid."""
        found: dict[str, tuple[HeldContainer, ...]] = {}
        for entry in self._node.ledger.entries():
            if entry.vendor == entry.resource and entry.resource in self._others:
                item = HeldContainer(
                    namespace=entry.namespace,
                    pod=entry.pod,
                    container=entry.container,
                    device_ids={entry.resource: entry.device_ids},
                )
                found[entry.pod_uid] = (*found.get(entry.pod_uid, ()), item)
        return found


class Drift:
    """Pods whose annotations say otherwise than the ledger. The ledger counts; people should know.

    Used by one thread.
    """

    def __init__(self, ledger: Ledger, vendors: Sequence[VendorProtocol]) -> None:
        """Compare with `ledger` what annotations claim of these vendors' cards."""
        self._ledger, self._claims = ledger, Claims(vendors)
        self._vendors = {vendor.cards.word: vendor for vendor in vendors}
        self._drifted: dict[str, tuple[str, ...]] = {}

    def look(self, pods: Iterable[Pod]) -> int:
        """The number of pods that differ; each is logged when that begins, changes or ends."""
        by_uid = {pod.uid: pod for pod in pods if not pod.is_over}
        found: dict[str, tuple[str, ...]] = {}
        for entry in self._ledger.entries():
            pod = by_uid.get(entry.pod_uid)
            if pod is not None and self._differs(pod, entry):
                found[pod.uid] = (*found.get(pod.uid, ()), entry.container)
        self._claims.keep(by_uid.keys())
        for uid, containers in found.items():
            if self._drifted.get(uid) != containers:
                log.warning(
                    "annotations_differ_from_record",
                    extra=kv(pod=by_uid[uid].key, containers=containers, counts="the record"),
                )
        for uid in self._drifted.keys() & by_uid.keys() - found.keys():
            log.info("annotations_as_recorded", extra=kv(pod=by_uid[uid].key))
        self._drifted = found
        return len(found)

    def _differs(self, pod: Pod, entry: Entry) -> bool:
        """An entry of no container or of a borrowed slot has nothing to be compared with.

        Nor has one of fixed shares, which are in no annotation, nor of a card that others serve.
        """
        if not entry.container or entry.lender != entry.container:
            return False
        if entry.vendor not in self._vendors:
            return False
        if any(vendor.is_fixed(entry.resource) for vendor in self._vendors.values()):
            return False
        claims = (claim for claim in self._claims.of(pod) if claim.word == entry.vendor)
        claim = next(claims, None)
        return claim is None or claim.held.by_container.get(entry.container, ()) != entry.grants


def _flat(listed: Sequence[HeldContainer]) -> Iterator[_Listed]:
    for item in listed:
        for resource, names in item.device_ids.items():
            for name in names:
                yield _Listed(item.pod_key, item.container, resource, name)


def _ids(entries: Iterable[Entry]) -> frozenset[tuple[str, str]]:
    return frozenset((entry.resource, name) for entry in entries for name in entry.device_ids)


def _is_of_namesake(pod: Pod, resource: str, ids: Iterable[str], entries: Iterable[Entry]) -> bool:
    """kubelet's list names no uid: IDs that an earlier pod of the name holds are that one's."""
    return any(
        entry.pod_key == pod.key
        and entry.pod_uid != pod.uid
        and entry.resource == resource
        and not set(entry.device_ids).isdisjoint(ids)
        for entry in entries
    )


def _reasons(holders: Mapping[str, _Holder]) -> dict[Uuid, str]:
    by_card: dict[Uuid, list[str]] = {}
    for pod, holder in sorted(holders.items()):
        for uuid, resource in holder.cards.items():
            by_card.setdefault(uuid, []).append(f"{pod} ({resource})")
    return {
        uuid: f"held from another device plugin by {_named(pods, MAX_PODS)}, until that has ended"
        for uuid, pods in by_card.items()
    }


def _vanished(entry: Entry, device_id: str) -> str:
    return (
        f"container {entry.container} was given {device_id} of {entry.resource}, which is no "
        "device of this node any more: whoever manages the devices has removed or recreated "
        "it; delete the pod, so that it gets another"
    )


def _named(names: Collection[str], most: int) -> str:
    """The first of them in order, and how many more."""
    more = len(names) - most
    return ", ".join(sorted(names)[:most]) + (f" and {more} more" if more > 0 else "")
