"""Whatever happens between attempts, the fleet answers like trying every node exactly.

No shortcut may ever lose a node that fits, take one that does not, or give another reason.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Rejection
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed, Unfinished
from hami_node.engine.place import ContainerAsks, Plan, PodRequest, Rules, place_on, plan
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.ranking import node_score
from hami_node.engine.usage import PodGrants
from hami_node.model import (
    CardWishes,
    ContainerKind,
    Device,
    PairScores,
    PodWishes,
    Uuid,
    UuidWish,
)
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.unit.engine.cards import ask, device, grant
from tests.unit.engine.draws import Draw

NODES = 5
CARDS = 4
COMPATS = st.sampled_from([V2_8, V2_10])


def uuid_of(node: int, index: int) -> Uuid:
    return Uuid(f"{node}-{index}")


@st.composite
def devices(draw: st.DrawFn, node: int) -> list[Device]:
    """Few kinds, so that nodes are often equal, and small, so that pods often don't fit."""
    return [
        device(
            index,
            uuid=uuid_of(node, index),
            numa=draw(st.sampled_from([0, 0, 1, None])),
            slots=draw(st.sampled_from([1, 2, 10])),
            memory_mib=draw(st.sampled_from([8192, 16384])),
            cores=draw(st.sampled_from([0, 100, 100, 100, 200])),
            healthy=draw(st.integers(0, 9)) > 0,
        )
        for index in range(draw(st.integers(1, CARDS)))
    ]


GPU_ASKS = st.builds(
    lambda count, memory_mib, percent, cores: ask(
        count, memory_mib, cores, memory_percent=None if memory_mib is not None else percent
    ),
    st.integers(1, 3),
    st.sampled_from([None, 0, 2000, 4096, 8192, 12000]),
    st.sampled_from([None, 25, 50, 100]),
    st.sampled_from([0, 0, 1, 30, 50, 100, 100]),
)
CONTAINERS = st.builds(
    lambda kind, wanted: ContainerAsks(kind=kind, asks=(wanted,)),
    st.sampled_from([*([ContainerKind.APP] * 4), ContainerKind.INIT, ContainerKind.SIDECAR]),
    GPU_ASKS,
)
UUID_LISTS = st.frozensets(
    st.sampled_from([str(uuid_of(*at)) for at in product(range(NODES), range(CARDS))]), max_size=4
)
WISHES = st.builds(
    lambda is_bound, use, nouse, gpu_policy, node_policy: PodWishes(
        cards=((NVIDIA, CardWishes(is_numa_bound=is_bound, uuids=UuidWish(use=use, nouse=nouse))),),
        gpu_policy=gpu_policy,
        node_policy=node_policy,
    ),
    st.sampled_from([False, False, True]),
    st.one_of(st.none(), st.none(), st.none(), UUID_LISTS),
    st.one_of(st.just(frozenset()), st.just(frozenset()), UUID_LISTS),
    st.sampled_from([None, None, "binpack", "mutex", "topology-aware", "numa,spread"]),
    st.sampled_from([None, "spread"]),
)
REQUESTS = st.builds(
    lambda namespace, containers, wishes: PodRequest(
        namespace=namespace, containers=tuple(containers), wishes=wishes
    ),
    st.sampled_from(["team", "free", "other"]),
    st.lists(CONTAINERS, min_size=1, max_size=4),
    WISHES,
)


@st.composite
def links(draw: st.DrawFn, node: int) -> PairScores:
    found: dict[Uuid, dict[Uuid, int]] = {}
    for a, b in product(range(CARDS), repeat=2):
        if a < b and draw(st.booleans()):
            score = draw(st.sampled_from([10, 20, 50]))
            found.setdefault(uuid_of(node, a), {})[uuid_of(node, b)] = score
    return found


