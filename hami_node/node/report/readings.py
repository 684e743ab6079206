"""What a node's cards hold, as readings for the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants, container_name, counting_of
from hami_node.metrics.cards import AllocationReading, CardReading, held_mib
from hami_node.model import Device, Node, Pod, Uuid
from hami_node.vendors.holding import holding_of
from hami_node.vendors.offer import registered_cards
from hami_node.vendors.protocol import VendorProtocol

Readings = tuple[tuple[CardReading, ...], tuple[AllocationReading, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCards:
    """The cards that the annotations of the node object list.

    Attributes:
        node: the node object; None while it is unknown.
        served: vendors whose cards this daemon serves.
        others: vendors whose cards other device plugins serve.
    """

    node: Callable[[], Node | None] = lambda: None
    served: Sequence[VendorProtocol] = ()
    others: Sequence[VendorProtocol] = ()

    def registered(self) -> dict[Uuid, Device]:
        """Those that this daemon serves."""
        return self._read(self.served)

    def of_others(self) -> dict[Uuid, Device]:
        """Those that others serve."""
        return self._read(self.others)

    def _read(self, vendors: Iterable[VendorProtocol]) -> dict[Uuid, Device]:
        node = self.node()
        cards = () if node is None else registered_cards(node, vendors)
        return {card.uuid: card for card in cards}


def card_reading(use: DeviceUsage, registered: Mapping[Uuid, Device]) -> CardReading:
    """A card under the type that the node object shows, so that its series join with others."""
    card = use.device
    shown = registered.get(card.uuid, card)
    return CardReading(
        card=replace(card, model=shown.model),
        physical_memory_mib=card.physical_memory_mib,
        slots_used=use.slots_used,
        memory_granted_mib=use.memory_used_mib,
        cores_granted=use.cores_used,
    )


def allocation_readings(
    pod: Pod, grants: PodGrants, cards: Mapping[Uuid, Device]
) -> Iterator[AllocationReading]:
    """What each container of a pod holds of each card."""
    for index, held in enumerate(grants.containers):
        if not grants.holds(index):
            continue
        for grant in held:
            card, counting = cards.get(grant.uuid), counting_of(grant.vendor)
            yield AllocationReading(
                namespace=pod.namespace,
                pod=pod.name,
                container=container_name(pod, grants, index),
                uuid=str(grant.uuid),
                memory_mib=held_mib(grant, card),
                cores=counting.core_count(grant.cores),
                whole_card=counting.whole_card(card),
            )


def readings_of_others(
    cards: Mapping[Uuid, Device], pods: Iterable[Pod], vendors: Sequence[VendorProtocol]
) -> Readings:
    """Cards that other device plugins serve, with what pods hold of them by their annotations.

    Args:
        cards: those on the node object.
        pods: all pods of this node.
        vendors: whose cards others serve.
    """
    if not cards:
        return (), ()
    usage = NodeUsage(cards.values())
    held: list[AllocationReading] = []
    for pod in pods:
        holding = holding_of(pod, vendors)
        if holding is not None:
            usage.add(pod.uid, holding.grants)
            held += allocation_readings(pod, holding.grants, cards)
    return tuple(card_reading(use, cards) for use in usage.cards.values()), tuple(held)
