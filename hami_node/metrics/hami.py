"""The same cards and shares under the names of HAMi's scheduler, for dashboards made for it.

Names, labels and units are those of HAMi 2.10, or its names from before 2.9 (`--legacy-metrics`);
the cores of cards whose cores are numbered are the bit mask, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from hami_node.engine.quota import Quota
from hami_node.metrics.cards import MIB
from hami_node.metrics.cluster_use import CardUse, ClusterUse, Share
from hami_node.metrics.series import Family, escaped, family, table
from hami_node.model import Pod, Uuid

ZONE: Final = 'zone="vGPU"'
PART_DOC: Final = "1 for each part of a divided card that a container holds."

PartLabels = Callable[[Pod], Iterable[Mapping[str, str]]]
"""The parts of divided cards that a pod holds; each names its card in the spelling's label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """Names of families and labels.

    Attributes:
        node, uuid, index, type, cores, memory: the labels of a card.
        share: the labels of a share: namespace, node, pod, the container's index, the card.
        quota: the labels of a quota: namespace, resource.
        cards: memory and cores offered, sharers, cores granted, share of memory granted.
        granted, overview: memory granted, with more labels.
        shares: what a container holds: memory, cores.
        quota_used: what the pods of a namespace hold.
        quota_limit: what they may hold; None where it is a label alone.
    """

    node: str
    uuid: str
    index: str
    type: str
    cores: str
    memory: str
    share: tuple[str, str, str, str, str]
    quota: tuple[str, str]
    cards: tuple[Family, Family, Family, Family, Family]
    granted: Family
    overview: Family
    shares: tuple[Family, Family]
    quota_used: Family
    quota_limit: Family | None


_OFFERED: Final = "Memory offered on the card."
_CORES: Final = "Cores offered on the card, percent or bit mask."
_SHARERS: Final = "Containers that share the card."
_CORES_GRANTED: Final = "Cores granted on the card, percent or bit mask."
_RATIO: Final = "Memory granted, as a share of what is offered."
_GRANTED: Final = "Memory granted on the card."
_HELD: Final = "Memory that a container holds on a card."
_CORES_HELD: Final = "Cores that a container holds on a card, percent or bit mask."
_QUOTA_USED: Final = "What the pods of a namespace hold."

CURRENT: Final = Spelling(
    node="node",
    uuid="device_uuid",
    index="device_index",
    type="device_type",
    cores="device_cores",
    memory="device_memory_limit",
    share=("namespace", "node", "pod", "container_index", "device_uuid"),
    quota=("namespace", "quota_name"),
    cards=(
        Family("hami_gpu_memory_limit_bytes", _OFFERED),
        Family("hami_gpu_core_limit_ratio", _CORES),
        Family("hami_gpu_shared_count", _SHARERS),
        Family("hami_gpu_core_allocated_ratio", _CORES_GRANTED),
        Family("hami_node_gpu_memory_allocated_ratio", _RATIO),
    ),
    granted=Family("hami_gpu_memory_allocated_bytes", _GRANTED),
    overview=Family("hami_node_gpu_overview", _GRANTED),
    shares=(
        Family("hami_vgpu_memory_allocated_bytes", _HELD),
        Family("hami_vgpu_core_allocated_ratio", _CORES_HELD),
    ),
    quota_used=Family("hami_resource_quota_used", _QUOTA_USED),
    quota_limit=Family("hami_resource_quota_limit", "What the pods of a namespace may hold."),
)
LEGACY: Final = Spelling(
    node="nodeid",
    uuid="deviceuuid",
    index="deviceidx",
    type="devicetype",
    cores="devicecores",
    memory="devicememorylimit",
    share=("podnamespace", "nodename", "podname", "containeridx", "deviceuuid"),
    quota=("quotanamespace", "quotaName"),
    cards=(
        Family("GPUDeviceMemoryLimit", _OFFERED),
        Family("GPUDeviceCoreLimit", _CORES),
        Family("GPUDeviceSharedNum", _SHARERS),
        Family("GPUDeviceCoreAllocated", _CORES_GRANTED),
        Family("nodeGPUMemoryPercentage", _RATIO),
    ),
    granted=Family("GPUDeviceMemoryAllocated", _GRANTED),
    overview=Family("nodeGPUOverview", _GRANTED),
    shares=(
        Family("vGPUMemoryAllocated", _HELD),
        Family("vGPUCoreAllocated", _CORES_HELD),
    ),
    quota_used=Family("QuotaUsed", _QUOTA_USED),
    quota_limit=None,
)
BEFORE_2_8: Final = (
    Family("vGPUPodsDeviceAllocated", _HELD),
    Family("vGPUMemoryPercentage", "Memory that a container holds, as a share of the card's."),
    Family("vGPUCorePercentage", _CORES_HELD),
)
"""Of a share, besides those of `LEGACY`; HAMi itself dropped them in 2.8."""


def hami_series(
    use: ClusterUse,
    resources: tuple[str, str],
    parts: Mapping[str, PartLabels],
    spelling: Spelling = CURRENT,
) -> Iterator[str]:
    """All cards, shares, parts and quotas, some lines at a time.

    Args:
        use: the cluster.
        resources: memory and cores that quotas limit.
        parts: the metrics of parts of divided cards.
        spelling: under which names.
    """
    yield from _cards(list(use.cards()), spelling)
    yield from _shares(list(use.shares()), spelling)
    for name, labels_of in parts.items():
        labels = list(dict.fromkeys(_of_parts(use, labels_of, spelling)))
        yield from family(Family(name, PART_DOC), labels, repeat(1, len(labels)))
    yield from _quotas(use, resources, spelling)


def _cards(cards: Sequence[CardUse], spelling: Spelling) -> Iterator[str]:
    labels = [_card_labels(card, spelling) for card in cards]
    yield from table(spelling.cards, labels, _card_columns(cards))
    granted = [used.memory_used_mib * MIB for _, used, _ in cards]
    labels = [
        f'{label[:-1]},{spelling.cores}="{used.device.cores}"}}'
        for label, (_, used, _) in zip(labels, cards, strict=True)
    ]
    yield from family(spelling.granted, labels, granted)
    labels = [
        f'{label[:-1]},{spelling.memory}="{used.device.memory_mib}"}}'
        for label, (_, used, _) in zip(labels, cards, strict=True)
    ]
    yield from family(spelling.overview, labels, granted)


def _shares(shares: Sequence[Share], spelling: Spelling) -> Iterator[str]:
    labels = [_share_labels(share, spelling.share) for share in shares]
    held = [grant.memory_mib * MIB for _, _, grant, _ in shares]
    cores = [grant.cores for _, _, grant, _ in shares]
    yield from table(spelling.shares, labels, (held, cores))
    if spelling is LEGACY:
        of_card = [
            grant.memory_mib / card.memory_mib if card is not None and card.memory_mib else None
            for _, _, grant, card in shares
        ]
        with_cores = [
            f'{label[:-1]},deviceusedcore="{used}"}}'
            for label, used in zip(labels, cores, strict=True)
        ]
        yield from family(BEFORE_2_8[0], with_cores, held)
        yield from table(BEFORE_2_8[1:], labels, (of_card, cores))


def _of_parts(use: ClusterUse, labels_of: PartLabels, spelling: Spelling) -> Iterator[str]:
    for pod, node, _ in use.pods:
        for part in labels_of(pod):
            card = use.offered.get(node, {}).get(Uuid(part[spelling.uuid]))
            index = "" if card is None else str(card.device.index)
            labels = {spelling.node: node, spelling.index: index, **part}
            shown = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
            yield f"{{{ZONE},{shown}}}"


def _card_labels(card: CardUse, spelling: Spelling) -> str:
    node, use, _ = card
    device = use.device
    return (
        f'{{{ZONE},{spelling.node}="{escaped(node)}",{spelling.uuid}="{escaped(device.uuid)}",'
        f'{spelling.index}="{device.index}",{spelling.type}="{escaped(device.model)}"}}'
    )


def _card_columns(cards: Sequence[CardUse]) -> Iterator[Sequence[float | None]]:
    """The values of `Spelling.cards`: column by column, for a page has 40,000 rows."""
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


def _share_labels(share: Share, names: tuple[str, str, str, str, str]) -> str:
    (pod, node, _), index, grant, _ = share
    namespace, on, name, of, uuid = names
    return (
        f'{{{ZONE},{namespace}="{escaped(pod.namespace)}",{on}="{escaped(node)}",'
        f'{name}="{escaped(pod.name)}",{of}="{index}",{uuid}="{escaped(grant.uuid)}"}}'
    )


def _quotas(use: ClusterUse, resources: tuple[str, str], spelling: Spelling) -> Iterator[str]:
    in_namespace, of = spelling.quota
    rows = [
        (f'{ZONE},{in_namespace}="{escaped(namespace)}",{of}="{name}"', used, limit)
        for namespace, quota in use.quotas.items()
        for name, used, limit in _of_quota(quota, resources)
    ]
    used_labels = [f'{{{labels},limit="{limit or 0}"}}' for labels, _, limit in rows]
    yield from family(spelling.quota_used, used_labels, [used for _, used, _ in rows])
    if spelling.quota_limit is not None:
        limit_labels = [f"{{{labels}}}" for labels, _, _ in rows]
        yield from family(spelling.quota_limit, limit_labels, [limit for _, _, limit in rows])


def _of_quota(quota: Quota, resources: tuple[str, str]) -> Iterator[tuple[str, int, int | None]]:
    memory, cores = resources
    yield memory, quota.memory_used_mib, quota.memory_limit_mib
    yield cores, quota.cores_used, quota.core_limit
