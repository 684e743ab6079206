"""Pods that name the cards they accept, while nodes come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.engine.compat import V2_10
from hami_node.engine.filters import Rejection
from hami_node.engine.fleet import explain
from hami_node.engine.fleet.effort import LOOK_STEPS, Effort
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed, Unfinished
from hami_node.engine.fleet.node_state import NodeState
from hami_node.engine.place import ContainerAsks, Plan, PodRequest, Rules
from hami_node.engine.usage import PodGrants
from hami_node.model import CardWishes, ContainerKind, PodWishes, Uuid, UuidWish
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.unit.engine.cards import ask, device, grant


def _naming(*uuids: str, nouse: tuple[str, ...] = ()) -> PodRequest:
    wish = UuidWish(use=frozenset(uuids) if uuids else None, nouse=frozenset(nouse))
    return PodRequest(
        namespace="team",
        containers=(ContainerAsks(kind=ContainerKind.APP, asks=(ask(),)),),
        wishes=PodWishes(cards=((NVIDIA, CardWishes(uuids=wish)),)),
    )


def _place(fleet: Fleet, request: PodRequest) -> str:
    answer = fleet.place(request)
    assert isinstance(answer, Placed | NoNode)
    return answer.node if isinstance(answer, Placed) else ""


def test_named_card_is_found_wherever_it_is_now() -> None:
    """The very same request is asked again, as kube-scheduler does."""
    fleet, request = Fleet(Rules(compat=V2_10)), _naming("wanted")
    fleet.set_node("a", [device(0, uuid=Uuid("other"))])
    assert _place(fleet, request) == ""
    fleet.set_node("b", [device(0, uuid=Uuid("wanted"))])
    assert _place(fleet, request) == "b"
    fleet.remove_node("b")
    assert _place(fleet, request) == ""
    fleet.set_node("a", [device(0, uuid=Uuid("other")), device(1, uuid=Uuid("wanted"))])
    assert _place(fleet, request) == "a"
    fleet.set_node("a", [device(0, uuid=Uuid("other"))])
    assert _place(fleet, request) == ""
    rejections = fleet.explain(request)
    assert isinstance(rejections, dict)
    assert isinstance(rejections["a"], Rejection)


def test_one_request_does_not_get_the_nodes_of_another() -> None:
    fleet = Fleet(Rules(compat=V2_10))
    for name in ("a", "b"):
        fleet.set_node(name, [device(0, uuid=Uuid(f"card-{name}"))])
    first, second = _naming("card-a"), _naming("card-b")
    without = _naming(nouse=("card-a",))
    for _ in range(2):
        assert [_place(fleet, each) for each in (first, second, without)] == ["a", "b", "b"]


def test_list_that_is_longer_than_the_fleet_finds_the_same() -> None:
    """An annotation may list 60,000 cards."""
    fleet = Fleet(Rules(compat=V2_10))
    for number in range(4):
        fleet.set_node(f"n{number}", [device(0, uuid=Uuid(f"card-{number}"))])
    foreign = tuple(f"foreign-{number}" for number in range(100))
    assert _place(fleet, _naming("card-2", *foreign)) == "n2"
    assert _place(fleet, _naming(*foreign)) == ""
    assert _place(fleet, _naming(nouse=("card-0", "card-1", "card-3", *foreign))) == "n2"


def test_nodes_of_the_listed_cards_are_looked_up_once() -> None:
    """With 5,000 cards to use and as many not to use, that took 24 ms of a decision."""
    fleet = Fleet(Rules(compat=V2_10))
    for number in range(4):
        fleet.set_node(f"n{number}", [device(0, uuid=Uuid(f"card-{number}"))])
    request = _naming("card-1", "card-2", nouse=("card-1",))
    assert _place(fleet, request) == "n2"
    found = fleet._found
    assert [names for _, names in found] == [{"n1"}, {"n1", "n2"}]
    assert _place(fleet, request) == "n2"
    assert fleet._found is found
    for number in range(9):
        _place(fleet, _naming(f"card-{number % 3}", f"x-{number}"))
    assert len(fleet._found) <= 4


def test_search_for_a_pod_that_excludes_every_card_comes_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has found out by the end of its time is still known in its next turn."""
    monkeypatch.setattr(explain, "FEW_KEPT", 0)
    fleet = Fleet(Rules(compat=V2_10))
    for number in range(20):
        fleet.set_node(f"n{number}", [device(0, uuid=Uuid(f"card-{number}"))])
    request = _naming(nouse=tuple(f"card-{number}" for number in range(20)))
    turns = [fleet.search(request, None, lambda: True) for _ in range(21)]
    assert turns[-1] == NoNode()
    for number in range(20):
        fleet.remove_node(f"n{number}")
    fleet.set_node("new", [device(0, uuid=Uuid("card-0"))])
    assert _place(fleet, request) == ""


def test_nodes_that_all_changed_are_tried_again_in_slices_too() -> None:
    """What is found out anew takes the place of what was known: that is progress as well."""
    fleet = Fleet(Rules(compat=V2_10))
    for number in range(20):
        cards = [device(at, uuid=Uuid(f"card-{number}-{at}")) for at in range(2)]
        fleet.set_node(f"n{number}", cards)
        held = PodGrants(containers=((grant(f"card-{number}-0", 16384, 0),),))
        fleet.add_pod(f"full-{number}", "x", f"n{number}", held)
    request = _naming(*(f"card-{number}-0" for number in range(20)))
    assert _place(fleet, request) == ""
    for number in range(20):
        little = PodGrants(containers=((grant(f"card-{number}-1", 1, 0),),))
        fleet.add_pod(f"new-{number}", "x", f"n{number}", little)
    turns = [fleet.search(request, None, lambda: True) for _ in range(21)]
    assert turns == [*[Unfinished()] * 20, NoNode()]


def test_reasons_of_nodes_that_would_take_too_long_to_try_have_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 5,000 named nodes was asked whether there is time to try it: 40 ms of an answer."""
    fleet, nodes, steps = Fleet(Rules(compat=V2_10)), 200, 60
    for number in range(nodes):
        fleet.set_node(f"n{number:03}", [device(0, uuid=Uuid(f"card-{number}"))])
    named = _naming(nouse=tuple(f"card-{number}" for number in range(nodes)))
    request = replace(named, containers=named.containers * 10)
    looks: list[str] = []
    try_on = Effort.try_on

    def counted(self: Effort, node: NodeState, ready: Plan) -> bool:
        looks.append(node.name)
        return try_on(self, node, ready)

    monkeypatch.setattr(Effort, "try_on", counted)
    reasons = fleet.explain(request, effort=Effort(steps))
    assert isinstance(reasons, dict)
    assert len(looks) <= steps // LOOK_STEPS