@st.composite
def fleets(draw: st.DrawFn, compat: Compat) -> tuple[Fleet, QuotaBook]:
    quotas = QuotaBook()
    memory_mib = draw(st.sampled_from([None, 0, 20000, 40000]))
    quotas.set_limits(
        "team", "q", Limits(memory_mib=memory_mib, cores=draw(st.none() | st.just(150)))
    )
    fleet = Fleet(Rules(compat=compat), quotas)
    for number in range(NODES):
        change_node(draw, fleet, number)
    return fleet, quotas


def change_node(draw: st.DrawFn, fleet: Fleet, number: int) -> None:
    cordoned = draw(st.sampled_from([frozenset[Uuid](), frozenset({uuid_of(number, 0)})]))
    fleet.set_node(
        f"n{number}",
        draw(devices(number)),
        cordoned=cordoned,
        pair_scores=draw(links(number)),
    )


def change(draw: st.DrawFn, fleet: Fleet, quotas: QuotaBook) -> None:
    what, number = draw(st.integers(0, 7)), draw(st.integers(0, NODES - 1))
    if what == 0:
        change_node(draw, fleet, number)
    elif what == 1:
        fleet.remove_node(f"n{number}")
    elif what == 2:
        limits = Limits(memory_mib=draw(st.sampled_from([8192, 30000, 90000])))
        quotas.set_limits("team", "q", draw(st.none() | st.just(limits)))
    elif what <= 4:
        fleet.remove_pod(f"pod-{draw(st.integers(0, 20))}")
    else:
        held = grant(uuid_of(number, draw(st.integers(0, CARDS - 1))), draw(st.just(3000)), 20)
        fleet.add_pod(
            f"other-{draw(st.integers(0, 9))}",
            "free",
            f"n{number}",
            PodGrants(containers=((held,),)),
        )


def exactly(
    fleet: Fleet, quotas: QuotaBook, request: PodRequest
) -> tuple[Placed | NoNode, dict[str, str]]:
    """The node, and the reasons of the others, by placing the pod on every node."""
    ready = plan(request, fleet.rules, quotas.quota(request.namespace))
    assert isinstance(ready, Plan)
    sign = 1 if (request.wishes.node_policy or fleet.rules.node_policy) == "spread" else -1
    fitting: list[tuple[float, str, PodGrants]] = []
    reasons: dict[str, str] = {}
    for name, node in fleet.nodes.items():
        answer = place_on(node.offer(), ready)
        if not node.is_registered:
            reasons[name] = "node unregistered"
        elif isinstance(answer, Rejection):
            reasons[name] = answer.text()
        else:
            fitting.append((sign * node_score(node.usage.cards.values()), name, answer))
    if not fitting:
        return NoNode(), reasons
    _, name, grants = min(fitting, key=lambda entry: entry[:2])
    return Placed(node=name, grants=grants), reasons


def check_reasons(fleet: Fleet, request: PodRequest, reasons: dict[str, str]) -> None:
    found = fleet.explain(request)
    assert isinstance(found, dict)
    assert {name: found[name].text() for name in fleet.nodes if name in found} == reasons


