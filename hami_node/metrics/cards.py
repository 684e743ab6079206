"""The metrics of cards and of the containers that hold them, built from scratch at each scrape.

Their series come and go with cards and containers, so only the readings are kept between two
scrapes. Each set of readings is replaced as a whole: a scrape never sees half of a set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_node.engine.usage import counting_of
from hami_node.model import Device, Grant

MIB: Final = 1024 * 1024
MAX_LABEL_CHARS: Final = 120
MAX_SHARES: Final = 128
"""Shares of one pod that are shown: 16 cards by 8 containers. Its annotations can claim more."""
CARD_LABELS: Final = ("node", "uuid", "index", "type")
HOLDER_LABELS: Final = ("node", "namespace", "pod", "container", "uuid")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """A card as offered, and what is granted on it. `physical_memory_mib` is None when unknown.

    `cores_granted` is in percent of the card, or the mask of the cores taken.
    """

    card: Device
    physical_memory_mib: int | None = None
    slots_used: int = 0
    memory_granted_mib: int = 0
    cores_granted: int = 0

    def cores_ratio(self, cores: int) -> float | None:
        """Cores of this card as a share of the whole card; None for a card without cores."""
        counting = counting_of(self.card.vendor)
        return _ratio(counting.core_count(cores), counting.whole_card(self.card))

    def numbered_cores(self) -> Iterator[tuple[int, bool]]:
        """Each core that is granted by its number, and whether it is granted."""
        if counting_of(self.card.vendor).cores_are_mask:
            yield from numbered_cores(self.card.cores, self.cores_granted)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationReading:
    """A slice that a container holds on a card.

    `whole_card` is the number of cores that make a whole card, where percent count as cores; 0 when
    it is unknown.
    """

    namespace: str
    pod: str
    container: str
    uuid: str
    memory_mib: int
    cores: int
    whole_card: int = 100


def numbered_cores(cores: int, granted: int) -> Iterator[tuple[int, bool]]:
    """Each core of a mask, and whether it is granted."""
    for core in range(cores.bit_length()):
        if cores >> core & 1:
            yield core, bool(granted >> core & 1)


def held_mib(grant: Grant, card: Device | None) -> int:
    """The memory of a grant; without an amount that is all of the card's, 0 if it is gone."""
    return grant.memory_mib or (card.memory_mib if card else 0)


def _ratio(cores: int, whole_card: int) -> float | None:
    return cores / whole_card if whole_card else None


class LimiterReading(NamedTuple):
    """The version of what limits a container."""

    namespace: str
    pod: str
    container: str
    version: str


class CardCollector(Collector):
    """The series of every card and holder, from the current readings."""

    def __init__(self, node: str) -> None:
        """Start without cards and holders."""
        self._node = node
        self.cards: tuple[CardReading, ...] = ()
        self.held: tuple[AllocationReading, ...] = ()
        self.limited: tuple[LimiterReading, ...] = ()

    def collect(self) -> Iterator[Metric]:
        """All families; those without cards or holders are empty."""
        yield from _card_families(self._node, self.cards)
        yield from _held_families(self._node, self.held)
        doc = "1 for each container that is limited, with the version that it was given."
        limiters = _family("container_limiter_info", doc, "node", *LimiterReading._fields)
        for row in self.limited:
            limiters.add_metric((self._node, *row[:3], row.version[:MAX_LABEL_CHARS]), 1)
        yield limiters


def _family(name: str, doc: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"hami_node_{name}", doc, labels=labels)


