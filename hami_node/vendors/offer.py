"""What a node offers for scheduling: its cards by annotation, as far as they are served.

Pure: a node in, values out. A vendor whose device plugin is down (allocatable 0) offers nothing,
even if stale annotations remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hami_node.errors import WireError
from hami_node.model import NO_SCORES, Device, Node, PairScores, Uuid, Vendor
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.wishes import decode_cordon

ANY_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
"""The labels that a node needs where every node may be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What may be scheduled on a node.

    Attributes:
        devices: cards of every vendor that is served, in order of registration.
        cordoned: cards that take no new pod.
        pair_scores: links between cards.
        missing: why a vendor that the node has registered is not offered, by vendor, for people.
        problem: what else can't be read, for people.
        largest_mib: total memory of the largest card.
    """

    devices: tuple[Device, ...] = ()
    cordoned: frozenset[Uuid] = frozenset()
    pair_scores: PairScores = field(default_factory=lambda: NO_SCORES)
    missing: Mapping[Vendor, str] = field(default_factory=lambda: MappingProxyType({}))
    problem: str = ""
    largest_mib: int = 0

    @property
    def why_empty(self) -> str:
        """Why nothing is offered, for people; "" when something is."""
        if self.devices:
            return ""
        return "; ".join(dict.fromkeys(self.missing.values())) or "no cards are registered"


def marks_of(node: Node, vendors: Sequence[VendorProtocol]) -> tuple[object, ...]:
    """All that a node's offer depends on: equal marks mean an equal offer."""
    return (
        node.annotations.get(names.NODE_CORDON),
        node.is_unschedulable,
        *(vendor.marks_of(node) for vendor in vendors),
    )


def is_selected(node: Node, node_labels: Mapping[str, str]) -> bool:
    """True for a node that has all of these labels. Source: HAMi scheduler.go:155."""
    return all(node.labels.get(key) == value for key, value in node_labels.items())


def offer_of(
    node: Node,
    vendors: Sequence[VendorProtocol],
    given_up: Mapping[Vendor, str] | None = None,
    node_labels: Mapping[str, str] = ANY_LABELS,
) -> Offer:
    """Decode what a node offers; never raises: what can't be read is `missing`.

    Args:
        node: the node.
        vendors: the vendors whose cards are read.
        given_up: vendors whose daemon has gone silent, with the reason.
        node_labels: the labels without which a node offers nothing.
    """
    if node.is_unschedulable:
        return Offer(missing={vendor.cards: "the node is cordoned" for vendor in vendors})
    offer = _registered(node, vendors, given_up or {})
    if not offer.devices or is_selected(node, node_labels):
        return offer
    wanted = ",".join(f"{key}={value}" for key, value in node_labels.items())
    why = f"the node does not have the labels of node-label-selector ({wanted})"
    unselected = {device.vendor: why for device in offer.devices}
    return Offer(missing={**offer.missing, **unselected}, problem=offer.problem)


def _registered(
    node: Node, vendors: Sequence[VendorProtocol], given_up: Mapping[Vendor, str]
) -> Offer:
    devices: list[Device] = []
    missing: dict[Vendor, str] = dict(given_up)
    scores: dict[Uuid, Mapping[Uuid, int]] = {}
    problems: list[str] = []
    for vendor in vendors:
        if vendor.cards in missing:
            continue
        try:
            devices += vendor.offered_by(node)
        except WireError as e:
            missing[vendor.cards] = str(e)
        try:
            scores |= vendor.pair_scores_of(node)
        except WireError as e:
            # Unreadable links affect the links only, not the cards.
            problems.append(f"links between cards are unknown: {e}")
    return Offer(
        devices=tuple(devices),
        cordoned=decode_cordon(node.annotations),
        pair_scores=scores or NO_SCORES,
        missing=missing,
        problem="; ".join(problems),
        largest_mib=max((device.memory_mib for device in devices), default=0),
    )


def registered_cards(node: Node, vendors: Iterable[VendorProtocol]) -> tuple[Device, ...]:
    """The cards in the node's annotations, offered or not; unreadable ones are left out."""
    cards: list[Device] = []
    for vendor in vendors:
        with suppress(WireError):  # whoever looks for its offer reports it
            cards += vendor.registered_on(node)
    return tuple(cards)
