"""A search that takes long ends in time, is gone on with, and finds what there is to find."""

from __future__ import annotations

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.clock import FakeClock
from tests.fakes.pods import Box
from tests.unit.extender.desk import Desk

NODES = 60
LONGEST_S = 0.2
"""Of one call, on a clock that moves on a millisecond whenever it is looked at."""


class Ticking(FakeClock):
    """Time passes with every look at it."""

    def monotonic(self) -> float:
        self.advance(0.001)
        return super().monotonic()


@pytest.fixture
def desk() -> Desk:
    """Nodes of four cards, no two of them in the same state."""
    desk = Desk(*(f"n{number:02}" for number in range(NODES)), cards=4, clock=Ticking())
    for number in range(NODES):
        use(desk, f"p{number}", f"n{number:02}", 1 + number)
    desk.sync()
    return desk


def use(desk: Desk, pod: str, node: str, memory_mib: int) -> None:
    grants = {
        names.POD_NODE: node,
        nvidia_names.POD_ALLOCATED: f"GPU-{node}-0,NVIDIA,{memory_mib},0:;",
    }
    desk.add_pod(pod, annotations=grants)
    desk.edit_pod(pod, spec={"nodeName": node})


def add_greedy(desk: Desk, name: str, memory_mib: int = 4000) -> None:
    """Needs six cards, which only trying tells: too many sizes, in an order by NUMA node."""
    sizes = ((2, memory_mib, 30), (4, 4000, 71), *((1, 1 + number, 0) for number in range(5)))
    boxes = [
        Box(name=f"c{at}", cards=cards, memory_mib=mib, cores=cores)
        for at, (cards, mib, cores) in enumerate(sizes)
    ]
    desk.add_pod(name, *boxes, annotations={names.POD_GPU_POLICY: "numa,spread"})


def calls_until_an_answer(desk: Desk, pod: str) -> tuple[int, str]:
    """How many calls it took, and the node; each call ends in time."""
    for number in range(1, NODES):
        began_s = desk.clock.monotonic()
        answer = desk.ask(pod)
        assert desk.clock.monotonic() - began_s < LONGEST_S
        if "goes on where this one was" not in answer["Error"]:
            return number, "".join(answer["NodeNames"] or ())
        use(desk, f"between-{pod}-{number}", f"n{number:02}", 1)
        desk.sync()
    pytest.fail("the search has no end")


def test_search_is_gone_on_with_though_nodes_change_until_the_one_that_fits(desk: Desk) -> None:
    last = f"n{NODES - 1:02}"
    desk.kube.store.delete("nodes", "", last)
    desk.sync()
    desk.add_node(last, cards=8)
    add_greedy(desk, "greedy")
    desk.sync()
    calls, node = calls_until_an_answer(desk, "greedy")
    assert calls > 1
    assert node == last


def test_every_node_is_told_a_reason_in_the_end(desk: Desk) -> None:
    add_greedy(desk, "greedy")
    desk.sync()
    calls, node = calls_until_an_answer(desk, "greedy")
    assert (calls > 1, node) == (True, "")
    answer = desk.ask("greedy")
    assert len(answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]) == NODES
