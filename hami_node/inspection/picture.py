"""Listed objects as the extender would see them at a given time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
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


class Book:
    """Offers, grants and quotas as the engine counts them, change by change."""

    def __init__(self, basis: Basis, *, keeps_empty: bool = False) -> None:
        """Start empty; `keeps_empty` keeps a second fleet, without grants."""
        self.basis = basis
        self._limited = [vendor for vendor in basis.vendors if vendor.cards.has_quota]
        factor = max((vendor.memory_factor for vendor in self._limited), default=1)
        self.fleet = Fleet(basis.rules, QuotaBook(factor))
        self.empty = Fleet(basis.rules) if keeps_empty else None
        self.offers: dict[str, Offer] = {}
        self.held: dict[str, PodHolding] = {}

    def set_node(self, node: Node) -> None:
        """What a node offers, as the extender sees it; nothing where it should have no cards."""
        vendors = self.basis.vendors
        bare = offer_of(replace(node, is_unschedulable=False), vendors)
        if not bare.devices and not bare.missing:
            self.drop_node(node.name)
            return
        offer = offer_of(node, vendors, node_labels=self.basis.node_labels)
        if offer == self.offers.get(node.name):
            return
        self.offers[node.name] = offer
        for fleet in self._fleets():
            _set(fleet, node.name, offer)

    def drop_node(self, name: str) -> None:
        """It is gone, or has no cards."""
        if self.offers.pop(name, None) is not None:
            for fleet in self._fleets():
                fleet.remove_node(name)

    def _fleets(self) -> tuple[Fleet, ...]:
        return (self.fleet,) if self.empty is None else (self.fleet, self.empty)

    def set_pod(self, pod: Pod, now_s: float) -> None:
        """What a pod holds; nothing where that can't be decoded, or counts no longer."""
        holding = None if is_expired(pod, now_s) else holding_of(pod, self.basis.vendors)
        counted = None if holding is None else PodHolding(namespace=pod.namespace, holding=holding)
        self.hold(pod.key, counted)

    def hold(self, key: str, counted: PodHolding | None) -> None:
        """A pod holds this; None for nothing."""
        if counted is not None:
            self.held[key] = counted
            held = counted.holding
            self.fleet.add_pod(key, counted.namespace, held.node, held.grants)
        elif self.held.pop(key, None) is not None:
            self.fleet.remove_pod(key)

    def set_quota(self, quota: ResourceQuota, *, is_gone: bool = False) -> None:
        """A namespace's limits."""
        for vendor in self._limited:
            limits = None if is_gone else vendor.limits_in(quota)
            name = f"{quota.name} of {vendor.title}"
            self.fleet.quotas.set_limits(quota.namespace, name, limits)

    def picture(self, nodes: Mapping[str, Node], others: int) -> Picture:
        """All of it as it is now, with the nodes that offer cards and the number of the others."""
        return Picture(
            basis=self.basis,
            fleet=self.fleet,
            offers=self.offers,
            nodes=nodes,
            others=others,
            held=self.held,
            empty=self.empty,
        )


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
    book = Book(basis)
    for node in sorted(listed.nodes, key=lambda node: node.name):
        book.set_node(node)
    for pod in listed.pods:
        if pod.key != without:
            book.set_pod(pod, now_s)
    for quota in listed.quotas:
        book.set_quota(quota)
    nodes = {node.name: node for node in listed.nodes if node.name in book.offers}
    return book.picture(nodes, len(listed.nodes) - len(nodes))


def bare_fleet(basis: Basis, offers: Mapping[str, Offer]) -> Fleet:
    """The cards of these offers without any grant."""
    fleet = Fleet(basis.rules)
    for name, offer in offers.items():
        _set(fleet, name, offer)
    return fleet


def _set(fleet: Fleet, name: str, offer: Offer) -> None:
    if offer.devices:
        fleet.set_node(name, offer.devices, cordoned=offer.cordoned, pair_scores=offer.pair_scores)
    else:
        fleet.remove_node(name)


def is_expired(pod: Pod, now_s: float) -> bool:
    """True for a reservation that no longer counts, because its pod was not bound in time."""
    return not pod.node_name and stamped_age_s(pod, now_s) > UNBOUND_S
