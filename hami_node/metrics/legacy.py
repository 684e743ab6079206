"""What containers and cards use, under the names that HAMi's monitor had before 2.9."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from hami_node.model import Device
from hami_node.ports import ContainerUse, HostUse

ZONE: Final = "vGPU"
DIGITS: Final = 3
"""Binary digits of an amount that is a label."""
_USE_LABELS: Final = ("zone", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_AMOUNTS: Final = ("context", "module", "data", "offset")
_CARD_LABELS: Final = ("zone", "nodeid", "deviceidx", "deviceuuid", "devicetype")


def legacy_uses(uses: Sequence[ContainerUse], now_s: float) -> Iterator[Metric]:
    """What containers use."""
    for name, doc, value_of in _USES:
        family = GaugeMetricFamily(name, doc, labels=_USE_LABELS)
        for use in uses:
            value = value_of(use, now_s)
            if value is not None:
                family.add_metric(_labels(use), value)
        yield family
    doc = "Memory that a container uses; the labels say for what, rounded down."
    described = GaugeMetricFamily(
        "Device_memory_desc_of_container", doc, labels=(*_USE_LABELS, *_AMOUNTS)
    )
    for use in uses:
        described.add_metric((*_labels(use), *_amounts(use)), use.memory_bytes)
    yield described


def legacy_hosts(hosts: Sequence[tuple[Device, HostUse]], node: str) -> Iterator[Metric]:
    """What everybody uses of the cards of this node."""
    for name, doc, value_of in _HOSTS:
        family = GaugeMetricFamily(name, doc, labels=_CARD_LABELS)
        for card, host in hosts:
            value = value_of(host)
            if value is not None:
                whose = (ZONE, node, str(card.index), str(card.uuid))
                family.add_metric((*whose, f"{card.vendor}-{card.model}"), value)
        yield family


def age_s(use: ContainerUse, now_s: float) -> float | None:
    """Time since the last launch; 0 for one in the future: a container may write any."""
    return None if use.last_kernel_s is None else max(now_s - use.last_kernel_s, 0.0)


def _labels(use: ContainerUse) -> tuple[str, ...]:
    whose = (use.namespace, use.pod, use.container)
    return (ZONE, *whose, str(use.position), str(use.uuid))


def _amounts(use: ContainerUse) -> tuple[str, ...]:
    known = [use.context_bytes or 0, use.module_bytes or 0, use.data_bytes or 0]
    rest = max(use.memory_bytes - sum(known), 0)
    return tuple(str(rounded_down(amount)) for amount in (*known, rest))


def rounded_down(amount: int) -> int:
    """The first digits of an amount: one that changes all the time is no new series each time."""
    shift = max(amount.bit_length() - DIGITS, 0)
    return amount >> shift << shift


_UseValue = Callable[[ContainerUse, float], float | None]
_USES: Final[tuple[tuple[str, str, _UseValue], ...]] = (
    (
        "vGPU_device_memory_usage_in_bytes",
        "Memory that a container uses.",
        lambda use, _: use.memory_bytes,
    ),
    (
        "vGPU_device_memory_limit_in_bytes",
        "Limit of that memory, 0 for none.",
        lambda use, _: use.limit_bytes or 0,
    ),
    (
        "Device_utilization_desc_of_container",
        "Cores that a container uses, percent.",
        lambda use, _: use.core_percent if use.part else use.core_percent or 0,
    ),
    (
        "Device_last_kernel_of_container",
        "Time since the container last launched a kernel, seconds.",
        age_s,
    ),
    (
        "vGPU_device_memory_context_size_bytes",
        "Memory that contexts of a container use.",
        lambda use, _: use.context_bytes,
    ),
    (
        "vGPU_device_memory_module_size_bytes",
        "Memory that modules of a container use.",
        lambda use, _: use.module_bytes,
    ),
    (
        "vGPU_device_memory_buffer_size_bytes",
        "Memory that buffers of a container use.",
        lambda use, _: use.data_bytes,
    ),
)
_HOSTS: Final[tuple[tuple[str, str, Callable[[HostUse], float | None]], ...]] = (
    ("HostGPUMemoryUsage", "Memory of the card that anybody uses.", lambda host: host.memory_bytes),
    (
        "HostCoreUtilization",
        "Part of the time in which a kernel ran on the card, percent.",
        lambda host: host.core_percent,
    ),
)
