"""The cards of all nodes and the containers that hold them, under our own names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hami_node.engine.usage import container_names, counting_of
from hami_node.metrics.cards import MIB, numbered_cores
from hami_node.metrics.cluster_use import CardUse, ClusterUse, Share
from hami_node.metrics.series import Gauge, escaped, families, family

PREFIX: Final = "hami_node_extender_"


def _offered_cores(card: CardUse) -> float | None:
    return _cores(card, card.use.device.cores) if card.is_offered else 0


def _granted_cores(card: CardUse) -> float | None:
    return _cores(card, card.use.cores_used)


def _cores(card: CardUse, cores: int) -> float | None:
    counting = counting_of(card.use.device.vendor)
    whole = counting.whole_card(card.use.device)
    return counting.core_count(cores) / whole if whole else None


def _held_cores(share: Share) -> float | None:
    counting = counting_of(share.grant.vendor)
    whole = counting.whole_card(share.card)
    return counting.core_count(share.grant.cores) / whole if whole else None


def _held_memory(share: Share) -> int:
    whole_mib = share.card.memory_mib if share.card else 0
    return (share.grant.memory_mib or whole_mib) * MIB


CARDS: Final[tuple[Gauge[CardUse], ...]] = (
    Gauge(
        PREFIX + "card_slots",
        "Containers that may share the card; 0 while it is not offered.",
        lambda card: card.use.device.slots if card.is_offered else 0,
    ),
    Gauge(
        PREFIX + "card_slots_used",
        "Containers that share the card.",
        lambda card: card.use.slots_used,
    ),
    Gauge(
        PREFIX + "card_memory_bytes",
        "Memory offered on the card, scaling included.",
        lambda card: card.use.device.memory_mib * MIB if card.is_offered else 0,
    ),
    Gauge(
        PREFIX + "card_memory_granted_bytes",
        "Memory granted on the card.",
        lambda card: card.use.memory_used_mib * MIB,
    ),
    Gauge(
        PREFIX + "card_cores_ratio",
        "Cores offered on the card, scaling included; 1 is one card.",
        _offered_cores,
    ),
    Gauge(
        PREFIX + "card_cores_granted_ratio",
        "Cores granted on the card; 1 is one card.",
        _granted_cores,
    ),
)
"""What every card has, labelled by node and uuid; the rest stands in `card_info`."""

SHARES: Final[tuple[Gauge[Share], ...]] = (
    Gauge(
        PREFIX + "allocation_memory_bytes",
        "Memory that a container holds on a card.",
        _held_memory,
    ),
    Gauge(
        PREFIX + "allocation_cores_ratio",
        "Cores that a container holds on a card; 1 is one card.",
        _held_cores,
    ),
)
"""What every container holds of a card."""


def own_series(use: ClusterUse) -> Iterator[str]:
    """All cards and shares, some lines at a time."""
    cards = [(_card_labels(card), card) for card in use.cards()]
    doc = "1 for each card, with its facts; its type as the node has registered it."
    yield from family(PREFIX + "card_info", doc, ((_facts(*item), 1) for item in cards))
    yield from families(CARDS, cards)
    doc = "1 while this core is granted, else 0; of cards whose cores are numbered."
    yield from family(PREFIX + "card_core_granted", doc, _numbered(cards))
    yield from families(SHARES, [(_share_labels(share), share) for share in use.shares()])


def _card_labels(card: CardUse) -> str:
    return f'{{node="{escaped(card.node)}",uuid="{escaped(card.use.device.uuid)}"}}'


def _facts(labels: str, card: CardUse) -> str:
    device = card.use.device
    return (
        f'{labels[:-1]},index="{device.index}",type="{escaped(device.model)}",'
        f'vendor="{device.vendor}"}}'
    )


def _numbered(cards: list[tuple[str, CardUse]]) -> Iterator[tuple[str, float]]:
    for labels, (_, use, _) in cards:
        if counting_of(use.device.vendor).cores_are_mask:
            for core, is_granted in numbered_cores(use.device.cores, use.cores_used):
                yield f'{labels[:-1]},core="{core}"}}', int(is_granted)


def _share_labels(share: Share) -> str:
    (pod, node, grants), place = share.item, share.place
    container = container_names(pod, grants)[place]
    return (
        f'{{node="{escaped(node)}",namespace="{escaped(pod.namespace)}",'
        f'pod="{escaped(pod.name)}",container="{escaped(container)}",'
        f'uuid="{escaped(share.grant.uuid)}"}}'
    )