_VALUES: Final[tuple[tuple[str, str, Callable[[CardReading], float | None]], ...]] = (
    (
        "card_healthy",
        "1 when the card can be used, else 0.",
        lambda reading: reading.card.healthy,
    ),
    (
        "card_slots",
        "Containers that may share the card.",
        lambda reading: reading.card.slots,
    ),
    (
        "card_slots_used",
        "Containers that share the card now.",
        lambda reading: reading.slots_used,
    ),
    (
        "card_memory_physical_bytes",
        "Real memory of the card.",
        lambda reading: _bytes(reading.physical_memory_mib),
    ),
    (
        "card_memory_bytes",
        "Memory offered on the card, scaling included.",
        lambda reading: _bytes(reading.card.memory_mib),
    ),
    (
        "card_memory_granted_bytes",
        "Memory granted to containers on the card.",
        lambda reading: _bytes(reading.memory_granted_mib),
    ),
    (
        "card_cores_ratio",
        "Cores offered on the card, scaling included; 1 is one card.",
        lambda reading: reading.cores_ratio(reading.card.cores),
    ),
    (
        "card_cores_granted_ratio",
        "Cores granted to containers on the card; 1 is one card.",
        lambda reading: reading.cores_ratio(reading.cores_granted),
    ),
)
"""Name, help and value of each card's gauges; a card without a value has no such series."""


def _bytes(mib: int | None) -> float | None:
    return None if mib is None else mib * MIB


def _card_families(node: str, readings: tuple[CardReading, ...]) -> Iterator[Metric]:
    cards = {_labels(node, reading.card): reading for reading in readings}
    facts = ("vendor", "mode", "numa", "pci_bus")
    info = _family("card_info", "1 for each card, with its facts.", *CARD_LABELS, *facts)
    doc = "1 while the card can not be used, with the reason."
    unhealthy = _family("card_unhealthy", doc, *CARD_LABELS, "reason")
    for labels, reading in cards.items():
        card = reading.card
        numa = "" if card.numa is None else str(card.numa)
        info.add_metric((*labels, str(card.vendor), card.mode, numa, card.pci_bus), 1)
        if not card.healthy:
            reason = (card.unhealthy_reason or "unknown")[:MAX_LABEL_CHARS]
            unhealthy.add_metric((*labels, reason), 1)
    yield from (info, unhealthy)
    for name, doc, value_of in _VALUES:
        family = _family(name, doc, *CARD_LABELS)
        for labels, reading in cards.items():
            value = value_of(reading)
            if value is not None:
                family.add_metric(labels, value)
        yield family
    doc = "1 while this core is granted, else 0; of cards whose cores are numbered."
    numbered = _family("card_core_granted", doc, *CARD_LABELS, "core")
    for labels, reading in cards.items():
        for core, is_granted in reading.numbered_cores():
            numbered.add_metric((*labels, str(core)), is_granted)
    yield numbered


def _labels(node: str, card: Device) -> tuple[str, ...]:
    return (node, str(card.uuid), str(card.index), card.model)


def _held_families(node: str, readings: tuple[AllocationReading, ...]) -> Iterator[Metric]:
    memory = _family(
        "allocation_memory_bytes", "Memory that a container holds on a card.", *HOLDER_LABELS
    )
    cores = _family(
        "allocation_cores_ratio",
        "Cores that a container holds on a card; 1 is one card.",
        *HOLDER_LABELS,
    )
    sums: dict[tuple[str, ...], tuple[float, float | None]] = {}
    shares = Counter[tuple[str, str]]()
    for held in readings:
        holder = (node, held.namespace, held.pod, held.container, held.uuid)
        if holder not in sums:
            shares[held.namespace, held.pod] += 1
        if shares[held.namespace, held.pod] > MAX_SHARES or len(held.uuid) > MAX_LABEL_CHARS:
            continue
        memory_bytes, known = sums.get(holder, (0.0, 0.0))
        share = _ratio(held.cores, held.whole_card)
        total = None if known is None or share is None else known + share
        sums[holder] = (memory_bytes + held.memory_mib * MIB, total)
    for labels, (memory_bytes, cores_ratio) in sums.items():
        memory.add_metric(labels, memory_bytes)
        if cores_ratio is not None:
            cores.add_metric(labels, cores_ratio)
    yield from (memory, cores)
