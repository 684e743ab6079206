"""The cards of all nodes and the containers that hold them, under our own names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

from hami_node.engine.usage import container_name, counting_of
from hami_node.metrics.cluster_use import (
    MIB,
    CardUse,
    ClusterUse,
    Share,
    cores_ratio,
    held_mib,
    numbered_cores,
)
from hami_node.metrics.series import Family, escaped, family, table
from hami_node.model import Vendor

PREFIX: Final = "hami_node_extender_"
INFO: Final = Family(
    PREFIX + "card_info", "1 for each card, with its facts; its type as the node has registered it."
)
CORES: Final = Family(
    PREFIX + "card_core_granted",
    "1 while this core is granted, else 0; of cards whose cores are numbered.",
)
CARDS: Final = (
    Family(PREFIX + "card_slots", "Containers that may share the card; 0 while it is not offered."),
    Family(PREFIX + "card_slots_used", "Containers that share the card."),
    Family(PREFIX + "card_memory_bytes", "Memory offered on the card, scaling included."),
    Family(PREFIX + "card_memory_granted_bytes", "Memory granted on the card."),
    Family(
        PREFIX + "card_cores_ratio", "Cores offered on the card, scaling included; 1 is one card."
    ),
    Family(PREFIX + "card_cores_granted_ratio", "Cores granted on the card; 1 is one card."),
)
"""What every card has, labelled by node and uuid; the rest is in `card_info`."""
SHARES: Final = (
    Family(PREFIX + "allocation_memory_bytes", "Memory that a container holds on a card."),
    Family(
        PREFIX + "allocation_cores_ratio", "Cores that a container holds on a card; 1 is one card."
    ),
)
"""What every container holds of a card."""


def own_series(use: ClusterUse) -> Iterator[str]:
    """All cards and shares, some lines at a time."""
    cards = list(use.cards())
    labels = [
        f'{{node="{escaped(node)}",uuid="{escaped(use.device.uuid)}"}}' for node, use, _ in cards
    ]
    yield from family(INFO, _facts(labels, cards), repeat(1, len(cards)))
    yield from table(CARDS, labels, _card_columns(cards))
    cores = list(_numbered(labels, cards))
    yield from family(CORES, [label for label, _ in cores], [value for _, value in cores])
    del cards, labels, cores
    shares = list(use.shares())
    yield from table(SHARES, list(map(_share_labels, shares)), _share_columns(shares))


def _card_columns(cards: Sequence[CardUse]) -> Iterator[Sequence[float | None]]:
    """The values of `CARDS`: column by column, for a page has 40,000 rows."""
    yield [use.device.slots if is_offered else 0 for _, use, is_offered in cards]
    yield [use.slots_used for _, use, _ in cards]
    yield [use.device.memory_mib * MIB if is_offered else 0 for _, use, is_offered in cards]
    yield [use.memory_used_mib * MIB for _, use, _ in cards]
    numbered = _numbered_vendors(cards)
    yield [
        cores_ratio(use.device.vendor, use.device.cores if is_offered else 0, use.device)
        if use.device.vendor in numbered or not is_offered
        else use.device.cores / 100
        for _, use, is_offered in cards
    ]
    yield [
        cores_ratio(use.device.vendor, use.cores_used, use.device)
        if use.device.vendor in numbered
        else use.cores_used / 100
        for _, use, _ in cards
    ]


def _share_columns(shares: Sequence[Share]) -> Iterator[Sequence[float | None]]:
    """The values of `SHARES`."""
    yield [held_mib(grant, card) * MIB for _, _, grant, card in shares]
    yield [cores_ratio(grant.vendor, grant.cores, card) for _, _, grant, card in shares]


def _numbered_vendors(cards: Sequence[CardUse]) -> frozenset[Vendor]:
    """The vendors whose cores are granted by number."""
    vendors = {use.device.vendor for _, use, _ in cards}
    return frozenset(vendor for vendor in vendors if counting_of(vendor).cores_are_mask)


def _facts(labels: Sequence[str], cards: Sequence[CardUse]) -> list[str]:
    """The labels of `card_info`; most cards share theirs with many."""
    known: dict[tuple[int, str, Vendor], str] = {}
    found = []
    for label, (_, use, _) in zip(labels, cards, strict=True):
        device = use.device
        key = device.index, device.model, device.vendor
        facts = known.get(key)
        if facts is None:
            model = escaped(device.model)
            facts = f',index="{device.index}",type="{model}",vendor="{device.vendor}"}}'
            known[key] = facts
        found.append(label[:-1] + facts)
    return found


def _numbered(labels: Sequence[str], cards: Sequence[CardUse]) -> Iterator[tuple[str, int]]:
    numbered = _numbered_vendors(cards)
    if not numbered:
        return
    for label, (_, use, _) in zip(labels, cards, strict=True):
        if use.device.vendor in numbered:
            for core, is_granted in numbered_cores(use.device.cores, use.cores_used):
                yield f'{label[:-1]},core="{core}"}}', int(is_granted)


def _share_labels(share: Share) -> str:
    (pod, node, grants), index, grant, _ = share
    container = container_name(pod, grants, index)
    return (
        f'{{node="{escaped(node)}",namespace="{escaped(pod.namespace)}",'
        f'pod="{escaped(pod.name)}",container="{escaped(container)}",uuid="{escaped(grant.uuid)}"}}'
    )
