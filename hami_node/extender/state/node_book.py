"""The nodes of the watch, and the cards of them that the engine gets."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from hami_node.engine.fleet.fleet import Fleet
from hami_node.engine.resize import with_container
from hami_node.engine.usage import PodGrants, larger_of
from hami_node.errors import WireError
from hami_node.logs import kv
from hami_node.model import ContainerGrants, Node, Pod, Vendor
from hami_node.vendors.offer import (
    ANY_LABELS,
    Offer,
    is_selected,
    marks_of,
    offer_of,
)
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.resize import Word, Words, decode_approval, decode_slot, decode_words

log = logging.getLogger(__name__)

NO_WORDS: Final[Mapping[str, Word]] = MappingProxyType({})
"""What a node says of a pod that was never resized."""


class NodeWords:
    """The words of all nodes. Not thread-safe: its owner holds a lock."""

    def __init__(self, vendors: Sequence[VendorProtocol]) -> None:
        """Nothing was said yet."""
        self._vendors = {vendor.cards.word: vendor for vendor in vendors}
        self._said: dict[str, tuple[str, Words]] = {}

    def hear(self, name: str, node: Node | None) -> Collection[str]:
        """Take the words of a node, None for one that is gone; the uids of pods they changed of."""
        text = "" if node is None else node.annotations.get(names.NODE_RESIZED, "")
        before, known = self._said.get(name, ("", {}))
        if text == before:
            return ()
        words = decode_words(text)
        if words:
            self._said[name] = text, words
        else:
            self._said.pop(name, None)
        uids = known.keys() | words.keys()
        return {uid for uid in uids if known.get(uid, NO_WORDS) != words.get(uid, NO_WORDS)}

    def about(self, pod: Pod) -> Mapping[str, Word]:
        """What the pod's node says of its containers, by their names."""
        _, words = self._said.get(pod.node_name, ("", {}))
        return words.get(pod.uid, NO_WORDS)

    def floor(self, pod: Pod, seen: PodGrants) -> PodGrants:
        """What the pod holds at least: what was seen of it, or what its node says.

        For a container that has carried out all that was approved the word alone counts; while
        another approval is under way, what was seen counts as well.
        """
        said = self.about(pod)
        if not said:
            return seen
        if not any(seen.containers):
            kinds = tuple(container.kind for container in pod.containers)
            seen = replace(seen, containers=((),) * len(kinds), kinds=kinds)
        if len(seen.containers) != len(pod.containers):
            return seen
        approval = decode_approval(pod.annotations.get(names.POD_RESIZE_APPROVED, ""), pod.uid)
        for index, container in enumerate(pod.containers):
            word = said.get(container.name)
            grants = () if word is None else self._grants(word)
            if word is None or not grants:
                continue
            is_settled = approval is not None and (
                approval.id == word.id or container.name not in approval.grants
            )
            seen = with_container(seen, index, _floor(seen.containers[index], grants, is_settled))
        return seen

    def _grants(self, word: Word) -> ContainerGrants:
        vendor = self._vendors.get(word.vendor)
        if vendor is None:
            return ()
        try:
            return decode_slot(word.grants, names.NODE_RESIZED, vendor.cards)
        except WireError:
            return ()


def _floor(seen: ContainerGrants, said: ContainerGrants, is_settled: bool) -> ContainerGrants:
    vendor = said[0].vendor
    others = tuple(grant for grant in seen if grant.vendor is not vendor)
    own = tuple(grant for grant in seen if grant.vendor is vendor)
    return (*others, *(said if is_settled else larger_of(own, said)))


