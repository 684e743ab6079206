"""Requests that cost most: first and repeated attempts, at 5,000 nodes and at 20,000.

Every attempt meets a fleet that has changed on one node since the last, and is all that /filter
does but for HTTP and JSON: the decision in its slices and the reasons in words.
"""

from __future__ import annotations

import os
import platform
import random
import resource
import statistics
import time
from collections.abc import Callable

import pytest

from hami_node.engine.fleet.fleet import Fleet, NoNode
from hami_node.engine.place import ContainerAsks, PodRequest
from hami_node.engine.usage import PodGrants
from hami_node.extender.memory import settle
from hami_node.extender.placing import PodPlacer
from hami_node.extender.rules import rules_of
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.decisions import Busy, Reserved
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.model import Ask, CardWishes, ContainerKind, Grant, Pod, PodWishes
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.registry import VENDORS
from hami_node.wire.objects import decode_node, decode_pod
from tests.bench.engine_load import devices_of, devices_uuid, node_name, request_of
from tests.bench.extender_cluster import node_object, placed_pods
from tests.fakes.clock import RealClock
from tests.fakes.extender_kube import FakeExtenderKube
from tests.fakes.settings import settings

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

ATTEMPTS = 100
KINDS = 60
WHOLE = 100


def machine() -> str:
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} CPUs, Python {platform.python_version()}, load {load:.1f}"


def pod(*asks: tuple[int, int, int], wishes: PodWishes | None = None) -> PodRequest:
    """(cards, MiB, cores) of each container."""
    return PodRequest(
        namespace="team",
        containers=tuple(
            ContainerAsks(
                kind=ContainerKind.APP,
                asks=(Ask(vendor=NVIDIA, count=count, memory_mib=memory_mib, cores=cores),),
            )
            for count, memory_mib, cores in asks
        ),
        wishes=wishes or PodWishes(),
    )


BOUND = PodWishes(cards=((NVIDIA, CardWishes(is_numa_bound=True)),))
LINKED = PodWishes(gpu_policy="topology-aware")

CASES: list[tuple[str, Callable[[int], PodRequest]]] = [
    ("5 whole cards, 4 are idle", lambda n: pod((5, 8000 + n, WHOLE))),
    ("3 + 2 whole cards in two containers", lambda n: pod((3, 8000 + n, WHOLE), (2, 8000, WHOLE))),
    ("4 whole cards of one NUMA node", lambda n: pod((4, 8000 + n, WHOLE), wishes=BOUND)),
    (
        "3 + 2 linked whole cards",
        lambda n: pod((3, 8000 + n, WHOLE), (2, 8000, WHOLE), wishes=LINKED),
    ),
    ("no bound helps: 2 x 30 %, 4 x 71 %", lambda n: pod((2, 4000 + n, 30), (4, 4000, 71))),
    ("no bound helps: a small one, then 4 whole", lambda n: pod((1, 500 + n, 0), (4, 8000, WHOLE))),
    ("4 linked whole cards: fits", lambda n: pod((4, 8000 + n, WHOLE), wishes=LINKED)),
]


def half_full(fleet: Fleet, nodes: int) -> None:
    """Cards 0, 1, 4 and 5 of every node are idle; the nodes are all in different states."""
    draw = random.Random(1)
    for node in range(nodes):
        cards = devices_of(node)
        scores = {
            a.uuid: {b.uuid: draw.randrange(1000) for b in cards if b.index > a.index}
            for a in cards
        }
        fleet.set_node(node_name(node), cards, pair_scores=scores)
        for index in (2, 3, 6, 7):
            uuid = devices_uuid(node, index)
            held = Grant(uuid=uuid, vendor=NVIDIA, memory_mib=5000 + (7 * node) % 3000, cores=100)
            fleet.add_pod(f"{node}-{index}", "x", node_name(node), PodGrants(containers=((held,),)))
    fleet.catch_up()
    settle()


