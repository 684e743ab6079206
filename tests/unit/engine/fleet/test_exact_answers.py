"""Whatever happens between attempts, the fleet answers like trying every node exactly.

No shortcut may ever lose a node that fits, take one that does not, or give another reason.
"""

from __future__ import annotations

import weakref

import pytest

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
    PodWishes,
    Uuid,
    UuidWish,
)
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.unit.engine.cards import ask, device, grant
from tests.unit.engine.draws import Draw


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


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
@pytest.mark.parametrize("seeds", [range(30), range(30, 60)], ids=str)
def test_mixed_vendors_and_divided_cards_are_answered_exactly(seeds: range, compat: Compat) -> None:
    for seed in seeds:
        draw, quotas = Draw(seed), QuotaBook()
        limit = draw.pick(None, 0, 20000, 100000)
        quotas.set_limits("team", "q", Limits(memory_mib=limit, cores=draw.pick(None, 100)))
        fleet = Fleet(Rules(compat=compat), quotas)
        for number in range(6):
            _change_node(draw, fleet, number)
        requests = [request for _ in range(12) if not (request := draw.request()).is_empty]
        for number in range(25):
            request = draw.pick(*requests)
            answer, reasons = exactly(fleet, quotas, request)
            assert fleet.place(request) == answer
            assert fleet.place(request, list(fleet.nodes)) == answer
            check_reasons(fleet, request, reasons)
            if isinstance(answer, Placed):
                fleet.add_pod(f"pod-{number}", request.namespace, answer.node, answer.grants)
            if number % 5 == 4:
                fleet.remove_pod(f"pod-{draw.number(number)}")
                fleet.add_pod(f"claim-{number}", "team", f"n{number % 6}", _claimed(draw, number))
            if number % 4 == 3:
                _change_node(draw, fleet, draw.number(5))
            if number % 9 == 8:
                fleet.remove_node(f"n{draw.number(5)}")
                limit = draw.pick(None, 8192, 30000, 90000)
                quotas.set_limits("team", "q", None if limit is None else Limits(memory_mib=limit))


def _change_node(draw: Draw, fleet: Fleet, number: int) -> None:
    devices = draw.devices(number)
    scores = {
        one.uuid: {
            other.uuid: draw.pick(10, 20, 50)
            for other in devices
            if other.index > one.index and draw.pick(True, False)
        }
        for one in devices
    }
    cordoned = draw.pick(frozenset(), frozenset(), frozenset({Uuid(f"{number}-1")}))
    fleet.set_node(f"n{number}", devices, cordoned=cordoned, pair_scores=scores)


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