class NodeBook:
    """Nodes, their offers and the vendors given up. Not thread-safe: its owner holds a lock.

    Attributes:
        offering: how many nodes offer cards.
    """

    def __init__(
        self,
        fleet: Fleet,
        vendors: Sequence[VendorProtocol],
        node_labels: Mapping[str, str] = ANY_LABELS,
    ) -> None:
        """Report the cards of these vendors to `fleet`, of nodes that have all of these labels."""
        self._fleet, self._vendors, self._node_labels = fleet, vendors, node_labels
        self._nodes: dict[str, Node] = {}
        self._marks: dict[str, tuple[object, ...]] = {}
        self._offers: dict[str, Offer] = {}
        self._given_up: dict[str, dict[Vendor, str]] = {}
        self.offering = 0

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Every node as the watch shows it."""
        return self._nodes

    @property
    def offers(self) -> Mapping[str, Offer]:
        """What each node offers."""
        return self._offers

    @property
    def silent(self) -> int:
        """How many nodes offer less than they have because a daemon was given up."""
        return sum(1 for vendors in self._given_up.values() if vendors)

    def largest_mib(self, names: Iterable[str]) -> dict[str, int]:
        """All memory of the largest card of each of these nodes, MiB; 0 without cards."""
        offers = self._offers
        return {name: offers[name].largest_mib if name in offers else 0 for name in names}

    def cordoned(self) -> frozenset[str]:
        """The nodes whose cards go only to pods that tolerate the cordon."""
        return frozenset(name for name, node in self._nodes.items() if node.is_unschedulable)

    def withheld(self, nodes: Collection[str] | None) -> list[tuple[Node, list[VendorProtocol]]]:
        """Nodes whose cards of these vendors are not offered now; of these nodes, None for all.

        A cordoned node counts: only pods that tolerate the cordon get its cards.
        """
        names = self._offers.keys() if nodes is None else self._offers.keys() & nodes
        withheld = []
        for name in names:
            node, missing = self._nodes[name], self._offers[name].missing
            if node.is_unschedulable:
                withheld.append((node, list(self._vendors)))
            elif missing:
                withheld.append((node, [item for item in self._vendors if item.cards in missing]))
        return withheld

    def put(self, node: Node) -> None:
        """Apply the present state of a node."""
        self._nodes[node.name] = node
        self._refresh(node)

    def remove(self, name: str) -> None:
        """The node was deleted; its pods' grants are kept until the pods are deleted."""
        self.offering -= _is_offering(self._offers.get(name))
        for book in (self._nodes, self._marks, self._offers, self._given_up):
            book.pop(name, None)
        self._fleet.remove_node(name)

    def give_up(self, name: str, vendor: Vendor, why: str) -> None:
        """Offer no cards of a vendor on a node until `take_back`."""
        if name in self._nodes:
            self._given_up.setdefault(name, {})[vendor] = why
            self._refresh(self._nodes[name])

    def take_back(self, name: str, vendor: Vendor) -> None:
        """Offer the vendor's cards again."""
        given_up = self._given_up.get(name, {})
        if given_up.pop(vendor, None) is not None and name in self._nodes:
            self._refresh(self._nodes[name])

    def _refresh(self, node: Node) -> None:
        given_up = self._given_up.get(node.name, {})
        # kube-scheduler has judged the cordon: it knows which pods tolerate it
        node = replace(node, is_unschedulable=False)
        is_ours = is_selected(node, self._node_labels)
        marks = (marks_of(node, self._vendors), tuple(given_up), is_ours)
        if self._marks.get(node.name) == marks:
            return
        self._marks[node.name] = marks
        offer = offer_of(node, self._vendors, given_up, self._node_labels)
        known = self._offers.get(node.name)
        self._offers[node.name] = offer
        self.offering += _is_offering(offer) - _is_offering(known)
        if known is None or known.missing != offer.missing or known.problem != offer.problem:
            _report(node.name, offer)
        if not offer.devices:
            self._fleet.remove_node(node.name)
        elif known is None or replace(known, missing={}) != replace(offer, missing={}):
            self._fleet.set_node(
                node.name,
                offer.devices,
                cordoned=offer.cordoned,
                pair_scores=offer.pair_scores,
            )


def _is_offering(offer: Offer | None) -> bool:
    return offer is not None and bool(offer.devices)


def _report(node: str, offer: Offer) -> None:
    for vendor, why in offer.missing.items():
        log.warning("cards_not_offered", extra=kv(node=node, vendor=vendor, why=why))
    if offer.problem:
        log.warning("node_not_understood", extra=kv(node=node, why=offer.problem))
    if offer.devices:
        log.info("cards_offered", extra=kv(node=node, cards=len(offer.devices)))
