"""Pods that name the cards they accept, while nodes come and go."""

from __future__ import annotations

from hami_node.engine.compat import V2_10
from hami_node.engine.filters import Rejection
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import ContainerAsks, PodRequest, Rules
from hami_node.model import CardWishes, ContainerKind, PodWishes, Uuid, UuidWish
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.unit.engine.cards import ask, device


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
