"""Listed objects as the extender would see them at a given time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hami_node.engine.fleet.fleet import Fleet
from hami_node.engine.place import Rules
from hami_node.engine.quota import QuotaBook
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Node, Pod, Uuid
from hami_node.vendors.holding import UNBOUND_S, Holding, holding_of, stamped_age_s
from hami_node.vendors.offer import ANY_LABELS, Offer, offer_of
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.quotas import ResourceQuota

NO_CARDS: Final[Mapping[Uuid, DeviceUsage]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The listed objects of a cluster. Without `quotas` no namespace is limited."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    quotas: tuple[ResourceQuota, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHolding:
    """A pod's holding with the namespace that it counts for."""

    namespace: str
    holding: Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The vendors whose cards count, and the extender's rules.

    Attributes:
        vendors: whose cards are looked at.
        rules: how nodes and cards are chosen.
        node_labels: labels without which a node is not used.
    """

    vendors: tuple[VendorProtocol, ...]
    rules: Rules
    node_labels: Mapping[str, str] = field(default_factory=lambda: ANY_LABELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Nodes with their cards and usage.

    Attributes:
        basis: the vendors and rules that it was made with.
        fleet: all grants that count; read-only.
        offers: by node, of every node that has or should have cards.
        nodes: the same nodes.
        others: number of nodes without cards.
        held: the holdings that count, by the key of the pod.
        empty: the same cards without any grant, where somebody keeps them; None makes them anew.
    """

    basis: Basis
    fleet: Fleet
    offers: Mapping[str, Offer]
    nodes: Mapping[str, Node]
    others: int
    held: Mapping[str, PodHolding]
    empty: Fleet | None = None

    def cards_of(self, node: str) -> Mapping[Uuid, DeviceUsage]:
        """The cards of a node, if pods may be scheduled on them."""
        found = self.fleet.nodes.get(node)
        return NO_CARDS if found is None else found.usage.cards

    def is_ready(self, node: str) -> bool:
        """False where kube-scheduler binds nothing."""
        return self.nodes[node].is_ready

    def why_not_offered(self, node: str) -> str:
        """Why a node offers no card, for people."""
        offer = self.offers.get(node)
        return "the node is not known" if offer is None else offer.why_empty


def picture_of(
    listed: Listed, basis: Basis, now_s: float, *, without: str | None = None
) -> Picture:
    """Decode offers and grants; like the extender, leave out what can't be decoded.

    Args:
        listed: nodes, pods and quotas.
        basis: the vendors and rules.
        now_s: Unix seconds, for the age of reservations.
        without: the key of a pod whose grants are left out.
    """
    offers: dict[str, Offer] = {}
    for node in sorted(listed.nodes, key=lambda node: node.name):
        if _has_cards(node, basis.vendors):
            offers[node.name] = offer_of(node, basis.vendors, node_labels=basis.node_labels)
    held: dict[str, PodHolding] = {}
    for pod in listed.pods:
        holding = holding_of(pod, basis.vendors)
        if holding is not None and pod.key != without and not is_expired(pod, now_s):
            held[pod.key] = PodHolding(namespace=pod.namespace, holding=holding)
    return Picture(
        basis=basis,
        fleet=fleet_of(basis, offers, held, listed.quotas),
        offers=offers,
        nodes={node.name: node for node in listed.nodes if node.name in offers},
        others=sum(1 for node in listed.nodes if node.name not in offers),
        held=held,
    )


def fleet_of(
    basis: Basis,
    offers: Mapping[str, Offer],
    held: Mapping[str, PodHolding],
    quotas: Iterable[ResourceQuota] = (),
) -> Fleet:
    """Cards, grants and limits as the engine counts them."""
    limited = [vendor for vendor in basis.vendors if vendor.cards.has_quota]
    factor = max((vendor.memory_factor for vendor in limited), default=1)
    fleet = Fleet(basis.rules, QuotaBook(factor))
    for name, offer in offers.items():
        if offer.devices:
            fleet.set_node(
                name, offer.devices, cordoned=offer.cordoned, pair_scores=offer.pair_scores
            )
    for key, counted in held.items():
        fleet.add_pod(key, counted.namespace, counted.holding.node, counted.holding.grants)
    for quota in quotas:
        for vendor in limited:
            name = f"{quota.name} of {vendor.title}"
            fleet.quotas.set_limits(quota.namespace, name, vendor.limits_in(quota))
    return fleet


def is_expired(pod: Pod, now_s: float) -> bool:
    """True for a reservation that no longer counts, because its pod was not bound in time."""
    return not pod.node_name and stamped_age_s(pod, now_s) > UNBOUND_S


def _has_cards(node: Node, vendors: tuple[VendorProtocol, ...]) -> bool:
    """True for a node that has or should have cards, also if it is cordoned."""
    offer = offer_of(replace(node, is_unschedulable=False), vendors)
    return bool(offer.devices or offer.missing)
