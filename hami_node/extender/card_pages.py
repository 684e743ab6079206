"""The cards of all nodes as the metrics page of the replica that decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from hami_node.config.settings import MetricNames
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.metrics.cluster import own_series
from hami_node.metrics.hami import hami_series
from hami_node.metrics.server import CardPages


def card_pages(
    state: ClusterState,
    names: MetricNames,
    is_leading: Callable[[], bool],
    *,
    has_legacy: bool = False,
) -> CardPages:
    """Writes the series of some or all nodes; nothing on a replica that waits.

    Every replica sees the same cards: sums over all replicas are to count each card once.

    Args:
        state: the cluster.
        names: under which names the cards are shown.
        is_leading: whether this replica decides.
        has_legacy: HAMi's names from before 2.9 are shown, too.
    """
    limited = state.rules.limited
    resources = ("", "") if limited is None else (limited.memory, limited.cores)
    vendors = state.rules.vendors
    parts = {vendor.part_metric: vendor.part_labels for vendor in vendors if vendor.part_metric}
    old_parts = {
        vendor.legacy_part_metric: partial(vendor.part_labels, is_legacy=True)
        for vendor in vendors
        if vendor.legacy_part_metric
    }

    def pages(nodes: Collection[str] | None) -> Iterator[str]:
        if not is_leading() or (names is MetricNames.OFF and not has_legacy):
            return
        use = state.in_use(nodes)
        if names in (MetricNames.OWN, MetricNames.BOTH):
            yield from own_series(use)
        if names in (MetricNames.HAMI, MetricNames.BOTH):
            yield from hami_series(use, resources, parts)
        if has_legacy:
            yield from hami_series(use, resources, old_parts, is_legacy=True)

    return pages
