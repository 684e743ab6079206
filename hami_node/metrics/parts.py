"""Divided cards and their parts, read anew at each scrape: their series come and go with parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_node.config.settings import MetricNames
from hami_node.metrics.cards import MAX_LABEL_CHARS

PREFIX: Final = "hami_node_"
ZONE: Final = "vGPU"


class DividedCardReading(NamedTuple):
    """A card that is divided, or is about to be, under its index.

    `pending` is "" where its mode stays.
    """

    uuid: str
    number: str
    mode: str
    pending: str


class PartReading(NamedTuple):
    """A part of a divided card, and who has it."""

    uuid: str
    part: str
    kind: str
    place: str
    state: str
    namespace: str
    pod: str
    container: str


class PartErrorReading(NamedTuple):
    """Driver errors that a part of a card has had."""

    namespace: str
    pod: str
    container: str
    uuid: str
    part: str
    xid: str
    ignored: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsReadings:
    """All that is shown of divided cards.

    Attributes:
        states: every state that a part may have.
        is_hands_off: this daemon makes and removes no parts now.
        failures: failed calls into the driver, by the function and the reason.
        errors: how often each error occurred.
        infos: the series that HAMi's monitor shows of parts that containers have: name, labels.
        legacy_infos: those under its names from before 2.9; none where they are not wanted.
        names: under which names all of it is shown.
    """

    cards: Sequence[DividedCardReading] = ()
    parts: Sequence[PartReading] = ()
    states: Sequence[str] = ()
    is_hands_off: bool = False
    failures: Mapping[tuple[str, str], int] = field(default_factory=dict)
    errors: Mapping[PartErrorReading, int] = field(default_factory=dict)
    infos: Sequence[tuple[str, Mapping[str, str]]] = ()
    legacy_infos: Sequence[tuple[str, Mapping[str, str]]] = ()
    names: MetricNames = MetricNames.OWN


class PartCollector(Collector):
    """The series of what `read` returns."""

    def __init__(self, node: str) -> None:
        """Show nothing before `read` is set."""
        self._node = node
        self.read: Callable[[], PartsReadings] = PartsReadings

    def collect(self) -> Iterator[Metric]:
        """All families; those without divided cards are empty."""
        readings = self.read()
        yield from self._own(readings)
        if readings.names in (MetricNames.HAMI, MetricNames.BOTH):
            yield from _hami(readings.infos)
        yield from _hami(readings.legacy_infos)

    def _own(self, readings: PartsReadings) -> Iterator[Metric]:
        modes = _gauge(
            "card_mode_info",
            "1 for each card that is divided or about to be, with its mode and the one that it "
            "will have after its next reset, if that is another.",
            *("uuid", "index", "mode", "pending"),
        )
        counts = _gauge("card_parts", "Parts of a divided card by state.", "uuid", "index", "state")
        for card in readings.cards:
            modes.add_metric((self._node, *card), 1)
            of_card = [part.state for part in readings.parts if part.uuid == card.uuid]
            for state in readings.states:
                labels = (self._node, card.uuid, card.number, state)
                counts.add_metric(labels, of_card.count(state))
        yield modes
        yield counts
        yield from self._parts(readings.parts)
        doc = "1 while this daemon makes and removes no parts of divided cards."
        hands_off = _gauge("parts_hands_off", doc)
        if readings.cards:
            hands_off.add_metric((self._node,), readings.is_hands_off)
        yield hands_off
        yield from self._counted(readings)

    def _parts(self, parts: Sequence[PartReading]) -> Iterator[Metric]:
        doc = "1 for each part of a divided card, with its state."
        infos = _gauge("part_info", doc, "uuid", "part", "kind", "place", "state")
        doc = "1 for each part of a divided card that a container has, or had last."
        holders = _gauge(
            "container_part_info", doc, "namespace", "pod", "container", "uuid", "part"
        )
        for part in parts:
            facts = (part.uuid, part.part, part.kind, part.place, part.state)
            infos.add_metric((self._node, *_short(facts)), 1)
            if part.pod:
                whose = (part.namespace, part.pod, part.container, part.uuid, part.part)
                holders.add_metric((self._node, *_short(whose)), 1)
        yield infos
        yield holders

    def _counted(self, readings: PartsReadings) -> Iterator[Metric]:
        doc = "Failed calls into the driver about parts of cards."
        failures = _counter("part_call_failures", doc, "function", "reason")
        for (function, reason), count in readings.failures.items():
            failures.add_metric((self._node, *_short((function, reason))), count)
        yield failures
        doc = (
            "XID errors that the driver blames on a part of a card, and who had it; ignored "
            "errors are harmless. Without a part: nobody known had it."
        )
        errors = _counter("container_part_xid_events", doc, *PartErrorReading._fields)
        for error, count in readings.errors.items():
            errors.add_metric((self._node, *_short(error)), count)
        yield errors


def _hami(infos: Iterable[tuple[str, Mapping[str, str]]]) -> Iterator[Metric]:
    families: dict[str, GaugeMetricFamily] = {}
    for name, labels in infos:
        family = families.get(name)
        if family is None:
            doc = "1 for each part of a divided card that a container has."
            family = GaugeMetricFamily(name, doc, labels=("zone", *labels))
            families[name] = family
        family.add_metric((ZONE, *_short(tuple(labels.values()))), 1)
    yield from families.values()


def _short(labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(label[:MAX_LABEL_CHARS] for label in labels)


def _gauge(name: str, doc: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, doc, labels=("node", *labels))


def _counter(name: str, doc: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, doc, labels=("node", *labels))