def change(fleet: Fleet, draw: random.Random, nodes: int, number: int) -> None:
    node = draw.randrange(nodes)
    held = Grant(uuid=devices_uuid(node, 2), vendor=NVIDIA, memory_mib=1, cores=0)
    fleet.add_pod(f"c{number % 9}", "x", node_name(node), PodGrants(containers=((held,),)))


class Rig:
    """The extender's state, and what /filter asks of it."""

    def __init__(self, nodes: int) -> None:
        self.state = ClusterState(rules_of(settings(), VENDORS), RealClock())
        self.fleet, self.draw = self.state.books.fleet, random.Random(5)
        self.names = [node_name(number) for number in range(nodes)]
        writer = ReservationWriter(FakeExtenderKube(), RealClock(), self.state.rules.vendors)
        self.placer = PodPlacer(self.state, writer, lambda _namespace, _name: None)

    def attempts(self, requests: list[PodRequest]) -> tuple[list[float], int]:
        """CPU milliseconds of each attempt; how many were put off."""
        took, put_off = [], 0
        for number, request in enumerate(requests):
            change(self.fleet, self.draw, len(self.names), number)
            pod = Pod(uid=f"u{number}", namespace="team", name="p")
            start = time.thread_time()
            answer = self.state.reserve(pod, request, self.names)
            if isinstance(answer, NoNode):
                self.placer.why_nowhere(pod, request, self.names, answer)
            took.append((time.thread_time() - start) * 1000)
            put_off += isinstance(answer, Busy)
            if isinstance(answer, Reserved):
                self.state.undo(pod.uid, answer.token)
        return took, put_off


def _quantiles(took: list[float]) -> str:
    ordered = sorted(took)
    return f"{statistics.median(took):8.2f} {ordered[int(len(ordered) * 0.99)]:8.2f}"


def test_worst_cases_over_5000_nodes() -> None:
    rig = Rig(5_000)
    half_full(rig.fleet, 5_000)
    print(f"\n5,000 nodes x 8 cards, decision and reasons, CPU ms; {machine()}")
    print(f"{'':42} {'first: p50':>10} {'p99':>8} {'again: p50':>12} {'p99':>8} {'put off':>9}")
    every = []
    for name, request in CASES:
        first, off = rig.attempts([request(n) for n in range(1, 1 + KINDS)])
        again, later_off = rig.attempts([request(1)] * ATTEMPTS)
        every += first + again
        times = f"{_quantiles(first):>19} {_quantiles(again):>21}"
        print(f"{name:42} {times} {off:4} {later_off:4}")
    nine = [CASES[1][1](100 + n) for n in range(9)]
    rig.attempts(nine)
    again, off = rig.attempts(nine * 11)
    every += again
    print(f"{'nine of the second kind in turn':42} {'':19} {_quantiles(again):>21} {off:9}")
    print(f"{'all together':42} {_quantiles(every):>19}, at most {max(every):.1f}")


def test_20000_nodes_with_200000_pods() -> None:
    nodes, pods = 20_000, 200_000
    start = time.perf_counter()
    rig = Rig(nodes)
    for number in range(nodes):
        rig.state.node_changed(None, decode_node(node_object(number)))
    for body in placed_pods(nodes, pods):
        rig.state.pod_changed(None, decode_pod(body))
    rig.state.catch_up()
    settle()
    loaded_s = time.perf_counter() - start
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n20,000 nodes x 8 cards, 200,000 pods, CPU ms; {machine()}")
    print(f"made and read in {loaded_s:.0f} s, at most {rss_mib:.0f} MiB resident (budget 600)")
    draw = random.Random(7)
    rig.attempts([request_of(draw)])  # sums everything up
    took, off = rig.attempts([request_of(draw) for _ in range(400)])
    print(f"{'plain':42} {_quantiles(took):>19} {off:4} (budget: p50 5, p99 30)")
    for name, made in CASES[:3]:
        took, off = rig.attempts([made(1)] * ATTEMPTS)
        print(f"{name:42} {_quantiles(took):>19} {off:4}")