@settings(max_examples=60)
@given(st.data(), COMPATS)
def test_answers_are_exact_through_any_changes(data: st.DataObject, compat: Compat) -> None:
    fleet, quotas = data.draw(fleets(compat))
    requests = data.draw(st.lists(REQUESTS, min_size=1, max_size=3))
    for number in range(8):
        request = data.draw(st.sampled_from(requests))
        if data.draw(st.booleans()):
            request = replace(request, namespace=data.draw(st.sampled_from(["team", "free"])))
        answer, reasons = exactly(fleet, quotas, request)
        assert fleet.place(request) == answer
        assert fleet.place(request, list(fleet.nodes)) == answer
        if data.draw(st.booleans()):
            check_reasons(fleet, request, reasons)
        if isinstance(answer, Placed) and data.draw(st.booleans()):
            fleet.add_pod(f"pod-{number}", request.namespace, answer.node, answer.grants)
        data.draw(st.composite(lambda draw: change(draw, fleet, quotas))())


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
@pytest.mark.parametrize("seeds", [range(20), range(20, 40)], ids=str)
def test_mixed_vendors_and_divided_cards_are_answered_exactly(seeds: range, compat: Compat) -> None:
    for seed in seeds:
        draw, quotas = Draw(seed), QuotaBook()
        limit = draw.pick(None, 0, 20000, 100000)
        quotas.set_limits("team", "q", Limits(memory_mib=limit, cores=draw.pick(None, 100)))
        fleet = Fleet(Rules(compat=compat), quotas)
        for number in range(6):
            cordoned = frozenset({Uuid(f"{number}-1")}) if number % 3 == 2 else frozenset()
            fleet.set_node(f"n{number}", draw.devices(number), cordoned=cordoned)
        requests = [request for _ in range(12) if not (request := draw.request()).is_empty]
        for number in range(25):
            request = draw.pick(*requests)
            answer, reasons = exactly(fleet, quotas, request)
            assert fleet.place(request) == answer
            check_reasons(fleet, request, reasons)
            if isinstance(answer, Placed):
                fleet.add_pod(f"pod-{number}", request.namespace, answer.node, answer.grants)
            if number % 5 == 4:
                fleet.remove_pod(f"pod-{draw.number(number)}")
                fleet.add_pod(f"claim-{number}", "team", f"n{number % 6}", _claimed(draw, number))
            if number % 9 == 8:
                fleet.set_node("n1", draw.devices(1))


def _claimed(draw: Draw, number: int) -> PodGrants:
    """What a pod may say that it holds, whoever wrote it: too much, or of another vendor."""
    claim = grant(
        f"{number % 6}-{draw.number(1)}",
        draw.pick(0, 100, 30000),
        draw.pick(0, 10, 150),
        vendor=draw.pick(NVIDIA, NEURON),
    )
    return PodGrants(containers=((claim,),))


# -- a search that ends before its answer is known ------------------------------------------------
@pytest.mark.parametrize("seed", range(8))
def test_search_that_is_cut_takes_only_what_fits_and_refuses_only_what_does_not(seed: int) -> None:
    draw, quotas = Draw(seed), QuotaBook()
    fleet = Fleet(Rules(compat=V2_10), quotas)
    for number in range(8):
        fleet.set_node(f"n{number}", draw.devices(number))
    for turn in range(20):
        request = draw.request()
        if request.is_empty:
            continue
        cuts = 0
        while isinstance(found := fleet.search(request, None, lambda: True), Unfinished):
            cuts += 1
            assert cuts < 100
            if cuts % 3 == 0:
                fleet.put_off(request)
            if cuts % 4 == 3:
                fleet.add_pod("moving", "x", f"n{cuts % 8}", _claimed(draw, turn))
        answer, reasons = exactly(fleet, quotas, request)
        if isinstance(found, Placed):
            assert found.node not in reasons
            fleet.add_pod(f"pod-{turn}", request.namespace, found.node, found.grants)
        else:
            assert found == answer == NoNode()


def test_past_requests_are_not_kept_without_bound() -> None:
    """An annotation lists 60,000 cards in 256 KiB, and a tenant writes as many as it likes."""
    fleet = Fleet(Rules(compat=V2_10))
    fleet.set_node("n1", [device(0, uuid=Uuid("only"))])
    kept: list[weakref.ref[frozenset[str]]] = []
    for number in range(400):
        listed = frozenset({f"x-{number}"})
        kept.append(weakref.ref(listed))
        wishes = PodWishes(cards=((NVIDIA, CardWishes(uuids=UuidWish(use=listed))),))
        asks = ContainerAsks(kind=ContainerKind.APP, asks=(ask(),))
        fleet.place(PodRequest(namespace="greedy", containers=(asks,), wishes=wishes))
    assert sum(ref() is not None for ref in kept) <= 256
