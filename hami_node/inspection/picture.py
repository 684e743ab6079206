"""Listed objects as the extender would see them at one moment. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.fleet import Fleet
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import DeviceUsage
from hami_node.extender.holdings import Holding, holding_of, stamped_age_s
from hami_node.extender.offers import Offer, offer_of
from hami_node.extender.rules import ExtenderRules
from hami_node.extender.state import UNBOUND_S
from hami_node.model import Node, Pod, Uuid, Vendor
from hami_node.wire.quotas import ResourceQuota

NO_CARDS: Final[Mapping[Uuid, DeviceUsage]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What one look at the cluster gave. Without `quotas` nothing limits a namespace."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    quotas: tuple[ResourceQuota, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One pod's holding with the namespace that it is counted for."""

    namespace: str
    holding: Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Nodes with their cards, and what is taken of them.

    Attributes:
        fleet: all grants that count; to be asked, not changed.
        offers: by node, of every node that has or should have cards.
        nodes: the same nodes.
        others: number of nodes without cards.
        held: what counts, by the key of its pod.
    """

    rules: ExtenderRules
    fleet: Fleet
    offers: Mapping[str, Offer]
    nodes: Mapping[str, Node]
    others: int
    held: Mapping[str, Held]

    def cards_of(self, node: str) -> Mapping[Uuid, DeviceUsage]:
        """The cards of a node that may be scheduled on."""
        seat = self.fleet.nodes.get(node)
        return NO_CARDS if seat is None else seat.usage.cards

    def largest_mib_of(self, node: str) -> int:
        """All memory of a node's largest NVIDIA card; 0 without one."""
        cards = (card.device for card in self.cards_of(node).values())
        return max((one.memory_mib for one in cards if one.vendor is Vendor.NVIDIA), default=0)

    def is_ready(self, node: str) -> bool:
        """False where kube-scheduler binds nothing."""
        return self.nodes[node].is_ready

    def why_not_offered(self, node: str) -> str:
        """Why a node offers no card, for people."""
        offer = self.offers.get(node)
        return "the node is not known" if offer is None else offer.why_empty


def picture_of(
    listed: Listed, rules: ExtenderRules, now_s: float, *, without: str | None = None
) -> Picture:
    """Decode offers and grants; what can't be read is left out, as the extender does.

    Args:
        listed: nodes, pods and quotas.
        rules: how decisions are made.
        now_s: Unix seconds, for the age of reservations.
        without: the key of a pod whose grants don't count.
    """
    offers: dict[str, Offer] = {}
    for node in sorted(listed.nodes, key=lambda one: one.name):
        if _has_cards(node, rules):
            offers[node.name] = offer_of(node, rules.names)
    held: dict[str, Held] = {}
    for pod in listed.pods:
        holding = holding_of(pod, rules.names)
        if holding is not None and pod.key != without and not is_expired(pod, now_s):
            held[pod.key] = Held(namespace=pod.namespace, holding=holding)
    return Picture(
        rules=rules,
        fleet=fleet_of(rules, offers, held, listed.quotas),
        offers=offers,
        nodes={node.name: node for node in listed.nodes if node.name in offers},
        others=sum(1 for node in listed.nodes if node.name not in offers),
        held=held,
    )


def fleet_of(
    rules: ExtenderRules,
    offers: Mapping[str, Offer],
    held: Mapping[str, Held],
    quotas: Iterable[ResourceQuota] = (),
) -> Fleet:
    """Cards, grants and limits as the engine counts them."""
    fleet = Fleet(rules.engine, QuotaBook(rules.config.memory_factor))
    for name, offer in offers.items():
        if offer.devices:
            fleet.set_node(
                name, offer.devices, cordoned=offer.cordoned, pair_scores=offer.pair_scores
            )
    for key, one in held.items():
        fleet.add_pod(key, one.namespace, one.holding.node, one.holding.grants)
    for quota in quotas:
        limits = Limits(
            memory_mib=quota.limit(rules.names.gpu_memory), cores=quota.limit(rules.names.gpu_cores)
        )
        fleet.quotas.set_limits(quota.namespace, quota.name, limits)
    return fleet


def is_expired(pod: Pod, now_s: float) -> bool:
    """True for a reservation that no longer counts, because it was not bound in time."""
    return not pod.node_name and stamped_age_s(pod, now_s) > UNBOUND_S


def _has_cards(node: Node, rules: ExtenderRules) -> bool:
    """True where cards are, or are said to be: a cordoned node counts."""
    offer = offer_of(replace(node, is_unschedulable=False), rules.names)
    return bool(offer.devices or offer.missing)
