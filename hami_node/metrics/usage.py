"""What containers and everybody use of cards, under our names and those of HAMi's monitor.

Built from the last readings at each scrape, so that the series of an ended container disappear.
HAMi's names, labels and units are those of its version 2.10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_node.config.settings import MetricNames
from hami_node.metrics.cards import CARD_LABELS, CardReading
from hami_node.metrics.legacy import age_s, legacy_hosts, legacy_uses
from hami_node.model import Device, Uuid
from hami_node.ports import Clock, ContainerUse, HostUse, UnreadUse

_USE_LABELS: Final = ("node", "namespace", "pod", "container", "uuid", "index", "part")
"""`part` is left out of the series of whole cards."""
_UNREAD_LABELS: Final = ("node", "namespace", "pod", "container", "reason")
_HAMI_USE_LABELS: Final = (
    *("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid"),
)
_HAMI_CARD_LABELS: Final = ("zone", "device_index", "device_uuid", "device_type")
_ZONE: Final = "vGPU"


@dataclass(frozen=True, slots=True)
class UsageReadings:
    """What one pass found, and under which names it is shown.

    `has_legacy`: HAMi's names from before 2.9 are among them.
    """

    containers: Sequence[ContainerUse] = ()
    unread: Sequence[UnreadUse] = ()
    hosts: Sequence[tuple[Device, HostUse]] = ()
    names: MetricNames = MetricNames.OWN
    has_legacy: bool = False


class UsageCollector(Collector):
    """The series of the current readings, which are replaced as a whole."""

    def __init__(self, node: str, clock: Clock, cards: Callable[[], Iterable[CardReading]]) -> None:
        """`cards` returns the cards as the node object shows them."""
        self._node, self._clock, self._cards = node, clock, cards
        self.readings = UsageReadings()

    def collect(self) -> Iterator[Metric]:
        """All families of the names that are wanted."""
        readings = self.readings
        if readings.names in (MetricNames.OWN, MetricNames.BOTH):
            yield from self._own(readings)
        if readings.names in (MetricNames.HAMI, MetricNames.BOTH):
            yield from self._hami(readings)
        if readings.has_legacy:
            yield from legacy_uses(readings.containers, self._clock.now())
            yield from legacy_hosts(readings.hosts, self._node)

    def _own(self, readings: UsageReadings) -> Iterator[Metric]:
        now_s = self._clock.now()
        for name, doc, value_of in _OWN_USES:
            family = GaugeMetricFamily(f"hami_node_container_{name}", doc, labels=_USE_LABELS)
            for use in readings.containers:
                value = value_of(use, now_s)
                if value is not None:
                    family.add_metric(_use_labels(self._node, use), value)
            yield family
        doc = "1 while what the container uses can't be read, with the reason."
        unread = GaugeMetricFamily(
            "hami_node_container_usage_unreadable", doc, labels=_UNREAD_LABELS
        )
        for lost in readings.unread:
            whose = (self._node, lost.namespace, lost.pod, lost.container)
            unread.add_metric((*whose, lost.reason), 1)
        yield unread
        shown = {reading.card.uuid: reading.card for reading in self._cards()}
        for name, doc, host_value_of in _OWN_HOSTS:
            family = GaugeMetricFamily(f"hami_node_card_{name}", doc, labels=CARD_LABELS)
            for card, host in readings.hosts:
                value = host_value_of(host)
                if value is not None:
                    family.add_metric(_card_labels(self._node, card, shown), value)
            yield family

    def _hami(self, readings: UsageReadings) -> Iterator[Metric]:
        now_s = self._clock.now()
        for name, doc, value_of in _HAMI_USES:
            family = GaugeMetricFamily(f"hami_{name}", doc, labels=_HAMI_USE_LABELS)
            for use in readings.containers:
                value = value_of(use, now_s)
                if value is not None:
                    family.add_metric(_hami_use_labels(use), value)
            yield family
        for name, doc, has_node, host_value_of in _HAMI_HOSTS:
            labels = (*_HAMI_CARD_LABELS, "node") if has_node else _HAMI_CARD_LABELS
            family = GaugeMetricFamily(f"hami_{name}", doc, labels=labels)
            for card, host in readings.hosts:
                value = host_value_of(host)
                if value is not None:
                    node = (self._node,) if has_node else ()
                    family.add_metric((*_hami_card_labels(card), *node), value)
            yield family


def _use_labels(node: str, use: ContainerUse) -> tuple[str, ...]:
    labels = (node, use.namespace, use.pod, use.container, str(use.uuid), str(use.index))
    return (*labels, use.part) if use.part else labels


def _card_labels(node: str, card: Device, shown: Mapping[Uuid, Device]) -> tuple[str, ...]:
    model = shown.get(card.uuid, card).model
    return (node, str(card.uuid), str(card.index), model)


def _hami_use_labels(use: ContainerUse) -> tuple[str, ...]:
    whose = (use.namespace, use.pod, use.container)
    return (_ZONE, *whose, str(use.position), str(use.uuid))


def _hami_card_labels(card: Device) -> tuple[str, ...]:
    """The monitor puts the vendor before a model that begins with it, too."""
    return (_ZONE, str(card.index), str(card.uuid), f"{card.vendor}-{card.model}")


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


_UseValue = Callable[[ContainerUse, float], float | None]
_HostValue = Callable[[HostUse], float | None]

_OWN_USES: Final[tuple[tuple[str, str, _UseValue], ...]] = (
    (
        "memory_used_bytes",
        "Memory that a container uses of a card, as its limiter counts it; of a part of a divided "
        "card, which the label `part` names then, as the driver says.",
        lambda use, _: use.memory_bytes,
    ),
    (
        "memory_context_bytes",
        "The part of it that contexts use.",
        lambda use, _: use.context_bytes,
    ),
    (
        "memory_module_bytes",
        "The part of it that modules use.",
        lambda use, _: use.module_bytes,
    ),
    (
        "memory_data_bytes",
        "The part of it that buffers use.",
        lambda use, _: use.data_bytes,
    ),
    (
        "memory_limit_bytes",
        "The limit of that memory that is in force in the container; absent without one.",
        lambda use, _: use.limit_bytes,
    ),
    (
        "core_use_ratio",
        "Cores that a container uses of a card; 1 is one card.",
        lambda use, _: _ratio(use.core_percent),
    ),
    (
        "core_limit_ratio",
        "The limit of cores that is in force in the container; absent without one.",
        lambda use, _: _ratio(use.core_limit_percent),
    ),
    (
        "last_kernel_age_seconds",
        "Time since the container last launched a kernel; absent before the first.",
        age_s,
    ),
    (
        "processes",
        "Processes of a container on a part of a divided card, as the driver says.",
        lambda use, _: use.processes,
    ),
)

_OWN_HOSTS: Final[tuple[tuple[str, str, _HostValue], ...]] = (
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

_HAMI_USES: Final[tuple[tuple[str, str, _UseValue], ...]] = (
    ("vgpu_memory_used_bytes", "Memory that a container uses.", lambda use, _: use.memory_bytes),
    (
        "vgpu_memory_limit_bytes",
        "Limit of that memory, 0 for none.",
        lambda use, _: use.limit_bytes or 0,
    ),
    (
        "container_device_memory_bytes",
        "Memory that a container uses.",
        lambda use, _: use.memory_bytes,
    ),
    (
        "container_device_utilization_ratio",
        "Cores that a container uses, percent.",
        lambda use, _: use.core_percent if use.part else use.core_percent or 0,
    ),
    (
        "container_last_kernel_elapsed_seconds",
        "Time since the container last launched a kernel.",
        age_s,
    ),
    (
        "vgpu_memory_context_bytes",
        "Memory that contexts of a container use.",
        lambda use, _: use.context_bytes,
    ),
    (
        "vgpu_memory_module_bytes",
        "Memory that modules of a container use.",
        lambda use, _: use.module_bytes,
    ),
    (
        "vgpu_memory_buffer_bytes",
        "Memory that buffers of a container use.",
        lambda use, _: use.data_bytes,
    ),
)

_HAMI_HOSTS: Final[tuple[tuple[str, str, bool, _HostValue], ...]] = (
    (
        "host_gpu_memory_used_bytes",
        "Memory of the card that anybody uses.",
        True,
        lambda host: host.memory_bytes,
    ),
    (
        "host_gpu_utilization_ratio",
        "Part of the time in which a kernel ran on the card, percent.",
        True,
        lambda host: host.core_percent,
    ),
    (
        "host_gpu_memory_controller_utilization_ratio",
        "Part of the time in which the card's memory was read or written, percent.",
        False,
        lambda host: host.memory_controller_percent,
    ),
)
