"""An answer that may cost only so much: reasons get coarser, but no reason is ever wrong."""

from __future__ import annotations

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Reason, Rejection
from hami_node.engine.fleet.effort import Effort
from hami_node.engine.fleet.fleet import Fleet, NoNode
from hami_node.engine.place import ContainerAsks, Plan, PodRequest, Rules, place_on, plan
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import PodGrants
from hami_node.model import Ask, ContainerKind, PodWishes, Uuid, UuidWish
from tests.unit.engine.cards import ask, device, grant, wishes_for
from tests.unit.engine.draws import Draw

COARSE = (Reason.TOO_LITTLE_ROOM, Reason.UUID_MISMATCH)


def pod_of(*asks: Ask, wishes: PodWishes | None = None) -> PodRequest:
    return PodRequest(
        namespace="team",
        containers=tuple(ContainerAsks(kind=ContainerKind.APP, asks=(each,)) for each in asks),
        wishes=wishes or PodWishes(),
    )


def distinct_nodes(count: int) -> Fleet:
    """Two cards each, one of them idle; no two nodes are equal."""
    fleet = Fleet(Rules(compat=V2_10))
    for number in range(count):
        cards = [device(index, uuid=Uuid(f"{number}-{index}")) for index in range(2)]
        fleet.set_node(f"n{number:03}", cards)
        held = PodGrants(containers=((grant(f"{number}-1", 1000 + number, 100),),))
        fleet.add_pod(f"p{number}", "team", f"n{number:03}", held)
    return fleet


def exactly(fleet: Fleet, quotas: QuotaBook, request: PodRequest) -> dict[str, Rejection]:
    ready = plan(request, fleet.rules, quotas.quota(request.namespace))
    assert isinstance(ready, Plan)
    answers = {
        name: place_on(state.offer(), ready)
        for name, state in fleet.nodes.items()
        if state.is_registered
    }
    return {name: why for name, why in answers.items() if isinstance(why, Rejection)}


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
@pytest.mark.parametrize("seeds", [range(start, start + 30) for start in range(0, 90, 30)], ids=str)
def test_coarse_reason_is_only_given_to_a_node_that_the_exact_engine_refuses(
    seeds: range, compat: Compat
) -> None:
    coarse = 0
    for seed in seeds:
        draw, quotas = Draw(seed), QuotaBook()
        quotas.set_limits("team", "q", Limits(memory_mib=draw.pick(None, 20000, 100000)))
        fleet = Fleet(Rules(compat=compat), quotas)
        for number in range(8):
            fleet.set_node(f"n{number}", draw.devices(number))
        for _ in range(30):
            request = draw.request()
            if request.is_empty:
                continue
            exact = exactly(fleet, quotas, request)
            is_nowhere = fleet.place(request) == NoNode()
            found = fleet.explain(request, effort=Effort(draw.pick(0, 1, 10, 60, 200)))
            assert isinstance(found, dict)
            for name, why in found.items():
                if why.whole is Reason.NOT_REGISTERED:
                    continue
                is_coarse = why.whole in COARSE
                coarse += is_coarse
                assert name in exact
                assert is_coarse or why.text() == exact[name].text()
            if is_nowhere:
                assert exact.keys() <= found.keys()
    assert coarse


def test_reasons_get_exact_with_further_attempts() -> None:
    fleet = distinct_nodes(40)
    request = pod_of(ask(1, 1000, 60), ask(1, 1000, 60))
    assert fleet.place(request) == NoNode()
    exact_before = -1
    for _ in range(40):
        effort = Effort(100)
        found = fleet.explain(request, effort=effort)
        assert isinstance(found, dict)
        assert len(found) == 40
        assert effort.tried <= 5
        exact = sum(why.whole is None for why in found.values())
        assert exact > exact_before
        if exact == 40:
            break
        exact_before = exact
    else:
        pytest.fail("the reasons did not get exact")


def test_pod_that_no_kind_of_card_serves_is_told_so_without_any_effort() -> None:
    fleet = distinct_nodes(3)
    request = pod_of(ask(1, 1000), wishes=wishes_for(use_types=("h100",)))
    assert fleet.place(request) == NoNode()
    found = fleet.explain(request, effort=Effort(0))
    assert isinstance(found, dict)
    assert {why.whole for why in found.values()} == {Reason.TOO_LITTLE_ROOM}
    assert len(found) == 3


def test_node_without_the_named_cards_is_told_so_without_any_effort() -> None:
    fleet = distinct_nodes(3)
    wishes = wishes_for(uuids=UuidWish(use=frozenset({"0-1"})))
    request = pod_of(ask(1, 1000, 50), wishes=wishes)
    assert fleet.place(request) == NoNode()
    found = fleet.explain(request, effort=Effort(0))
    assert isinstance(found, dict)
    assert {name: why.text() for name, why in found.items()} == {
        "n000": "1/2 CardInsufficientCore, 1/2 CardUuidMismatch",
        "n001": "CardUuidMismatch",
        "n002": "CardUuidMismatch",
    }


def test_node_that_has_changed_since_is_not_refused_by_what_was_known() -> None:
    fleet = distinct_nodes(3)
    request = pod_of(ask(1, 1000, 60), ask(1, 1000, 60))
    assert fleet.place(request) == NoNode()
    fleet.remove_pod("p1")
    found = fleet.explain(request, effort=Effort(0))
    assert isinstance(found, dict)
    assert set(found) == {"n000", "n002"}
