"""What containers and everybody use of cards, under our names and those of HAMi's monitor.

HAMi's names, labels and units are those of its version 2.10, and its names from before 2.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client.metrics_core import Metric

from hami_node.config.settings import MetricNames
from hami_node.metrics.cards import CARD_LABELS, PREFIX, card_labels
from hami_node.metrics.families import Columns, T, gauge, gauges
from hami_node.model import Device, Uuid
from hami_node.ports import ContainerUse, HostUse, UnreadUse

ZONE: Final = "vGPU"
DIGITS: Final = 3
"""Binary digits of an amount that is a label."""
Spelled = tuple[str, str]
"""A name of HAMi 2.10, and the one from before 2.9; "" where there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was read last, of containers and of what everybody uses."""

    containers: Sequence[ContainerUse] = ()
    unread: Sequence[UnreadUse] = ()
    hosts: Sequence[tuple[Device, HostUse]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How it is shown.

    Attributes:
        has_legacy: HAMi's names from before 2.9 are among the names.
        models: the types of cards as the node object shows them.
    """

    node: str
    now_s: float
    names: MetricNames = MetricNames.OWN
    has_legacy: bool = False
    models: Mapping[Uuid, str]


def usage_series(usage: Usage, shown: Shown) -> Iterator[Metric]:
    """All families of the names that are wanted."""
    if shown.names in (MetricNames.OWN, MetricNames.BOTH):
        yield from _own(usage, shown)
    if shown.names in (MetricNames.HAMI, MetricNames.BOTH):
        yield from _monitor(usage, shown, is_legacy=False)
    if shown.has_legacy:
        yield from _monitor(usage, shown, is_legacy=True)


# -- ours ------------------------------------------------------------------------------------------
_WHOSE: Final = ("node", "namespace", "pod", "container")
_OWN_LABELS: Final = (*_WHOSE, "uuid", "index", "part")
"""`part` is left out of the series of whole cards."""


def _own(usage: Usage, shown: Shown) -> Iterator[Metric]:
    doc = "Time since the container last launched a kernel; absent before the first."
    age = ("last_kernel_age_seconds", doc, partial(_age_s, now_s=shown.now_s))
    uses = ((_own_labels(shown.node, use), use) for use in usage.containers)
    yield from gauges((*_OWN_USES, age), _OWN_LABELS, uses, PREFIX + "container_")
    doc = "1 while what the container uses can't be read, with the reason."
    lost = (
        ((shown.node, use.namespace, use.pod, use.container, use.reason), 1) for use in usage.unread
    )
    yield gauge(PREFIX + "container_usage_unreadable", doc, (*_WHOSE, "reason"), lost)
    hosts = (
        (card_labels(shown.node, card, shown.models.get(card.uuid, card.model)), host)
        for card, host in usage.hosts
    )
    yield from gauges(_OWN_HOSTS, CARD_LABELS, hosts, PREFIX + "card_")


def _own_labels(node: str, use: ContainerUse) -> tuple[str, ...]:
    labels = (node, use.namespace, use.pod, use.container, str(use.uuid), str(use.index))
    return (*labels, use.part) if use.part else labels


