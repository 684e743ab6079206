"""What a scrape of all nodes' cards costs the extender with 5,000 nodes and 20,000 pods."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from hami_node.config.settings import MetricNames, make_settings
from hami_node.extender.card_pages import card_pages
from hami_node.extender.rules import rules_of
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS
from hami_node.wire.objects import decode_node, decode_pod
from tests.bench.engine_load import CARDS, node_name
from tests.bench.extender_cluster import node_object, placed_pods
from tests.fakes.clock import FakeClock

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

NODES, PODS, RUNS = 5_000, 20_000, 7
TIME_LIMIT_MS, MEMORY_LIMIT_MIB = 300, 30
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def state() -> Iterator[ClusterState]:
    clock = FakeClock()
    made = ClusterState(rules_of(make_settings({}, SETTINGS_BLOCKS), VENDORS), clock)
    for number in range(NODES):
        made.node_changed(None, decode_node(node_object(number)))
    for pod in placed_pods(NODES, PODS):
        made.pod_changed(None, decode_pod(pod))
    made.catch_up()
    gc.collect()
    gc.freeze()  # as the extender does once it has listed everything
    yield made
    gc.unfreeze()


def _size(page: Iterator[str]) -> tuple[int, int]:
    """(lines, bytes) of a page, of which nothing is kept."""
    lines = size = 0
    for text in page:
        lines += text.count("\n")
        size += len(text.encode())
    return lines, size


@pytest.mark.parametrize(
    ("names", "has_legacy"),
    [(MetricNames.OWN, False), (MetricNames.HAMI, False), (MetricNames.OFF, True)],
)
def test_scrape_of_all_nodes(state: ClusterState, names: MetricNames, *, has_legacy: bool) -> None:
    pages, took_ms = card_pages(state, names, lambda: True, has_legacy=has_legacy), []
    for _ in range(RUNS):
        start_s = time.perf_counter()
        lines, size = _size(pages(None))
        took_ms.append((time.perf_counter() - start_s) * 1000)
    tracemalloc.start()
    _size(pages(None))
    peak_mib = tracemalloc.get_traced_memory()[1] / MIB
    tracemalloc.stop()
    start_s = time.perf_counter()
    state.in_use()
    locked_ms = (time.perf_counter() - start_s) * 1000
    start_s = time.perf_counter()
    of_one = _size(pages([node_name(1)]))
    one_ms = (time.perf_counter() - start_s) * 1000
    shown = "legacy" if has_legacy else names
    print(f"\n{shown}: {NODES:,} nodes x {CARDS} cards, {PODS:,} pods: {lines:,} lines, ", end="")
    print(f"{size / MIB:.1f} MiB, best {min(took_ms):.0f} ms, median {sorted(took_ms)[3]:.0f} ms ")
    print(f"  (budget {TIME_LIMIT_MS}), {peak_mib:.1f} MiB more memory (budget ", end="")
    print(
        f"{MEMORY_LIMIT_MIB}); decisions wait {locked_ms:.0f} ms; one node: {of_one[0]} lines ",
        end="",
    )
    print(f"in {one_ms:.1f} ms")
    assert peak_mib < MEMORY_LIMIT_MIB
