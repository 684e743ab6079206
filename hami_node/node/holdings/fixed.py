"""What containers hold of fixed shares, by the device IDs that kubelet lists for them.

The ledger has it before each answer leaves; this is for a ledger that was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hami_node.errors import WireError
from hami_node.model import Container, Device, Pod, Uuid
from hami_node.node.holdings.claims import ListedIds, ids_of
from hami_node.node.holdings.recorded import grants_text
from hami_node.record.ledger import Entry, Source
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.reservation import count_of


def fixed_of(container: Container, vendor: VendorProtocol) -> Iterator[str]:
    """The fixed resources of the vendor that the container asks for."""
    for resource in container.limits:
        if vendor.is_fixed(resource) and count_of(container, resource):
            yield resource


def listed_entries(
    pod: Pod,
    vendors: Iterable[VendorProtocol],
    cards: Mapping[Uuid, Device],
    listed: ListedIds,
    source: Source,
) -> Iterator[Entry]:
    """An entry for each container that kubelet lists with shares of cards of this node."""
    for vendor in vendors:
        for container in pod.containers:
            for resource in fixed_of(container, vendor):
                ids = ids_of(listed, container.name, resource)
                if ids:
                    yield from _entry(pod, container, vendor, resource, ids, cards, source)


def _entry(
    pod: Pod,
    container: Container,
    vendor: VendorProtocol,
    resource: str,
    ids: tuple[str, ...],
    cards: Mapping[Uuid, Device],
    source: Source,
) -> Iterator[Entry]:
    try:
        held = vendor.fixed_grants(resource, ids, cards)
    except WireError:
        return  # a card, or an instance, that is not there: it counts once it is
    grants, parts = grants_text(vendor, held)
    yield Entry(
        pod_uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        container=container.name,
        kind=container.kind.value,
        vendor=vendor.cards.word,
        resource=resource,
        device_ids=tuple(sorted(ids)),
        grants=grants,
        parts=parts,
        lender=container.name,
        source=source,
    )
