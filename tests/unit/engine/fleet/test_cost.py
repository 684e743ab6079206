"""A pod that fits nowhere costs no exact tries where sums tell it, and its reasons get exact."""

from __future__ import annotations

import pytest

from hami_node.engine.compat import V2_10
from hami_node.engine.filters import Rejection
from hami_node.engine.fleet.effort import Effort
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed, Unfinished
from hami_node.engine.place import (
    ContainerAsks,
    Fitting,
    NodeOffer,
    Plan,
    PodRequest,
    Rules,
    try_on,
)
from hami_node.engine.usage import PodGrants
from hami_node.model import Ask, CardWishes, ContainerKind, PodWishes, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.unit.engine.cards import ask, device, grant

WHOLE_3, WHOLE_2 = ask(3, 8000, 100), ask(2, 8000, 100)
BOUND = PodWishes(cards=((NVIDIA, CardWishes(is_numa_bound=True)),))
TINY = tuple(ask(1, 1 + number, 0) for number in range(5))


def pod(*asks: Ask, wishes: PodWishes | None = None) -> PodRequest:
    """A pod with one container for each of them."""
    return PodRequest(
        namespace="team",
        containers=tuple(ContainerAsks(kind=ContainerKind.APP, asks=(each,)) for each in asks),
        wishes=wishes or PodWishes(),
    )


def fleet_of(nodes: int) -> Fleet:
    """Eight cards each on two NUMA nodes, four of them idle; no two nodes are equal."""
    fleet = Fleet(Rules(compat=V2_10))
    for number in range(nodes):
        cards = [device(i, uuid=Uuid(f"{number}-{i}"), numa=i // 4) for i in range(8)]
        fleet.set_node(f"n{number:02}", cards)
        for i in (2, 3, 6, 7):
            held = grant(Uuid(f"{number}-{i}"), 1000 + 8 * number + i, 100)
            fleet.add_pod(f"{number}-{i}", "x", f"n{number:02}", PodGrants(containers=((held,),)))
    return fleet


class Tries:
    """Counts how often a node is tried exactly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr("hami_node.engine.fleet.explain.try_on", self)

    def __call__(self, node: NodeOffer, ready: Plan) -> Fitting | Rejection:
        self.count += 1
        return try_on(node, ready)


@pytest.mark.parametrize(
    "request_",
    [
        pod(WHOLE_3, WHOLE_2),
        pod(ask(1, 9000, 60), ask(4, 9000, 60)),
        pod(ask(4, 9000, 0), ask(2, 9000, 0), ask(1, 100, 0)),
        pod(ask(4, 8000, 100), wishes=BOUND),
        pod(WHOLE_2, WHOLE_3, wishes=PodWishes(gpu_policy="topology-aware")),
        pod(ask(2, 4000, 30), ask(2, 4000, 71), ask(2, 4000, 72)),
        pod(ask(2, 4000, 60), ask(2, 4000, 60), ask(1, 4000, 50), wishes=BOUND),
    ],
    ids=["whole", "cores", "memory", "numa", "links", "three", "in-numa"],
)
def test_nodes_where_containers_fit_alone_but_not_together_are_not_tried(
    request_: PodRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = Tries(monkeypatch)
    assert fleet_of(20).place(request_) == NoNode()
    assert tries.count == 0


def test_node_that_refused_is_tried_again_once_something_changed_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, tries = fleet_of(20), Tries(monkeypatch)
    wishes = PodWishes(gpu_policy="numa,spread")
    # only trying tells: too many sizes to deal the cards out, in an order by NUMA node
    deep = pod(ask(2, 4000, 30), ask(4, 4000, 71), *TINY, wishes=wishes)
    assert fleet.place(deep) == NoNode()
    assert tries.count == 20
    assert fleet.place(deep) == NoNode()
    assert tries.count == 20
    held = PodGrants(containers=((grant(Uuid("3-2"), 1, 0),),))
    fleet.add_pod("new", "x", "n03", held)
    assert fleet.place(deep) == NoNode()
    assert tries.count == 21


def test_reasons_get_exact_with_further_attempts_of_little_effort_each() -> None:
    fleet = Fleet(Rules(compat=V2_10))
    for number in range(40):
        fleet.set_node(
            f"n{number:02}", [device(index, uuid=Uuid(f"{number}-{index}")) for index in range(2)]
        )
        held = PodGrants(containers=((grant(Uuid(f"{number}-1"), 1000 + number, 100),),))
        fleet.add_pod(f"p{number}", "team", f"n{number:02}", held)
    request = pod(ask(1, 1000, 60), ask(1, 1000, 60))
    assert fleet.place(request) == NoNode()
    exact: list[int] = []
    while not exact or exact[-1] < 40:
        effort = Effort(100)
        found = fleet.explain(request, effort=effort)
        assert isinstance(found, dict)
        assert len(found) == 40
        assert effort.tried <= 5
        exact.append(sum(why.whole is None for why in found.values()))
        assert len(exact) == 1 or exact[-1] > exact[-2]


def test_search_that_is_put_off_gets_on_though_all_nodes_before_it_change() -> None:
    count = 20
    fleet = fleet_of(count)
    last = fleet.nodes[f"n{count - 1:02}"]
    for card in ("2", "3", "6", "7"):
        fleet.remove_pod(f"{count - 1}-{card}")
    wishes = PodWishes(gpu_policy="numa,spread")
    deep = pod(ask(2, 4000, 30), ask(4, 4000, 71), *TINY, wishes=wishes)
    turns = 0
    while isinstance(answer := fleet.search(deep, None, lambda: True), Unfinished):
        turns += 1
        fleet.put_off(deep)
        for number in range(count // 2):
            held = grant(Uuid(f"{number}-0"), 1 + turns, 0)
            fleet.add_pod(f"q{number}", "x", f"n{number:02}", PodGrants(containers=((held,),)))
        assert turns <= count
    assert isinstance(answer, Placed)
    assert fleet.nodes[answer.node] is last
    assert turns
