"""Families of series: those that are counted, and those that a scrape makes of what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hami_node.metrics.cluster_use import MAX_LABEL_CHARS

MAX_SETS: Final = 500
"""Different sets of labels of one counter. Counters never forget, so there has to be an end."""
OTHER: Final = "other"
"""The labels of all that is counted beyond them."""
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of histograms. Budgets: Allocate without API time p99 0.005, a filter 0.03."""

T = TypeVar("T")
Row = tuple[Sequence[str], float | None]
"""The labels of a series and its value; None is no series."""
Columns = Iterable[tuple[str, str, Callable[[T], float | None]]]
"""Families over the same labels: their name, their meaning, and the value of one item."""


def gauge(name: str, doc: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """A gauge; of rows with the same labels the last one counts, or the whole page would fail."""
    family = GaugeMetricFamily(name, doc, labels=labels)
    known = {tuple(values): value for values, value in rows if value is not None}
    for values, value in known.items():
        family.add_metric(values, value)
    return family


def gauges(
    columns: Columns[T],
    labels: Sequence[str],
    items: Iterable[tuple[Sequence[str], T]],
    prefix: str = "",
) -> Iterator[Metric]:
    """A gauge for each column, with a series for each item that has such a value."""
    rows = tuple(items)
    for name, doc, value_of in columns:
        values = ((labels_of, value_of(item)) for labels_of, item in rows)
        yield gauge(prefix + name, doc, labels, values)


def counter(
    name: str, doc: str, labels: Sequence[str], counts: Iterable[tuple[tuple[str, ...], int]]
) -> Metric:
    """A counter that somebody else keeps."""
    family = CounterMetricFamily(name, doc, labels=labels)
    for values, count in counts:
        family.add_metric(values, count)
    return family


def bounded(counts: Iterable[tuple[tuple[str, ...], int]]) -> dict[tuple[str, ...], int]:
    """`MAX_SETS` of them, and all that is beyond as `other`."""
    sums: dict[tuple[str, ...], int] = {}
    for labels, count in counts:
        is_one_more = labels not in sums and len(sums) >= MAX_SETS
        key = (OTHER,) * len(labels) if is_one_more else labels
        sums[key] = sums.get(key, 0) + count
    return sums


def short(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels of a length that Prometheus keeps."""
    return tuple(label[:MAX_LABEL_CHARS] for label in labels)


class BoundedCounter(Collector):
    """A counter that a flood can't multiply; any thread may count."""

    def __init__(self, name: str, doc: str, labels: Sequence[str] = (), node: str = "") -> None:
        """Without labels it is zero from the start, so that an alert on its increase works.

        `node` is the value of the first label, if there is one.
        """
        self._fixed = (node,) if node else ()
        names = ("node", *labels) if node else tuple(labels)
        self._counter = Counter(name, doc, names, registry=None)
        self._children: dict[tuple[str, ...], Counter] = {}
        if not labels:
            self._child(())

    def count(self, *labels: object) -> None:
        """Count one more."""
        known = short(map(str, labels))
        (self._children.get(known) or self._child(known)).inc()

    def _child(self, labels: tuple[str, ...]) -> Counter:
        if len(self._children) >= MAX_SETS:
            labels = (OTHER,) * len(labels)
        values = (*self._fixed, *labels)
        child = self._counter.labels(*values) if values else self._counter
        self._children[labels] = child
        return child

    def collect(self) -> Iterable[Metric]:
        """One family."""
        return self._counter.collect()


class Counted(Collector):
    """What a process counts, as opposed to what a scrape reads of its state. Any thread may count.

    Attributes:
        node: the first label of every series; "" where they have none.
    """

    def __init__(self, prefix: str, node: str = "") -> None:
        """Count nothing yet. All names begin with the prefix."""
        self._prefix, self.node = prefix, node
        self.counted: list[Collector] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def counter(self, name: str, doc: str, *labels: str) -> BoundedCounter:
        """One more counter."""
        made = BoundedCounter(self._prefix + name, doc, labels, self.node)
        self.counted.append(made)
        return made

    def histogram(self, name: str, doc: str, *labels: str) -> Histogram:
        """One more histogram of times."""
        made = Histogram(self._prefix + name, doc, labels, buckets=BUCKETS_S, registry=None)
        self.counted.append(made)
        return made
