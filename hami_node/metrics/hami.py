"""The same cards and shares under the names of HAMi's scheduler, for dashboards made for it.

Names, labels and units are those of HAMi 2.10, or its names from before 2.9 (`--legacy-metrics`);
the cores of cards whose cores are numbered are the bit mask, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final

from hami_node.engine.quota import Quota
from hami_node.metrics.cluster_use import MIB, CardUse, ClusterUse, Share
from hami_node.metrics.series import Family, escaped, family, table
from hami_node.model import Pod, Uuid

ZONE: Final = 'zone="vGPU"'
PART_DOC: Final = "1 for each part of a divided card that a container holds."

PartLabels = Callable[[Pod], Iterable[Mapping[str, str]]]
"""The parts of divided cards that a pod holds; each names its card in the spelling's label."""

_CARD: Final = (
    ("node", "device_uuid", "device_index", "device_type"),
    ("nodeid", "deviceuuid", "deviceidx", "devicetype"),
)
"""The labels of a card."""
_SHARE: Final = (
    ("namespace", "node", "pod", "container_index", "device_uuid"),
    ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid"),
)
_QUOTA: Final = (("namespace", "quota_name"), ("quotanamespace", "quotaName"))
_CORES: Final = ("device_cores", "devicecores")
_MEMORY: Final = ("device_memory_limit", "devicememorylimit")
"""One more label of what is granted of a card."""

_Names = tuple[tuple[str, str, str], ...]
"""A name of HAMi 2.10, the one from before 2.9, and the meaning."""
_CARDS: Final[_Names] = (
    ("hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit", "Memory offered on the card."),
    (
        "hami_gpu_core_limit_ratio",
        "GPUDeviceCoreLimit",
        "Cores offered on the card, percent or bit mask.",
    ),
    ("hami_gpu_shared_count", "GPUDeviceSharedNum", "Containers that share the card."),
    (
        "hami_gpu_core_allocated_ratio",
        "GPUDeviceCoreAllocated",
        "Cores granted on the card, percent or bit mask.",
    ),
    (
        "hami_node_gpu_memory_allocated_ratio",
        "nodeGPUMemoryPercentage",
        "Memory granted, as a share of what is offered.",
    ),
)
_GRANTED: Final[_Names] = (
    ("hami_gpu_memory_allocated_bytes", "GPUDeviceMemoryAllocated", "Memory granted on the card."),
    ("hami_node_gpu_overview", "nodeGPUOverview", "Memory granted on the card."),
)
_SHARES: Final[_Names] = (
    (
        "hami_vgpu_memory_allocated_bytes",
        "vGPUMemoryAllocated",
        "Memory that a container holds on a card.",
    ),
    (
        "hami_vgpu_core_allocated_ratio",
        "vGPUCoreAllocated",
        "Cores that a container holds on a card, percent or bit mask.",
    ),
)
_BEFORE_2_8: Final = (
    Family("vGPUPodsDeviceAllocated", "Memory that a container holds on a card."),
    Family("vGPUMemoryPercentage", "Memory that a container holds, as a share of the card's."),
    Family("vGPUCorePercentage", "Cores that a container holds on a card, percent or bit mask."),
)
"""Of a share, besides those of before 2.9; HAMi itself dropped them in 2.8."""
_QUOTA_USED: Final = ("hami_resource_quota_used", "QuotaUsed")


def _spelled(names: _Names, *, is_legacy: bool) -> list[Family]:
    return [Family(name[is_legacy], name[2]) for name in names]


def hami_series(
    use: ClusterUse,
    resources: tuple[str, str],
    parts: Mapping[str, PartLabels],
    *,
    is_legacy: bool = False,
) -> Iterator[str]:
    """All cards, shares, parts and quotas, some lines at a time.

    Args:
        use: the cluster.
        resources: memory and cores that quotas limit.
        parts: the metrics of parts of divided cards.
        is_legacy: under the names from before 2.9.
    """
    yield from _cards(list(use.cards()), is_legacy=is_legacy)
    yield from _shares(list(use.shares()), is_legacy=is_legacy)
    for name, labels_of in parts.items():
        labels = list(dict.fromkeys(_of_parts(use, labels_of, _CARD[is_legacy])))
        yield from family(Family(name, PART_DOC), labels, repeat(1, len(labels)))
    yield from _quotas(use, resources, is_legacy=is_legacy)


