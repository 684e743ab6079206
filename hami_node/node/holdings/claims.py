"""What pods hold by their annotations, or of fixed shares by the device IDs that kubelet lists.

The ledger takes it over where it has no entry yet.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
Id = tuple[str, str]
"""A resource and a device ID of it."""
ListedIds = Mapping[str, frozenset[Id]]
"""What kubelet lists for a pod, by the container's name."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a pod holds of one vendor's cards by its annotations.

    Attributes:
        resource: the resource that its containers ask for; the vendor may have renamed it since.
    """

    vendor: VendorProtocol
    resource: str
    held: HeldGrants

    @property
    def word(self) -> str:
        """The vendor's word in grants."""
        return self.vendor.cards.word


class Claims:
    """Reads a pod only when it has changed. Not thread-safe: its owner holds a lock."""

    def __init__(self, vendors: Sequence[VendorProtocol]) -> None:
        """Read claims on these vendors' cards."""
        self._vendors = tuple(vendors)
        self._known: dict[str, tuple[Pod, tuple[Claim, ...]]] = {}

    def of(self, pod: Pod) -> tuple[Claim, ...]:
        """The pod's claims, those on nothing left out."""
        seen, claims = self._known.get(pod.uid, (None, ()))
        if seen is not pod:
            claims = tuple(self._read(pod))
            self._known[pod.uid] = pod, claims
        return claims

    def keep(self, uids: Collection[str]) -> None:
        """Forget all other pods."""
        self._known = {uid: known for uid, known in self._known.items() if uid in uids}

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
        claim = Claim(vendor, resource, vendor.held_by(pod))
        if counts_of(pod, resource):
            return claim
        for name in self._former_names(pod):
            claim = Claim(vendor, name, replace(vendor, counted=(name,)).held_by(pod))
            if claim.held.slot_map is not None:
                break
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
) -> Iterator[Entry]:
    """The entries of containers that hold their cards, by all that can be seen of the pod.

    They do where their slot is used up, where the pod runs, and where kubelet lists IDs for them or
    for a container after them. A claim that does not say which container holds what is one entry of
    no container. Containers that are `known` are left out.
    """
    held, runs = claim.held, pod.phase not in ("", "Pending")
    ids = {item.name: ids_of(listed, item.name, claim.resource) for item in pod.containers}

    def entry(name: str, grants: ContainerGrants, device_ids: Iterable[str]) -> Entry:
        return Entry.of(
            pod,
            name,
            vendor=claim.word,
            resource=claim.resource,
            device_ids=device_ids,
            grants=grants,
            source=source,
        )

    if not held.by_container:
        everything = tuple(grant for slot in held.slots for grant in slot)[:MAX_UNCLEAR]
        if not known and (runs or any(ids.values())):
            yield entry("", everything, (name for names in ids.values() for name in names))
        return
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
            found.append(entry(item.name, grants, ids[item.name]))
        is_later_served = is_later_served or is_listed
    yield from reversed(found)


def ids_of(listed: ListedIds, container: str, resource: str) -> tuple[str, ...]:
    """The IDs of a resource that kubelet lists for the container."""
    return tuple(sorted(name for of, name in listed.get(container, ()) if of == resource))


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
                ids = ids_of(listed, item.name, resource)
                if not ids or not vendor.is_fixed(resource) or not count_of(item, resource):
                    continue
                try:
                    grants = vendor.fixed_grants(resource, ids, cards)
                except WireError:
                    continue  # a card, or an instance, that is not there: it counts once it is
                yield Entry.of(
                    pod,
                    item.name,
                    vendor=vendor.cards.word,
                    resource=resource,
                    device_ids=ids,
                    grants=grants,
                    source=source,
                )
