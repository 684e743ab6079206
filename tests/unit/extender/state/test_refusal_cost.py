"""A refusal costs no more with its reasons than a decision may, counted in steps of effort."""

from __future__ import annotations

import random

import pytest

from hami_node.engine.filters import Reason, Rejection
from hami_node.engine.fleet.effort import LOOK_STEPS, Effort, steps_to_try
from hami_node.engine.fleet.fleet import Fleet, NoNode
from hami_node.engine.link_steps import LinkSteps
from hami_node.engine.place import (
    ContainerAsks,
    Fitting,
    NodeOffer,
    Plan,
    PodRequest,
    Rules,
    place_on,
    plan,
    try_on,
)
from hami_node.engine.usage import PodGrants
from hami_node.extender.rules import rules_of
from hami_node.extender.state import slices
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.decisions import Busy
from hami_node.extender.state.slices import (
    DECISION_S,
    LEAST_EXPLAIN_STEPS,
    MOST_EXPLAIN_STEPS,
    MOST_SLICES,
    STEPS_PER_S,
    explain_steps,
)
from hami_node.model import Ask, ContainerKind, Pod, PodWishes, Uuid
from hami_node.vendors.registry import VENDORS
from tests.fakes.clock import FakeClock
from tests.fakes.settings import settings
from tests.unit.engine.cards import ask, device, grant

DECISION_STEPS = round(DECISION_S * STEPS_PER_S)
CARDS = 8


def pod_of(*asks: Ask, policy: str | None = None) -> PodRequest:
    return PodRequest(
        namespace="team",
        containers=tuple(ContainerAsks(kind=ContainerKind.APP, asks=(each,)) for each in asks),
        wishes=PodWishes(gpu_policy=policy),
    )


def greedy(tiny: int = 5) -> PodRequest:
    """Is refused only by trying: too many sizes to deal the cards out, in an order by NUMA node."""
    smalls = (ask(1, 1 + number, 0) for number in range(tiny))
    return pod_of(ask(2, 4000, 30), ask(4, 4000, 71), *smalls, policy="numa,spread")


def fill(fleet: Fleet, nodes: int, share: float = 1.0) -> None:
    """No two nodes are equal. This share of them has to be tried: five cards have room.

    Of the others the numbers tell the search that the pod does not fit.
    """
    for node in range(nodes):
        cards = [device(at, uuid=Uuid(f"{node}-{at}")) for at in range(CARDS)]
        fleet.set_node(f"n{node:04}", cards)
        for at in range(3 if node < share * nodes else 5):
            held = grant(f"{node}-{at}", 1000 + 7 * node, 100)
            fleet.add_pod(f"{node}-{at}", "x", f"n{node:04}", PodGrants(containers=((held,),)))


