"""What a decision of the engine costs: p50, p99, memory, and how it grows with the fleet.

Each decision is followed by counting the pod's grants, so every one meets a changed fleet.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from hami_node.engine.compat import V2_10
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import PodRequest, Rules
from hami_node.engine.ranking import BINPACK, SPREAD
from hami_node.model import CardWishes, PodWishes
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.bench.engine_load import loaded_fleet, node_name, request_of, with_wishes

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

DECISIONS = 400
NOWHERE_MIB = 90_000

Requests = Callable[[random.Random, int], PodRequest]


def plain(draw: random.Random, _: int) -> PodRequest:
    return request_of(draw)


def wished(draw: random.Random, nodes: int) -> PodRequest:
    return request_of(draw, with_wishes(draw, nodes))


def typed(draw: random.Random, _: int) -> PodRequest:
    wishes = PodWishes(cards=((NVIDIA, CardWishes(use_types=("l40",))),))
    return request_of(draw, wishes)


def nowhere(draw: random.Random, _: int) -> PodRequest:
    return request_of(draw, memory_mib=NOWHERE_MIB)


CASES: list[tuple[str, str, Requests]] = [
    ("binpack", BINPACK, plain),
    ("spread", SPREAD, plain),
    ("type wish, binpack", BINPACK, typed),
    ("type and UUID wishes", BINPACK, wished),
    ("fits nowhere", BINPACK, nowhere),
]


def _decide(fleet: Fleet, nodes: int, requests: Requests) -> list[float]:
    draw = random.Random(7)
    names = [node_name(number) for number in range(nodes)]
    took = []
    for number in range(DECISIONS):
        request = requests(draw, nodes)
        start = time.perf_counter()
        answer = fleet.place(request, names)
        if isinstance(answer, Placed):
            fleet.add_pod(f"new-{number}", request.namespace, answer.node, answer.grants)
        took.append((time.perf_counter() - start) * 1000)
    for number in range(DECISIONS):
        fleet.remove_pod(f"new-{number}")
    return took


def _line(name: str, took: list[float]) -> str:
    ordered = sorted(took)
    p99 = ordered[int(len(ordered) * 0.99)]
    return f"{name:34} {statistics.median(took):9.3f} {p99:9.3f}"


def _fleets(nodes: int, pods: int) -> Iterator[tuple[str, Fleet]]:
    for policy in (BINPACK, SPREAD):
        yield policy, loaded_fleet(nodes, pods, Rules(compat=V2_10, node_policy=policy))


def _settle(*fleets: Fleet) -> None:
    """Sum everything up once, and keep what was loaded out of the garbage collector's sight.

    A long-running process does the same after its first list; without it a full collection
    stops the process for as long as 100,000 pods take to walk.
    """
    for fleet in fleets:
        fleet.place(request_of(random.Random(3)))
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("pods", [20_000, 100_000])
def test_decisions_over_5000_nodes(pods: int) -> None:
    nodes = 5_000
    fleets = dict(_fleets(nodes, pods))
    _settle(*fleets.values())
    print(f"\n5,000 nodes x 8 cards, {pods:,} pods, ms per decision         p50       p99")
    for name, policy, requests in CASES:
        fleet = fleets[policy]
        print(_line(name, _decide(fleet, nodes, requests)))
    print(_line("reasons of every node (nowhere)", _explain(fleets[BINPACK], nodes, nowhere)))
    again = _explain(fleets[BINPACK], nodes, nowhere, is_same_pod=True)
    print(_line("the same pod again", again))
    print(_line("reasons of every node (wishes)", _explain(fleets[BINPACK], nodes, wished)))


def _explain(
    fleet: Fleet, nodes: int, requests: Requests, *, is_same_pod: bool = False
) -> list[float]:
    draw = random.Random(9)
    names = [node_name(number) for number in range(nodes)]
    took = []
    request = requests(draw, nodes)
    for _ in range(40):
        if not is_same_pod:
            request = requests(draw, nodes)
        start = time.perf_counter()
        reasons = fleet.explain(request, names)
        took.append((time.perf_counter() - start) * 1000)
        assert isinstance(reasons, dict)
        assert reasons
    return took


def test_memory_of_5000_nodes() -> None:
    for pods in (20_000, 100_000):
        gc.collect()
        tracemalloc.start()
        fleet = loaded_fleet(5_000, pods, Rules(compat=V2_10))
        assert not isinstance(fleet.place(request_of(random.Random(3))), NoNode)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(
            f"\n5,000 nodes x 8 cards, {pods:,} pods: {held / 2**20:.0f} MiB "
            f"(peak {peak / 2**20:.0f} MiB)"
        )


def test_growth_with_nodes() -> None:
    print("\nms per decision, 4 pods per node")
    print(f"{'nodes':>8} {'binpack p50':>12} {'p99':>8} {'nowhere p50':>12} {'reasons p50':>12}")
    for nodes in (500, 1_000, 5_000, 20_000):
        fleet = loaded_fleet(nodes, 4 * nodes, Rules(compat=V2_10))
        _settle(fleet)
        took = sorted(_decide(fleet, nodes, plain))
        lost = statistics.median(_decide(fleet, nodes, nowhere))
        why = statistics.median(_explain(fleet, nodes, nowhere))
        p99 = took[int(len(took) * 0.99)]
        print(f"{nodes:8} {statistics.median(took):12.3f} {p99:8.3f} {lost:12.3f} {why:12.3f}")
