"""The same cards and shares under the names of HAMi's scheduler, for dashboards made for it.

Names, labels and units are those of HAMi 2.10; the cores of cards whose cores are numbered are the
bit mask, as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hami_node.engine.quota import Quota
from hami_node.metrics.cards import MIB
from hami_node.metrics.cluster_use import CardUse, ClusterUse, Share
from hami_node.metrics.series import Gauge, escaped, families, family

ZONE: Final = 'zone="vGPU"'

LIMITS: Final[tuple[Gauge[CardUse], ...]] = (
    Gauge(
        "hami_gpu_memory_limit_bytes",
        "Memory offered on the card.",
        lambda card: card.use.device.memory_mib * MIB if card.is_offered else 0,
    ),
    Gauge(
        "hami_gpu_core_limit_ratio",
        "Cores offered on the card, percent or bit mask.",
        lambda card: card.use.device.cores if card.is_offered else 0,
    ),
    Gauge(
        "hami_gpu_shared_count",
        "Containers that share the card.",
        lambda card: card.use.slots_used,
    ),
    Gauge(
        "hami_gpu_core_allocated_ratio",
        "Cores granted on the card, percent or bit mask.",
        lambda card: card.use.cores_used,
    ),
    Gauge(
        "hami_node_gpu_memory_allocated_ratio",
        "Memory granted, as a share of what is offered.",
        lambda card: _memory_ratio(card),
    ),
)
"""Labelled by node, uuid, index and type."""

ALLOCATED: Final = "hami_gpu_memory_allocated_bytes"
OVERVIEW: Final = "hami_node_gpu_overview"

SHARES: Final[tuple[Gauge[Share], ...]] = (
    Gauge(
        "hami_vgpu_memory_allocated_bytes",
        "Memory that a container holds on a card.",
        lambda share: share.grant.memory_mib * MIB,
    ),
    Gauge(
        "hami_vgpu_core_allocated_ratio",
        "Cores that a container holds on a card, percent or bit mask.",
        lambda share: share.grant.cores,
    ),
)


def _memory_ratio(card: CardUse) -> float | None:
    offered = card.use.device.memory_mib
    return card.use.memory_used_mib / offered if offered and card.is_offered else None


def _memory_used(card: CardUse) -> int:
    return card.use.memory_used_mib * MIB


def hami_series(use: ClusterUse, resources: tuple[str, str]) -> Iterator[str]:
    """All cards, shares and quotas, some lines at a time.

    Args:
        use: the cluster.
        resources: memory and cores that quotas limit.
    """
    cards = [(_card_labels(card), card) for card in use.cards()]
    yield from families(LIMITS, cards)
    yield from family(
        ALLOCATED,
        "Memory granted on the card.",
        ((_with_cores(*item), _memory_used(item[1])) for item in cards),
    )
    yield from family(
        OVERVIEW,
        "Memory granted on the card, with what it offers.",
        ((_with_sizes(*item), _memory_used(item[1])) for item in cards),
    )
    yield from families(SHARES, [(_share_labels(share), share) for share in use.shares()])
    yield from _quotas(use, resources)


def _card_labels(card: CardUse) -> str:
    device = card.use.device
    return (
        f'{{{ZONE},node="{escaped(card.node)}",device_uuid="{escaped(device.uuid)}",'
        f'device_index="{device.index}",device_type="{escaped(device.model)}"}}'
    )


def _with_cores(labels: str, card: CardUse) -> str:
    return f'{labels[:-1]},device_cores="{card.use.device.cores}"}}'


def _with_sizes(labels: str, card: CardUse) -> str:
    memory_mib = card.use.device.memory_mib
    return f'{_with_cores(labels, card)[:-1]},device_memory_limit="{memory_mib}"}}'


def _share_labels(share: Share) -> str:
    pod, node, _ = share.item
    return (
        f'{{{ZONE},namespace="{escaped(pod.namespace)}",node="{escaped(node)}",'
        f'pod="{escaped(pod.name)}",container_index="{share.place}",'
        f'device_uuid="{escaped(share.grant.uuid)}"}}'
    )


def _quotas(use: ClusterUse, resources: tuple[str, str]) -> Iterator[str]:
    rows = [
        (f'{ZONE},namespace="{escaped(namespace)}",quota_name="{name}"', used, limit)
        for namespace, quota in use.quotas.items()
        for name, used, limit in _of_quota(quota, resources)
    ]
    yield from family(
        "hami_resource_quota_used",
        "What the pods of a namespace hold.",
        ((f'{{{labels},limit="{limit or 0}"}}', used) for labels, used, limit in rows),
    )
    yield from family(
        "hami_resource_quota_limit",
        "What they may hold.",
        ((f"{{{labels}}}", limit) for labels, _, limit in rows),
    )


def _of_quota(quota: Quota, resources: tuple[str, str]) -> Iterator[tuple[str, int, int | None]]:
    memory, cores = resources
    yield memory, quota.memory_used_mib, quota.memory_limit_mib
    yield cores, quota.cores_used, quota.core_limit
