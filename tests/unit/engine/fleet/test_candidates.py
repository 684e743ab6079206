"""Whether a node is among those that may be chosen, however often that is asked."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from hami_node.engine.compat import V2_10
from hami_node.engine.fleet.candidates import FEW_LOOKS, among
from hami_node.engine.fleet.fleet import FEW, Fleet, Placed, Unfinished
from hami_node.engine.fleet.needs import Needs
from hami_node.engine.fleet.node_order import LOT_SIZE
from hami_node.engine.fleet.summaries import NodeSummary
from hami_node.engine.place import ContainerAsks, PodRequest, Rules
from hami_node.engine.usage import PodGrants
from hami_node.model import ContainerKind, Uuid
from tests.unit.engine.cards import ask, device, grant

NAMES = tuple(f"n{number}" for number in range(50))


@pytest.mark.parametrize(
    "names",
    [NAMES, list(NAMES), frozenset(NAMES), dict.fromkeys(NAMES), ()],
    ids=["tuple", "list", "set", "dict", "none"],
)
def test_every_look_has_the_same_answer(names: Collection[str]) -> None:
    is_among = among(names)
    for _ in range(FEW_LOOKS + 2):
        assert is_among("n49") is bool(names)
        assert not is_among("n")


def test_name_is_looked_up_and_not_compared_in_part() -> None:
    is_among = among(["node-10", "node-2"])
    assert [name for name in ("node-1", "node-10", "node-2", "") if is_among(name)] == [
        "node-10",
        "node-2",
    ]


@pytest.mark.parametrize("is_of_few", [False, True], ids=["all nodes", "few of them"])
def test_time_is_looked_at_after_some_nodes_also_where_none_is_tried(is_of_few: bool) -> None:
    """On 600 candidates of 5,000 all were looked through before anybody asked for the time."""
    fleet, nodes = Fleet(Rules(compat=V2_10)), 2 * FEW * LOT_SIZE
    for number in range(nodes):
        cards = [device(at, uuid=Uuid(f"{number}-{at}")) for at in range(2)]
        fleet.set_node(f"n{number:03}", cards)
        held = PodGrants(containers=((grant(f"{number}-0", 1 + number, 60),),))
        fleet.add_pod(f"p{number}", "x", f"n{number:03}", held)
    wanted = [f"n{number:03}" for number in range(nodes // FEW - 1 if is_of_few else nodes)]
    containers = (ContainerAsks(kind=ContainerKind.APP, asks=(ask(2, cores=50),)),)
    request = PodRequest(namespace="team", containers=containers)
    turns = 0
    while fleet.search(request, wanted, lambda: True) == Unfinished():
        fleet.put_off(request)
        turns += 1
    assert turns >= len(wanted) / LOT_SIZE


def test_nodes_that_may_not_be_chosen_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,500 that came first in the order took 100 ms, in each slice, before the time was asked."""
    fleet, nodes = Fleet(Rules(compat=V2_10)), 10 * LOT_SIZE
    for number in range(nodes):
        fleet.set_node(f"n{number:03}", [device(0, uuid=Uuid(f"{number}-0"))])
    looks: list[NodeSummary] = []
    has_rooms = Needs.has_rooms

    def counted(self: Needs, node: NodeSummary) -> bool:
        looks.append(node)
        return has_rooms(self, node)

    monkeypatch.setattr(Needs, "has_rooms", counted)
    last = [f"n{number:03}" for number in range(nodes // 2, nodes)]
    containers = (ContainerAsks(kind=ContainerKind.APP, asks=(ask(),)),)
    answer = fleet.place(PodRequest(namespace="team", containers=containers), last)
    assert isinstance(answer, Placed)
    assert answer.node == last[0]
    assert len(looks) == 1
