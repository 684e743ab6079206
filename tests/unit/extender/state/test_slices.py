"""A long search gives way to other calls, and answers as if it had been done at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from hami_node.engine.filters import Rejection
from hami_node.engine.fleet import memory
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed, Unfinished
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
from hami_node.engine.quota import Limits
from hami_node.engine.usage import PodGrants
from hami_node.extender.rules import rules_of
from hami_node.extender.state import slices
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.decisions import Busy, Reserved
from hami_node.model import ContainerKind, Pod, PodWishes, Uuid
from hami_node.vendors.registry import VENDORS
from tests.fakes.clock import FakeClock, RealClock
from tests.fakes.settings import settings
from tests.unit.engine.cards import ask, device, grant

NODES = 40


def _uuid(node: int, index: int) -> Uuid:
    return Uuid(f"{node}-{index}")


def _fill(fleet: Fleet, nodes: int = NODES) -> None:
    """Nodes in different states that no sum can pass over."""
    for node in range(nodes):
        cards = [device(index, uuid=_uuid(node, index)) for index in range(4)]
        fleet.set_node(f"n{node:03}", cards)
        held = grant(_uuid(node, 0), 1 + node, 0)
        fleet.add_pod(f"p{node}", "x", f"n{node:03}", PodGrants(containers=((held,),)))


def _request(memory_mib: int = 4000) -> PodRequest:
    """Is refused only by trying: too many sizes to deal the cards out, in an order by NUMA node."""
    tiny = (ask(1, 1 + number, 0) for number in range(5))
    asks = (ask(2, memory_mib, 30), ask(4, 4000, 71), *tiny)
    return PodRequest(
        namespace="team",
        containers=tuple(ContainerAsks(kind=ContainerKind.APP, asks=(item,)) for item in asks),
        wishes=PodWishes(gpu_policy="numa,spread"),
    )


def test_search_in_slices_answers_like_one_at_once_while_the_fleet_changes() -> None:
    draw = random.Random(1)
    fleet = Fleet(Rules())
    _fill(fleet)
    found = set[type]()
    for turn in range(30):
        free = draw.randrange(NODES)
        steps, request = 0, _request(4000 + turn)
        while isinstance(answer := fleet.search(request, None, lambda: True), Unfinished):
            steps += 1
            if steps < 20:
                held = grant(_uuid(free, 1), draw.randrange(9000), 10)
                node = f"n{draw.randrange(NODES):03}"
                fleet.add_pod("moving", "x", node, PodGrants(containers=((held,),)))
            if steps == 3:
                cards = [
                    device(index, uuid=_uuid(free, index))
                    for index in range(8 if turn % 3 == 2 else 4)
                ]
                fleet.set_node(f"n{free:03}", cards)
            assert steps < 10 * NODES
        assert answer == fleet.place(request)
        found.add(type(answer))
        fleet.set_node(f"n{free:03}", [])
    assert found == {Placed, NoNode}


def _state(monkeypatch: pytest.MonkeyPatch) -> tuple[ClusterState, Fleet]:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    monkeypatch.setattr(slices, "MOST_SLICES", 10 * NODES)
    state = ClusterState(rules_of(settings(), VENDORS), RealClock())
    fleet = state.books.fleet
    _fill(fleet)
    return state, fleet


def test_other_calls_get_the_lock_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = _state(monkeypatch)
    seen: list[int] = []
    is_over = threading.Event()

    def others() -> None:
        while not is_over.is_set():
            state.catch_up()
            seen.append(1)
            time.sleep(0)

    thread = threading.Thread(target=others, daemon=True)
    thread.start()
    try:
        answer = state.reserve(Pod(uid="u", namespace="team", name="p"), _request(), None)
        before = len(seen)
        assert isinstance(answer, NoNode)
        assert before >= NODES // 2
        reasons = state.explain(_request())
        assert isinstance(reasons, dict)
        assert len(reasons) == NODES
    finally:
        is_over.set()
        thread.join(5)


def test_explanation_survives_nodes_that_vanish_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, fleet = _state(monkeypatch)
    names = [*fleet.nodes, "never-there"]
    gone = iter(list(fleet.nodes)[:0:-1])

    def pause() -> None:
        fleet.remove_node(next(gone, ""))

    monkeypatch.setattr("hami_node.extender.state.slices.pause", pause)
    reasons = state.explain(_request(), names)
    assert isinstance(reasons, dict)
    assert set(reasons) == set(names)
    texts = {why.text() for why in reasons.values()}
    assert "node unregistered" in texts
    assert len(texts) > 1


def test_changes_faster_than_slices_do_not_keep_a_pod_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, fleet = _state(monkeypatch)
    monkeypatch.setattr(slices, "MOST_SLICES", 50)
    turns = iter(range(10**9))

    def pause() -> None:
        for node in range(NODES):
            held = grant(_uuid(node, 1), next(turns) % 5000, 0)
            fleet.add_pod(f"q{node}", "x", f"n{node:03}", PodGrants(containers=((held,),)))

    monkeypatch.setattr("hami_node.extender.state.slices.pause", pause)
    answer = state.reserve(Pod(uid="u", namespace="team", name="p"), _request(), None)
    assert isinstance(answer, Busy)
    assert answer.is_unfinished


def _free(fleet: Fleet, node: int) -> None:
    """A node on which the request fits."""
    fleet.set_node(f"n{node:03}", [device(index, uuid=_uuid(node, index)) for index in range(8)])


def test_decision_has_an_end_and_the_next_attempts_find_the_one_node_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, fleet = _state(monkeypatch)
    monkeypatch.setattr(slices, "MOST_SLICES", 3)
    _free(fleet, NODES - 1)
    pod, attempts = Pod(uid="u", namespace="team", name="p"), 1
    while isinstance(answer := state.reserve(pod, _request(), None), Busy):
        assert answer.is_unfinished
        assert "goes on where this one was" in answer.why
        attempts += 1
        assert attempts <= NODES
    assert attempts > 5
    assert isinstance(answer, Reserved)
    assert answer.placed.node == f"n{NODES - 1:03}"


def test_attempts_get_on_though_more_nodes_change_between_them_than_one_looks_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, fleet = _state(monkeypatch)
    monkeypatch.setattr(slices, "MOST_SLICES", 3)
    last = f"n{NODES - 1:03}"
    _free(fleet, NODES - 1)
    pod, turns = Pod(uid="u", namespace="team", name="p"), 0
    while isinstance(state.reserve(pod, _request(), None), Busy):
        turns += 1
        for node in range(NODES // 2):
            held = grant(_uuid(node, 1), 1 + turns, 0)
            fleet.add_pod(f"q{node}", "x", f"n{node:03}", PodGrants(containers=((held,),)))
        assert turns <= NODES
    assert fleet.node_of("u") == last


def _use_quota(fleet: Fleet) -> None:
    fleet.quotas.use("team", 1, 0)


def _ask_something_else(fleet: Fleet) -> None:
    fleet.place(_request(7000))


def _lose_a_kind_of_cards(fleet: Fleet) -> None:
    fleet.set_node("short-lived", [device(model="a prototype", slots=1)])
    fleet.remove_node("short-lived")


@pytest.mark.parametrize("happens", [_use_quota, _ask_something_else, _lose_a_kind_of_cards])
def test_attempts_get_on_though_all_else_is_forgotten_between_them(
    monkeypatch: pytest.MonkeyPatch, happens: Callable[[Fleet], None]
) -> None:
    state, fleet = _state(monkeypatch)
    monkeypatch.setattr(slices, "MOST_SLICES", 3)
    monkeypatch.setattr(memory, "MOST_REQUESTS", 1)
    fleet.quotas.set_limits("team", "q", Limits(memory_mib=40_000))
    fleet.set_node("large", [device(uuid=Uuid("large"), memory_mib=81_920)])
    _free(fleet, NODES - 1)
    a_share = ContainerAsks(
        kind=ContainerKind.APP, asks=(ask(4, None, 71, memory_percent=25),)
    )  # of the largest card that is more than the quota has left
    first, _, *tiny = _request().containers
    request = replace(_request(), containers=(first, a_share, *tiny))
    pod, turns = Pod(uid="u", namespace="team", name="p"), 0
    while isinstance(state.reserve(pod, request, None), Busy):
        turns += 1
        happens(fleet)
        assert turns <= NODES
    assert fleet.node_of("u") == f"n{NODES - 1:03}"


@pytest.mark.parametrize("seed", range(20))
def test_search_that_was_put_off_takes_only_what_fits_and_refuses_only_what_does_not(
    seed: int,
) -> None:
    draw, fleet = random.Random(seed), Fleet(Rules())
    _fill(fleet)
    found = set[type]()
    for turn in range(12):
        candidates = draw.choice([None, list(fleet.nodes), draw.sample(list(fleet.nodes), 4)])
        request, cuts = _request(4000 + turn), 0
        free = draw.randrange(NODES)
        while isinstance(answer := fleet.search(request, candidates, lambda: True), Unfinished):
            cuts += 1
            if cuts % 3 == 0:
                fleet.put_off(request)
            if cuts < 20 and draw.random() < 0.5:
                node = draw.randrange(NODES)
                held = grant(_uuid(node, 1), draw.randrange(9000), 10)
                fleet.add_pod("moving", "x", f"n{node:03}", PodGrants(containers=((held,),)))
            if cuts == 4 and turn % 2:
                _free(fleet, free)
            assert cuts < 10 * NODES
        ready = plan(request, fleet.rules)
        assert isinstance(ready, Plan)
        names = list(fleet.nodes) if candidates is None else candidates
        if isinstance(answer, Placed):
            assert answer.node in names
            assert place_on(fleet.nodes[answer.node].offer(), ready) == answer.grants
        else:
            assert all(
                isinstance(place_on(fleet.nodes[name].offer(), ready), Rejection) for name in names
            )
        found.add(type(answer))
        cards = [device(index, uuid=_uuid(free, index)) for index in range(4)]
        fleet.set_node(f"n{free:03}", cards)
    assert found == {Placed, NoNode}


class Ticking(FakeClock):
    """A millisecond passes between two looks."""

    def monotonic(self) -> float:
        self.advance(0.001)
        return super().monotonic()


def test_hundred_kinds_of_pods_in_turn_cost_no_more_each_than_one_decision_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "pause", lambda: None)
    state = ClusterState(rules_of(settings(), VENDORS), Ticking())
    fleet, tried = state.books.fleet, 0
    _fill(fleet, 200)

    def counted(node: NodeOffer, ready: Plan) -> Fitting | Rejection:
        nonlocal tried
        tried += 1
        return try_on(node, ready)

    monkeypatch.setattr("hami_node.engine.fleet.explain.try_on", counted)
    for number in range(100):
        tried, pod = 0, Pod(uid=f"u{number}", namespace="team", name="p")
        assert isinstance(state.reserve(pod, _request(4000 + number), None), Busy)
        assert 3 <= tried <= 60
    answer = state.reserve(Pod(uid="other", namespace="b", name="p"), _request(9), None)
    assert isinstance(answer, Busy)
    assert not fleet.pod_count - 200