class Rig:
    """A state on whose clock time passes only by trying pods on nodes, a microsecond a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.state = ClusterState(rules_of(settings(), VENDORS), self.clock)
        self.fleet = self.state.books.fleet
        self.steps = self.tried = 0
        monkeypatch.setattr(slices, "pause", lambda: None)
        monkeypatch.setattr("hami_node.engine.fleet.explain.try_on", self._try_on)

    def _try_on(self, node: NodeOffer, ready: Plan) -> Fitting | Rejection:
        steps = steps_to_try(len(node.cards), ready)
        self.steps, self.tried = self.steps + steps, self.tried + 1
        self.clock.advance(steps / STEPS_PER_S)
        return try_on(node, ready)

    def refuse(self, request: PodRequest) -> dict[str, Rejection] | None:
        """One attempt with its reasons; None if the search has not ended. Counts its steps."""
        self.steps = self.tried = 0
        answer = self.state.reserve(Pod(uid="u", namespace="team", name="p"), request, None)
        if isinstance(answer, Busy):
            return None
        assert isinstance(answer, NoNode)
        reasons = self.state.explain(request, None, answer)
        assert isinstance(reasons, dict)
        return reasons


def steps_of(request: PodRequest, cards: int = CARDS) -> int:
    ready = plan(request, Rules())
    assert isinstance(ready, Plan)
    return steps_to_try(cards, ready)


def most_steps(request: PodRequest) -> int:
    """Of an attempt: the last try of each slice and of the reasons begins while there is time."""
    return DECISION_STEPS + LEAST_EXPLAIN_STEPS + MOST_SLICES * steps_of(request)


@pytest.mark.parametrize("nodes", [0, 100, 5_000, 25_000])
def test_reasons_get_what_the_search_has_left(nodes: int) -> None:
    before = MOST_EXPLAIN_STEPS
    for took in range(0, 2 * DECISION_STEPS, 100):
        steps = explain_steps(took / STEPS_PER_S, nodes)
        assert LEAST_EXPLAIN_STEPS <= steps <= before
        assert steps == LEAST_EXPLAIN_STEPS or took + steps + nodes <= DECISION_STEPS
        before = steps
    assert before == LEAST_EXPLAIN_STEPS


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("nodes", [60, 120, 240])
def test_refusal_with_its_reasons_costs_no_more_than_a_decision(
    monkeypatch: pytest.MonkeyPatch, nodes: int, share: float
) -> None:
    rig, request = Rig(monkeypatch), greedy()
    fill(rig.fleet, nodes, share)
    attempts = unfinished = 0
    while True:
        reasons = rig.refuse(request)
        attempts += 1
        assert rig.steps <= most_steps(request)
        assert attempts <= nodes
        if reasons is None:
            unfinished += 1
            continue
        assert len(reasons) == nodes
        if all(why.whole is not Reason.TOO_LITTLE_ROOM for why in reasons.values()):
            break
    assert unfinished == int(share * nodes * steps_of(request) / DECISION_STEPS)
    ready = plan(request, rig.fleet.rules)
    assert isinstance(ready, Plan)
    for name, why in reasons.items():
        exact = place_on(rig.fleet.nodes[name].offer(), ready)
        assert isinstance(exact, Rejection)
        assert why.text() == exact.text()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_small_cluster_gets_all_reasons_at_once(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    rig = Rig(monkeypatch)
    fill(rig.fleet, 60, share)
    reasons = rig.refuse(greedy(0))
    assert reasons is not None
    assert len(reasons) == 60
    assert not any(why.whole is Reason.TOO_LITTLE_ROOM for why in reasons.values())


def test_search_that_took_all_the_time_still_gives_some_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, request = Rig(monkeypatch), greedy()
    fill(rig.fleet, 100, 0.0)
    assert rig.fleet.place(request) == NoNode()
    assert rig.tried == 0
    reasons = rig.state.explain(request, None, NoNode(took_s=1.0))
    assert isinstance(reasons, dict)
    assert len(reasons) == 100
    exact = sum(why.whole is None for why in reasons.values())
    assert exact == rig.tried == LEAST_EXPLAIN_STEPS // (LOOK_STEPS + steps_of(request))


def linked_nodes(nodes: int, cards: int) -> Fleet:
    """Links without any symmetry, which take longest to choose by."""
    draw, fleet = random.Random(3), Fleet(Rules())
    for node in range(nodes):
        own = [device(at, uuid=Uuid(f"{node}-{at}")) for at in range(cards)]
        scores = {
            a.uuid: {b.uuid: draw.randrange(1000) for b in own if b.index > a.index} for a in own
        }
        fleet.set_node(f"n{node:04}", own, pair_scores=scores)
        held = grant(f"{node}-0", 1000 + node, 100)
        fleet.add_pod(f"p{node}", "x", f"n{node:04}", PodGrants(containers=((held,),)))
    return fleet


@pytest.mark.parametrize("cards", [8, 12, 16])
def test_reasons_of_linked_pods_count_the_choice_by_links(
    monkeypatch: pytest.MonkeyPatch, cards: int
) -> None:
    fleet = linked_nodes(80, cards)
    request = pod_of(ask(cards // 2, 8000, 100), ask(cards, 8000, 100), policy="topology-aware")
    weighed = 0
    take = LinkSteps.take

    def counted(self: LinkSteps, number: int) -> bool:
        nonlocal weighed
        weighed += number
        return take(self, number)

    monkeypatch.setattr(LinkSteps, "take", counted)
    effort = Effort(MOST_EXPLAIN_STEPS)
    assert fleet.place(request) == NoNode()
    weighed = 0
    found = fleet.explain(request, effort=effort)
    assert isinstance(found, dict)
    assert len(found) == 80
    assert 1 <= effort.tried <= MOST_EXPLAIN_STEPS // steps_of(request, cards)
    assert weighed <= 2 * MOST_EXPLAIN_STEPS  # two of them take about a microsecond


def test_node_that_takes_more_than_all_effort_is_not_tried_for_its_reasons() -> None:
    fleet = linked_nodes(10, 32)
    request = pod_of(ask(16, 8000, 100), ask(32, 8000, 100), policy="topology-aware")
    assert fleet.place(request) == NoNode()
    effort = Effort(MOST_EXPLAIN_STEPS)
    found = fleet.explain(request, effort=effort)
    assert isinstance(found, dict)
    assert effort.tried == 0
    assert [why.whole for why in found.values()] == [Reason.TOO_LITTLE_ROOM] * 10
