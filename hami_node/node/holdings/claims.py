"""What pods hold by their annotations, or of fixed shares by the device IDs that kubelet lists.

The ledger takes it over where it has no entry yet.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from hami_node.errors import WireError
from hami_node.logs import kv
from hami_node.model import ContainerGrants, ContainerKind, Device, Pod, Uuid
from hami_node.record.ledger import Entry, Source
from hami_node.vendors.held_grants import HeldGrants
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.reservation import count_of, counts_of

log = logging.getLogger(__name__)

MAX_UNCLEAR: Final = 256
"""Grants that count where it is unclear whose they are: more than a pod's containers have."""
Marks = tuple[str, ...]
ListedIds = Mapping[str, frozenset[tuple[str, str]]]
"""The resources and device IDs that kubelet lists for a pod, by the container's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a pod holds of one vendor's cards.

    Attributes:
        resource: the resource that its containers ask for; the vendor may have renamed it since.
        held: by its annotations; nothing of fixed shares, which are in none.
    """

    vendor: VendorProtocol
    resource: str
    held: HeldGrants = field(default_factory=HeldGrants)

    @property
    def word(self) -> str:
        """The vendor's word in grants."""
        return self.vendor.cards.word


class Claims:
    """Reads a pod only when its annotations changed. Not thread-safe: its owner holds a lock."""

    def __init__(self, vendors: Sequence[VendorProtocol]) -> None:
        """Read claims on these vendors' cards."""
        self._vendors = tuple(vendors)
        self._known: dict[str, tuple[Pod, Marks, tuple[Claim, ...]]] = {}

    def of(self, pod: Pod) -> tuple[Claim, ...]:
        """The pod's claims, those on nothing left out."""
        known = self._known.get(pod.uid)
        if known is not None and known[0] is pod:
            return known[2]
        marks = self._marks(pod)
        claims = known[2] if known is not None and known[1] == marks else tuple(self._read(pod))
        self._known[pod.uid] = pod, marks, claims
        return claims

    def keep(self, uids: Collection[str]) -> None:
        """Forget all other pods."""
        self._known = {uid: known for uid, known in self._known.items() if uid in uids}

    def _marks(self, pod: Pod) -> Marks:
        forms = [vendor.keys.grants for vendor in self._vendors]
        keys = [key for form in forms for key in (*form.records, form.to_allocate) if key]
        return tuple(pod.annotations.get(key, "") for key in keys)

    def _read(self, pod: Pod) -> Iterator[Claim]:
        for vendor in self._vendors:
            if not pod.annotations.get(vendor.keys.grants.allocated):
                continue
            claim = self._claim(pod, vendor)
            held = claim.held
            if held.problem and held.slot_map is None and counts_of(pod, claim.resource):
                log.warning("reservation_unclear", extra=kv(pod=pod.key, why=held.problem))
            if any(held.slots):
                yield claim

    def _claim(self, pod: Pod, vendor: VendorProtocol) -> Claim:
        """By the vendor's own resource, else by a name that it may have had before."""
        resource = vendor.counted_in(pod)
        claim = Claim(vendor=vendor, resource=resource, held=vendor.held_by(pod))
        if counts_of(pod, resource):
            return claim
        for name in self._former_names(pod):
            held = replace(vendor, counted=(name,)).held_by(pod)
            former = Claim(vendor=vendor, resource=name, held=held)
            if held.slot_map is not None:
                return former
            claim = former
        return claim

    def _former_names(self, pod: Pod) -> list[str]:
        """Extended resources that the pod asks for and none of the vendors has.

        Of fixed shares no annotation makes a holder.
        """
        ours = {name for vendor in self._vendors for name in vendor.resources}
        named = {name for container in pod.containers for name in container.limits}
        return sorted(
            name
            for name in named - ours
            if "/" in name and not any(vendor.is_fixed(name) for vendor in self._vendors)
        )


def entries_of(
    pod: Pod, claim: Claim, listed: ListedIds, known: Collection[str], source: Source
) -> tuple[Entry, ...]:
    """The entries of containers that hold their cards, by all that can be seen of the pod.

    They do where their slot is used up, where the pod runs, and where kubelet lists IDs for them or
    for a container after them. A claim that does not say which container holds what is one entry of
    no container. Containers that are `known` are left out.
    """
    held, runs = claim.held, pod.phase not in ("", "Pending")
    ids = {item.name: ids_of(listed, item.name, claim.resource) for item in pod.containers}
    if not held.by_container:
        everything = tuple(grant for slot in held.slots for grant in slot)[:MAX_UNCLEAR]
        if not known and (runs or any(ids.values())):
            return (_entry(pod, claim, "", everything, _flat(ids.values()), source),)
        return ()
    found: list[Entry] = []
    is_later_served = False
    for item in reversed(pod.containers):
        grants = held.by_container.get(item.name, ())
        is_used_up = held.slot_map is not None and not held.is_waiting(item.name)
        is_listed = bool(ids[item.name])
        # kubelet serves in order: where a later container has IDs, the init containers had theirs
        was_init = item.kind is ContainerKind.INIT and is_later_served
        is_holder = is_used_up or runs or is_listed or was_init
        if grants and is_holder and item.name not in known:
            found.append(_entry(pod, claim, item.name, grants, ids[item.name], source))
        is_later_served = is_later_served or is_listed
    return tuple(reversed(found))


def ids_of(listed: ListedIds, container: str, resource: str) -> tuple[str, ...]:
    """The IDs of a resource that kubelet lists for the container."""
    return tuple(sorted(name for of, name in listed.get(container, ()) if of == resource))


def _flat(ids: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for names in ids for name in names)


def listed_entries(
    pod: Pod,
    vendors: Iterable[VendorProtocol],
    cards: Mapping[Uuid, Device],
    listed: ListedIds,
    source: Source,
) -> Iterator[Entry]:
    """An entry for each container that kubelet lists with fixed shares of cards of this node."""
    for vendor in vendors:
        for item in pod.containers:
            for resource in item.limits:
                if not vendor.is_fixed(resource) or not count_of(item, resource):
                    continue
                ids = ids_of(listed, item.name, resource)
                if not ids:
                    continue
                try:
                    grants = vendor.fixed_grants(resource, ids, cards)
                except WireError:
                    continue  # a card, or an instance, that is not there: it counts once it is
                claim = Claim(vendor=vendor, resource=resource)
                yield _entry(pod, claim, item.name, grants, ids, source)


def _entry(
    pod: Pod,
    claim: Claim,
    container: str,
    grants: ContainerGrants,
    ids: Collection[str],
    source: Source,
) -> Entry:
    kinds = {item.name: item.kind for item in pod.containers}
    return Entry(
        pod_uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        container=container,
        kind=kinds.get(container, ContainerKind.APP),
        vendor=claim.word,
        resource=claim.resource,
        device_ids=tuple(sorted(set(ids))),
        grants=grants,
        lender=container,
        source=source,
    )
