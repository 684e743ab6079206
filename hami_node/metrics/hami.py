"""The same cards and shares under the names of HAMi's scheduler, for dashboards made for it.

Names, labels and units are those of HAMi 2.10; the cores of cards whose cores are numbered are the
bit mask, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final

from hami_node.engine.quota import Quota
from hami_node.metrics.cards import MIB
from hami_node.metrics.cluster_use import CardUse, ClusterUse, Share
from hami_node.metrics.series import Family, escaped, family, table
from hami_node.model import Pod, Uuid

ZONE: Final = 'zone="vGPU"'
CARDS: Final = (
    Family("hami_gpu_memory_limit_bytes", "Memory offered on the card."),
    Family("hami_gpu_core_limit_ratio", "Cores offered on the card, percent or bit mask."),
    Family("hami_gpu_shared_count", "Containers that share the card."),
    Family("hami_gpu_core_allocated_ratio", "Cores granted on the card, percent or bit mask."),
    Family(
        "hami_node_gpu_memory_allocated_ratio", "Memory granted, as a share of what is offered."
    ),
)
MEMORY: Final = Family("hami_gpu_memory_allocated_bytes", "Memory granted on the card.")
OVERVIEW: Final = Family("hami_node_gpu_overview", "Memory granted on the card.")
SHARES: Final = (
    Family("hami_vgpu_memory_allocated_bytes", "Memory that a container holds on a card."),
    Family(
        "hami_vgpu_core_allocated_ratio",
        "Cores that a container holds on a card, percent or bit mask.",
    ),
)
PART_DOC: Final = "1 for each part of a divided card that a container holds."
QUOTA_USED: Final = Family("hami_resource_quota_used", "What the pods of a namespace hold.")
QUOTA_LIMIT: Final = Family("hami_resource_quota_limit", "What the pods of a namespace may hold.")


PartLabels = Callable[[Pod], Iterable[Mapping[str, str]]]
"""The parts of divided cards that a pod holds; each names its card in `device_uuid`."""


def hami_series(
    use: ClusterUse, resources: tuple[str, str], parts: Mapping[str, PartLabels]
) -> Iterator[str]:
    """All cards, shares, parts and quotas, some lines at a time.

    Args:
        use: the cluster.
        resources: memory and cores that quotas limit.
        parts: the metrics of parts of divided cards.
    """
    cards = list(use.cards())
    labels = list(map(_card_labels, cards))
    yield from table(CARDS, labels, _card_columns(cards))
    granted = [used.memory_used_mib * MIB for _, used, _ in cards]
    labels = [
        f'{label[:-1]},device_cores="{used.device.cores}"}}'
        for label, (_, used, _) in zip(labels, cards, strict=True)
    ]
    yield from family(MEMORY, labels, granted)
    labels = [
        f'{label[:-1]},device_memory_limit="{used.device.memory_mib}"}}'
        for label, (_, used, _) in zip(labels, cards, strict=True)
    ]
    yield from family(OVERVIEW, labels, granted)
    del cards, labels, granted
    shares = list(use.shares())
    yield from table(SHARES, list(map(_share_labels, shares)), _share_columns(shares))
    for name, labels_of in parts.items():
        labels = list(_of_parts(use, labels_of))
        yield from family(Family(name, PART_DOC), labels, repeat(1, len(labels)))
    yield from _quotas(use, resources)


def _of_parts(use: ClusterUse, labels_of: PartLabels) -> Iterator[str]:
    for pod, node, _ in use.pods:
        for part in labels_of(pod):
            card = use.offered.get(node, {}).get(Uuid(part["device_uuid"]))
            index = "" if card is None else str(card.device.index)
            labels = {"node": node, "device_index": index, **part}
            shown = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
            yield f"{{{ZONE},{shown}}}"


def _card_labels(card: CardUse) -> str:
    node, use, _ = card
    device = use.device
    return (
        f'{{{ZONE},node="{escaped(node)}",device_uuid="{escaped(device.uuid)}",'
        f'device_index="{device.index}",device_type="{escaped(device.model)}"}}'
    )


def _card_columns(cards: Sequence[CardUse]) -> Iterator[Sequence[float | None]]:
    """The values of `CARDS`: column by column, for a page has 40,000 rows."""
    yield [use.device.memory_mib * MIB if is_offered else 0 for _, use, is_offered in cards]
    yield [use.device.cores if is_offered else 0 for _, use, is_offered in cards]
    yield [use.slots_used for _, use, _ in cards]
    yield [use.cores_used for _, use, _ in cards]
    yield [
        use.memory_used_mib / use.device.memory_mib
        if is_offered and use.device.memory_mib
        else None
        for _, use, is_offered in cards
    ]


def _share_columns(shares: Sequence[Share]) -> Iterator[Sequence[float | None]]:
    """The values of `SHARES`."""
    yield [grant.memory_mib * MIB for _, _, grant, _ in shares]
    yield [grant.cores for _, _, grant, _ in shares]


def _share_labels(share: Share) -> str:
    (pod, node, _), index, grant, _ = share
    return (
        f'{{{ZONE},namespace="{escaped(pod.namespace)}",node="{escaped(node)}",'
        f'pod="{escaped(pod.name)}",container_index="{index}",device_uuid="{escaped(grant.uuid)}"}}'
    )


def _quotas(use: ClusterUse, resources: tuple[str, str]) -> Iterator[str]:
    rows = [
        (f'{ZONE},namespace="{escaped(namespace)}",quota_name="{name}"', used, limit)
        for namespace, quota in use.quotas.items()
        for name, used, limit in _of_quota(quota, resources)
    ]
    used_labels = [f'{{{labels},limit="{limit or 0}"}}' for labels, _, limit in rows]
    yield from family(QUOTA_USED, used_labels, [used for _, used, _ in rows])
    limit_labels = [f"{{{labels}}}" for labels, _, _ in rows]
    yield from family(QUOTA_LIMIT, limit_labels, [limit for _, _, limit in rows])


def _of_quota(quota: Quota, resources: tuple[str, str]) -> Iterator[tuple[str, int, int | None]]:
    memory, cores = resources
    yield memory, quota.memory_used_mib, quota.memory_limit_mib
    yield cores, quota.cores_used, quota.core_limit
