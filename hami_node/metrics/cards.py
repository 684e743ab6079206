"""The metrics of a node's cards and of the containers that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from hami_node.engine.usage import DeviceUsage, container_name, counting_of
from hami_node.metrics.cluster_use import (
    MAX_LABEL_CHARS,
    MIB,
    Share,
    cores_ratio,
    held_mib,
    numbered_cores,
)
from hami_node.metrics.families import Columns, gauge, gauges
from hami_node.model import Device

PREFIX: Final = "hami_node_"
CARD_LABELS: Final = ("node", "uuid", "index", "type")
HOLDER_LABELS: Final = ("node", "namespace", "pod", "container", "uuid")
_FACTS: Final = ("vendor", "mode", "numa", "pci_bus")
_CARDS: Final[Columns[DeviceUsage]] = (
    ("healthy", "1 when the card can be used, else 0.", lambda use: use.device.healthy),
    ("slots", "Containers that may share the card.", lambda use: use.device.slots),
    ("slots_used", "Containers that share the card now.", lambda use: use.slots_used),
    (
        "memory_physical_bytes",
        "Real memory of the card.",
        lambda use: _bytes(use.device.physical_memory_mib),
    ),
    (
        "memory_bytes",
        "Memory offered on the card, scaling included.",
        lambda use: use.device.memory_mib * MIB,
    ),
    (
        "memory_granted_bytes",
        "Memory granted to containers on the card.",
        lambda use: use.memory_used_mib * MIB,
    ),
    (
        "cores_ratio",
        "Cores offered on the card, scaling included; 1 is one card.",
        lambda use: cores_ratio(use.device.vendor, use.device.cores, use.device),
    ),
    (
        "cores_granted_ratio",
        "Cores granted to containers on the card; 1 is one card.",
        lambda use: cores_ratio(use.device.vendor, use.cores_used, use.device),
    ),
)
_SHARES: Final[Columns[Share]] = (
    (
        "memory_bytes",
        "Memory that a container holds on a card.",
        lambda share: held_mib(share[2], share[3]) * MIB,
    ),
    (
        "cores_ratio",
        "Cores that a container holds on a card; 1 is one card.",
        lambda share: cores_ratio(share[2].vendor, share[2].cores, share[3]),
    ),
)


def card_series(node: str, cards: Iterable[tuple[DeviceUsage, str]]) -> Iterator[Metric]:
    """Every card and what is taken of it; each with the type that the node object shows."""
    items = [(card_labels(node, use.device, model), use) for use, model in cards]
    doc = "1 for each card, with its facts."
    infos = (((*labels, *_facts(use.device)), 1) for labels, use in items)
    yield gauge(PREFIX + "card_info", doc, (*CARD_LABELS, *_FACTS), infos)
    doc = "1 while the card can not be used, with the reason."
    sick = ((labels, use.device) for labels, use in items if not use.device.healthy)
    reasons = (((*labels, _reason(card)), 1) for labels, card in sick)
    yield gauge(PREFIX + "card_unhealthy", doc, (*CARD_LABELS, "reason"), reasons)
    yield from gauges(_CARDS, CARD_LABELS, items, PREFIX + "card_")
    doc = "1 while this core is granted, else 0; of cards whose cores are numbered."
    cores = (
        ((*labels, str(core)), is_granted)
        for labels, use in items
        if counting_of(use.device.vendor).cores_are_mask
        for core, is_granted in numbered_cores(use.device.cores, use.cores_used)
    )
    yield gauge(PREFIX + "card_core_granted", doc, (*CARD_LABELS, "core"), cores)


def share_series(node: str, shares: Iterable[Share]) -> Iterator[Metric]:
    """What each container holds of each card."""
    rows = ((_holder(node, share), share) for share in shares)
    yield from gauges(_SHARES, HOLDER_LABELS, rows, PREFIX + "allocation_")


def card_labels(node: str, card: Device, model: str) -> tuple[str, ...]:
    """The values of `CARD_LABELS`."""
    return (node, str(card.uuid), str(card.index), model)


def _holder(node: str, share: Share) -> tuple[str, ...]:
    (pod, _, grants), index, grant, _ = share
    return (node, pod.namespace, pod.name, container_name(pod, grants, index), str(grant.uuid))


def _facts(card: Device) -> tuple[str, ...]:
    numa = "" if card.numa is None else str(card.numa)
    return (str(card.vendor), card.mode, numa, card.pci_bus)


def _reason(card: Device) -> str:
    return (card.unhealthy_reason or "unknown")[:MAX_LABEL_CHARS]


def _bytes(mib: int | None) -> float | None:
    return None if mib is None else mib * MIB
