"""Every series that there can be, from the programs' own registries, with its labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from hami_node.metrics.cluster import own_series
from hami_node.metrics.extender import ExtenderMetrics, ExtenderState
from tests.documents import every_metric, of_one_card

TARGET_LABELS: Final = frozenset({"job", "instance", "namespace", "pod", "container", "endpoint"})
"""What Prometheus adds to each series of a target, unless the series has it."""


def extender_metrics() -> tuple[Metric, ...]:
    """Every family of the extender, after one of all the events that give it a series."""
    metrics = ExtenderMetrics()
    metrics.decisions.count("filter", "reserved")
    metrics.resizes.count("approved")
    metrics.count_request("/filter", 200, 0.01)
    metrics.api_requests.count("patch", "pods", 200)
    metrics.read = lambda: ExtenderState(
        waiting={"CardInsufficientMemory": 1}, backed_off={"plugin-unavailable": 1}
    )
    return tuple(metrics.registry.collect())


def known_series() -> dict[str, frozenset[str]]:
    """The labels of each series by its name."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    cards = text_string_to_metric_families(of_one_card(own_series))
    found: dict[str, frozenset[str]] = {}
    for families in (every_metric(), extender_metrics(), cards, registry.collect()):
        found |= _labels_of(families)
    return found


def _labels_of(families: Iterable[Metric]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for family in families:
        for sample in family.samples:
            labels = frozenset(sample.labels) | found.get(sample.name, frozenset())
            found[sample.name] = labels
    return found
