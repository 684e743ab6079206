"""The cards of all nodes as the metrics page of the replica that decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from hami_node.config.settings import MetricNames
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.metrics.cluster import own_series
from hami_node.metrics.hami import hami_series
from hami_node.metrics.server import CardPages


def card_pages(
    state: ClusterState, names: MetricNames, is_leading: Callable[[], bool]
) -> CardPages:
    """Writes the series of some or all nodes; nothing on a replica that waits.

    Every replica sees the same cards: sums over all replicas are to count each card once.
    """
    limited = state.rules.limited
    resources = ("", "") if limited is None else (limited.memory, limited.cores)
    vendors = state.rules.vendors
    parts = {vendor.part_metric: vendor.part_labels for vendor in vendors if vendor.part_metric}

    def pages(nodes: Collection[str] | None) -> Iterator[str]:
        if names is MetricNames.OFF or not is_leading():
            return
        use = state.in_use(nodes)
        if names in (MetricNames.OWN, MetricNames.BOTH):
            yield from own_series(use)
        if names in (MetricNames.HAMI, MetricNames.BOTH):
            yield from hami_series(use, resources, parts)

    return pages
