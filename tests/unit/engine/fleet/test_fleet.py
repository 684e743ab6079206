"""Which node a pod gets, why the others don't, and that shortcuts never change an answer."""

from __future__ import annotations

from typing import Any

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import ContainerAsks, PodRequest, Refused, Rules
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import PodGrants
from hami_node.model import (
    Ask,
    ContainerKind,
    Device,
    PodWishes,
    Uuid,
    UuidWish,
    Vendor,
)
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.unit.engine.cards import ask, device, grant, neuron_card, wishes_for


def _request(*asks: Ask, wishes: PodWishes | None = None, namespace: str = "team") -> PodRequest:
    return PodRequest(
        namespace=namespace,
        containers=(ContainerAsks(kind=ContainerKind.APP, asks=asks),),
        wishes=wishes or PodWishes(),
    )


def _devices(node: str, count: int = 2, **changes: Any) -> list[Device]:
    return [
        device(index, **({"uuid": Uuid(f"{node}-{index}")} | changes)) for index in range(count)
    ]


def _held(uuid: str, memory_mib: int = 1000, cores: int = 10) -> PodGrants:
    return PodGrants(containers=((grant(uuid, memory_mib, cores),),))


@pytest.fixture(params=[V2_8, V2_10], ids=["2.8", "2.10"])
def compat(request: pytest.FixtureRequest) -> Compat:
    """Every test of this file holds in both generations."""
    chosen: Compat = request.param
    return chosen


def _three(compat: Compat, quotas: QuotaBook | None = None, node_policy: str = "binpack") -> Fleet:
    """a is idle, b fuller than c."""
    fleet = Fleet(Rules(compat=compat, node_policy=node_policy), quotas)
    for name in ("c", "b", "a"):
        fleet.set_node(name, _devices(name))
    fleet.add_pod("p1", "team", "b", _held("b-0", 8000, 50))
    fleet.add_pod("p2", "team", "c", _held("c-0"))
    return fleet


def _node(answer: Placed | NoNode | Refused) -> str | None:
    return answer.node if isinstance(answer, Placed) else None


@pytest.mark.parametrize(
    ("default", "pods", "node"),
    [
        ("binpack", None, "b"),
        ("spread", None, "a"),
        ("no-such-word", None, "b"),
        ("binpack", "spread", "a"),
        ("spread", "binpack", "b"),
        ("spread", "", "b"),
    ],
)
def test_node_policy(compat: Compat, default: str, pods: str | None, node: str) -> None:
    fleet = _three(compat, node_policy=default)
    assert _node(fleet.place(_request(ask(), wishes=PodWishes(node_policy=pods)))) == node


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_equal_nodes_are_taken_by_name(compat: Compat, policy: str) -> None:
    fleet = Fleet(Rules(compat=compat, node_policy=policy))
    for name in ("n3", "n1", "n2"):
        fleet.set_node(name, _devices(name))
    assert _node(fleet.place(_request(ask()))) == "n1"
    assert _node(fleet.place(_request(ask()), ["n3", "n2"])) == "n2"


def test_placing_charges_nothing_until_the_pod_is_added(compat: Compat) -> None:
    fleet = _three(compat)
    first = fleet.place(_request(ask()))
    assert first == fleet.place(_request(ask()))
    assert isinstance(first, Placed)
    fleet.add_pod("new", "team", first.node, first.grants)
    assert fleet.node_of("new") == "b"
    fleet.remove_pod("new")
    assert fleet.node_of("new") is None
    assert fleet.place(_request(ask())) == first


def test_candidates_limit_the_choice(compat: Compat) -> None:
    fleet = _three(compat)
    assert _node(fleet.place(_request(ask()), ["a", "c", "nobody"])) == "c"
    assert _node(fleet.place(_request(ask()), [])) is None


def test_uuid_wish_leads_to_its_node(compat: Compat) -> None:
    wishes = wishes_for(uuids=UuidWish(use=frozenset({"a-1", "gone"})))
    answer = _three(compat).place(_request(ask(), wishes=wishes))
    assert isinstance(answer, Placed)
    assert (answer.node, answer.grants.containers[0][0].uuid) == ("a", "a-1")


def test_explain_tells_each_node_that_cannot(compat: Compat) -> None:
    reasons = _three(compat).explain(_request(ask(2, 16000)), ["a", "b", "c", "gone"])
    assert isinstance(reasons, dict)
    assert {name: why.text() for name, why in reasons.items()} == {
        "b": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
        "c": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
        "gone": "node unregistered",
    }


def test_wrong_weights_are_refused_by_both(compat: Compat) -> None:
    request = _request(ask(), wishes=PodWishes(scoring_weights="x"))
    assert isinstance(_three(compat).place(request), Refused)
    assert isinstance(_three(compat).explain(request), Refused)


def test_node_without_cards_is_unregistered(compat: Compat) -> None:
    fleet = _three(compat)
    fleet.set_node("d", [])
    reasons = fleet.explain(_request(ask()), ["d"])
    assert isinstance(reasons, dict)
    assert reasons["d"].text() == "node unregistered"


def test_removed_node_is_gone_and_its_grants_wait_for_it(compat: Compat) -> None:
    fleet = _three(compat)
    fleet.remove_node("b")
    fleet.remove_node("nobody")
    assert _node(fleet.place(_request(ask()))) == "c"
    assert [charge.memory_mib for _, charge in fleet.nodes["b"].usage.unknown] == [8000]
    fleet.set_node("b", _devices("b"))
    assert _node(fleet.place(_request(ask()))) == "b"
    fleet.remove_node("b")
    fleet.remove_pod("p1")
    assert "b" not in fleet.nodes


def test_quota_of_the_namespace_counts_its_pods(compat: Compat) -> None:
    quotas = QuotaBook()
    quotas.set_limits("team", "q", Limits(memory_mib=10000))
    fleet = _three(compat, quotas=quotas)
    assert isinstance(fleet.place(_request(ask(memory_mib=1000))), Placed)
    assert fleet.place(_request(ask(memory_mib=1001))) == NoNode()
    assert isinstance(fleet.place(_request(ask(memory_mib=1001), namespace="other")), Placed)
    fleet.remove_pod("p2")
    assert isinstance(fleet.place(_request(ask(memory_mib=2000))), Placed)


@pytest.mark.parametrize("vendor", [NVIDIA, NEURON], ids=repr)
def test_memory_that_a_pod_claims_takes_no_neuron_core(compat: Compat, vendor: Vendor) -> None:
    fleet = Fleet(Rules(compat=compat))
    fleet.set_node("n", [neuron_card().device])
    claim = grant(neuron_card().device.uuid, 30000, 0, vendor=vendor)
    fleet.add_pod("p", "team", "n", PodGrants(containers=((claim,),)))
    request = _request(Ask(vendor=NEURON, count=1, cores=1))
    assert _node(fleet.place(request)) == "n"