def _cards(cards: Sequence[CardUse], *, is_legacy: bool) -> Iterator[str]:
    node, uuid, index, model = _CARD[is_legacy]
    labels = [
        f'{{{ZONE},{node}="{escaped(name)}",{uuid}="{escaped(use.device.uuid)}",'
        f'{index}="{use.device.index}",{model}="{escaped(use.device.model)}"}}'
        for name, use, _ in cards
    ]
    yield from table(_spelled(_CARDS, is_legacy=is_legacy), labels, _card_columns(cards))
    granted = [used.memory_used_mib * MIB for _, used, _ in cards]
    with_cores, with_memory = _spelled(_GRANTED, is_legacy=is_legacy)
    labels = [
        f'{label[:-1]},{_CORES[is_legacy]}="{used.device.cores}"}}'
        for label, (_, used, _) in zip(labels, cards, strict=True)
    ]
    yield from family(with_cores, labels, granted)
    labels = [
        f'{label[:-1]},{_MEMORY[is_legacy]}="{used.device.memory_mib}"}}'
        for label, (_, used, _) in zip(labels, cards, strict=True)
    ]
    yield from family(with_memory, labels, granted)


def _shares(shares: Sequence[Share], *, is_legacy: bool) -> Iterator[str]:
    labels = [_share_labels(share, _SHARE[is_legacy]) for share in shares]
    held = [grant.memory_mib * MIB for _, _, grant, _ in shares]
    cores = [grant.cores for _, _, grant, _ in shares]
    yield from table(_spelled(_SHARES, is_legacy=is_legacy), labels, (held, cores))
    if is_legacy:
        of_card = [
            grant.memory_mib / card.memory_mib if card is not None and card.memory_mib else None
            for _, _, grant, card in shares
        ]
        with_cores = [
            f'{label[:-1]},deviceusedcore="{used}"}}'
            for label, used in zip(labels, cores, strict=True)
        ]
        yield from family(_BEFORE_2_8[0], with_cores, held)
        yield from table(_BEFORE_2_8[1:], labels, (of_card, cores))


def _of_parts(
    use: ClusterUse, labels_of: PartLabels, spelled: tuple[str, str, str, str]
) -> Iterator[str]:
    on, uuid, number, _ = spelled
    for pod, node, _ in use.pods:
        for part in labels_of(pod):
            card = use.offered.get(node, {}).get(Uuid(part[uuid]))
            index = "" if card is None else str(card.device.index)
            labels = {on: node, number: index, **part}
            shown = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
            yield f"{{{ZONE},{shown}}}"


def _card_columns(cards: Sequence[CardUse]) -> Iterator[Sequence[float | None]]:
    """The values of `_CARDS`: column by column, for a page has 40,000 rows."""
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


def _quotas(use: ClusterUse, resources: tuple[str, str], *, is_legacy: bool) -> Iterator[str]:
    in_namespace, of = _QUOTA[is_legacy]
    rows = [
        (f'{ZONE},{in_namespace}="{escaped(namespace)}",{of}="{name}"', used, limit)
        for namespace, quota in use.quotas.items()
        for name, used, limit in _of_quota(quota, resources)
    ]
    used_labels = [f'{{{labels},limit="{limit or 0}"}}' for labels, _, limit in rows]
    used = Family(_QUOTA_USED[is_legacy], "What the pods of a namespace hold.")
    yield from family(used, used_labels, [used for _, used, _ in rows])
    if not is_legacy:  # there it is a label alone
        may = Family("hami_resource_quota_limit", "What the pods of a namespace may hold.")
        limit_labels = [f"{{{labels}}}" for labels, _, _ in rows]
        yield from family(may, limit_labels, [limit for _, _, limit in rows])


def _of_quota(quota: Quota, resources: tuple[str, str]) -> Iterator[tuple[str, int, int | None]]:
    memory, cores = resources
    yield memory, quota.memory_used_mib, quota.memory_limit_mib
    yield cores, quota.cores_used, quota.core_limit