# -- HAMi's ----------------------------------------------------------------------------------------
_USE_LABELS: Final = (
    ("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid"),
    ("zone", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid"),
)
_HOST_LABELS: Final = (
    ("zone", "device_index", "device_uuid", "device_type", "node"),
    ("zone", "deviceidx", "deviceuuid", "devicetype", "nodeid"),
)
_AMOUNTS: Final = ("context", "module", "data", "offset")


def _monitor(usage: Usage, shown: Shown, *, is_legacy: bool) -> Iterator[Metric]:
    kernel = ("hami_container_last_kernel_elapsed_seconds", "Device_last_kernel_of_container")
    doc = "Time since the container last launched a kernel."
    age: _Column[ContainerUse] = (kernel, doc, partial(_age_s, now_s=shown.now_s))
    labels, uses = _USE_LABELS[is_legacy], [(_use_labels(use), use) for use in usage.containers]
    columns = ((name[is_legacy], doc, value) for name, doc, value in (*_HAMI_USES, age))
    yield from gauges(columns, labels, uses)
    if is_legacy:
        doc = "Memory that a container uses; the labels say for what, rounded down."
        amounts = (((*values, *_amounts(use)), use.memory_bytes) for values, use in uses)
        yield gauge("Device_memory_desc_of_container", doc, (*labels, *_AMOUNTS), amounts)
    else:
        doc = "Memory that a container uses."
        used = ((values, use.memory_bytes) for values, use in uses)
        yield gauge("hami_container_device_memory_bytes", doc, labels, used)
    host_labels = _HOST_LABELS[is_legacy]
    hosts = [(_host_labels(card, shown.node), host) for card, host in usage.hosts]
    columns_of_hosts = ((name[is_legacy], doc, value) for name, doc, value in _HAMI_HOSTS)
    yield from gauges(columns_of_hosts, host_labels, hosts)
    if not is_legacy:
        yield from gauges((_HAMI_CONTROLLER,), host_labels[:-1], hosts)


def _use_labels(use: ContainerUse) -> tuple[str, ...]:
    whose = (use.namespace, use.pod, use.container)
    return (ZONE, *whose, str(use.position), str(use.uuid))


def _host_labels(card: Device, node: str) -> tuple[str, ...]:
    """The monitor puts the vendor before a model that begins with it, too."""
    return (ZONE, str(card.index), str(card.uuid), f"{card.vendor}-{card.model}", node)


def _amounts(use: ContainerUse) -> tuple[str, ...]:
    known = [use.context_bytes or 0, use.module_bytes or 0, use.data_bytes or 0]
    rest = max(use.memory_bytes - sum(known), 0)
    return tuple(str(rounded_down(amount)) for amount in (*known, rest))


def rounded_down(amount: int) -> int:
    """The first digits of an amount: one that changes all the time is no new series each time."""
    shift = max(amount.bit_length() - DIGITS, 0)
    return amount >> shift << shift


# -- values ----------------------------------------------------------------------------------------
def _age_s(use: ContainerUse, now_s: float) -> float | None:
    """0 for a launch in the future: a container may write any."""
    return None if use.last_kernel_s is None else max(now_s - use.last_kernel_s, 0.0)


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


_OWN_USES: Final[Columns[ContainerUse]] = (
    (
        "memory_used_bytes",
        "Memory that a container uses of a card, as its limiter counts it; of a part of a divided "
        "card, which the label `part` names then, as the driver says.",
        lambda use: use.memory_bytes,
    ),
    ("memory_context_bytes", "The part of it that contexts use.", lambda use: use.context_bytes),
    ("memory_module_bytes", "The part of it that modules use.", lambda use: use.module_bytes),
    ("memory_data_bytes", "The part of it that buffers use.", lambda use: use.data_bytes),
    (
        "memory_limit_bytes",
        "The limit of that memory that is in force in the container; absent without one.",
        lambda use: use.limit_bytes,
    ),
    (
        "core_use_ratio",
        "Cores that a container uses of a card; 1 is one card.",
        lambda use: _ratio(use.core_percent),
    ),
    (
        "core_limit_ratio",
        "The limit of cores that is in force in the container; absent without one.",
        lambda use: _ratio(use.core_limit_percent),
    ),
    (
        "processes",
        "Processes of a container on a part of a divided card, as the driver says.",
        lambda use: use.processes,
    ),
)
_OWN_HOSTS: Final[Columns[HostUse]] = (
    (
        "memory_used_bytes",
        "Memory of the card that anybody on the node uses, as the driver says.",
        lambda host: host.memory_bytes,
    ),
    (
        "core_use_ratio",
        "Part of the time in which a kernel ran on the card, as the driver says.",
        lambda host: _ratio(host.core_percent),
    ),
    (
        "memory_controller_use_ratio",
        "Part of the time in which the card's memory was read or written, as the driver says.",
        lambda host: _ratio(host.memory_controller_percent),
    ),
)
_Column = tuple[Spelled, str, Callable[[T], float | None]]
_HAMI_USES: Final[tuple[_Column[ContainerUse], ...]] = (
    (
        ("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes"),
        "Memory that a container uses.",
        lambda use: use.memory_bytes,
    ),
    (
        ("hami_vgpu_memory_limit_bytes", "vGPU_device_memory_limit_in_bytes"),
        "Limit of that memory, 0 for none.",
        lambda use: use.limit_bytes or 0,
    ),
    (
        ("hami_container_device_utilization_ratio", "Device_utilization_desc_of_container"),
        "Cores that a container uses, percent.",
        lambda use: use.core_percent if use.part else use.core_percent or 0,
    ),
    (
        ("hami_vgpu_memory_context_bytes", "vGPU_device_memory_context_size_bytes"),
        "Memory that contexts of a container use.",
        lambda use: use.context_bytes,
    ),
    (
        ("hami_vgpu_memory_module_bytes", "vGPU_device_memory_module_size_bytes"),
        "Memory that modules of a container use.",
        lambda use: use.module_bytes,
    ),
    (
        ("hami_vgpu_memory_buffer_bytes", "vGPU_device_memory_buffer_size_bytes"),
        "Memory that buffers of a container use.",
        lambda use: use.data_bytes,
    ),
)
_HAMI_HOSTS: Final[tuple[_Column[HostUse], ...]] = (
    (
        ("hami_host_gpu_memory_used_bytes", "HostGPUMemoryUsage"),
        "Memory of the card that anybody uses.",
        lambda host: host.memory_bytes,
    ),
    (
        ("hami_host_gpu_utilization_ratio", "HostCoreUtilization"),
        "Part of the time in which a kernel ran on the card, percent.",
        lambda host: host.core_percent,
    ),
)
_HAMI_CONTROLLER: Final[tuple[str, str, Callable[[HostUse], float | None]]] = (
    "hami_host_gpu_memory_controller_utilization_ratio",
    "Part of the time in which the card's memory was read or written, percent.",
    lambda host: host.memory_controller_percent,
)
