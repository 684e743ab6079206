"""Whatever happens between attempts, `place` answers like trying every node exactly.

The fleet remembers which nodes have refused a request, and passes over nodes by sums over all
containers. Neither may ever lose a node that fits, or take one that does not.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Rejection
from hami_node.engine.fleet import memory
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.fleet.needs import needs
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
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.ranking import node_score
from hami_node.engine.usage import PodGrants
from hami_node.model import (
    Ask,
    CardWishes,
    ContainerKind,
    Device,
    PairScores,
    PodWishes,
    Uuid,
    UuidWish,
)
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


def exactly(fleet: Fleet, quotas: QuotaBook, request: PodRequest) -> Placed | NoNode:
    """The answer by placing the pod on every node."""
    ready = plan(request, fleet.rules, quotas.quota(request.namespace))
    assert isinstance(ready, Plan)
    sign = 1 if (request.wishes.node_policy or fleet.rules.node_policy) == "spread" else -1
    fitting: list[tuple[float, str, PodGrants]] = []
    for name, node in fleet.nodes.items():
        answer = place_on(node.offer(), ready)
        if node.is_registered and not isinstance(answer, Rejection):
            fitting.append((sign * node_score(node.usage.cards.values()), name, answer))
    if not fitting:
        return NoNode()
    _, name, grants = min(fitting, key=lambda entry: entry[:2])
    return Placed(node=name, grants=grants)


@settings(max_examples=150)
@given(st.data(), COMPATS)
def test_place_answers_like_the_exact_engine_through_any_changes(
    data: st.DataObject, compat: Compat
) -> None:
    fleet, quotas = data.draw(fleets(compat))
    requests = data.draw(st.lists(REQUESTS, min_size=1, max_size=3))
    for number in range(8):
        request = data.draw(st.sampled_from(requests))
        if data.draw(st.booleans()):
            request = replace(request, namespace=data.draw(st.sampled_from(["team", "free"])))
        answer = fleet.place(request)
        assert answer == exactly(fleet, quotas, request)
        if isinstance(answer, Placed) and data.draw(st.booleans()):
            fleet.add_pod(f"pod-{number}", request.namespace, answer.node, answer.grants)
        if data.draw(st.booleans()):
            _check_reasons(fleet, quotas, request)
        data.draw(st.composite(lambda draw: change(draw, fleet, quotas))())


def _check_reasons(fleet: Fleet, quotas: QuotaBook, request: PodRequest) -> None:
    ready = plan(request, fleet.rules, quotas.quota(request.namespace))
    assert isinstance(ready, Plan)
    found = fleet.explain(request)
    assert isinstance(found, dict)
    for name, node in fleet.nodes.items():
        if node.is_registered:
            answer = place_on(node.offer(), ready)
            expected = answer.text() if isinstance(answer, Rejection) else None
            assert (found[name].text() if name in found else None) == expected


@settings(max_examples=300)
@given(st.data(), COMPATS, REQUESTS)
def test_node_without_enough_for_all_containers_is_refused_by_the_exact_engine(
    data: st.DataObject, compat: Compat, request: PodRequest
) -> None:
    """Every bound is a necessary condition."""
    fleet = Fleet(Rules(compat=compat))
    fleet.set_node("n0", data.draw(devices(0)))
    for number in range(data.draw(st.integers(0, 3))):
        held = grant(uuid_of(0, number), data.draw(st.sampled_from([1, 5000, 9000])), 25)
        fleet.add_pod(str(number), "free", "n0", PodGrants(containers=((held,),)))
    ready = plan(request, fleet.rules)
    assert isinstance(ready, Plan)
    fleet.catch_up()
    node = fleet.nodes["n0"]
    kinds = {node.kinds[uuid]: usage.device for uuid, usage in node.usage.cards.items()}
    wanted = needs(ready, kinds)
    assert node.summary is not None
    is_hopeless = wanted.impossible or not (
        wanted.may_fit(node.summary.bounds) and wanted.has_rooms(node.summary)
    )
    if is_hopeless:
        assert isinstance(place_on(node.offer(), ready), Rejection)


# -- worked examples ------------------------------------------------------------------------------
def _request(*asks: Ask, wishes: PodWishes | None = None, namespace: str = "free") -> PodRequest:
    return PodRequest(
        namespace=namespace,
        containers=tuple(ContainerAsks(kind=ContainerKind.APP, asks=(item,)) for item in asks),
        wishes=wishes or PodWishes(),
    )


def _fleet(nodes: int, idle: int = 4) -> Fleet:
    """Nodes of 8 cards, of which so many are unused, the others full; all in different states."""
    fleet = Fleet(Rules(compat=V2_10))
    for node in range(nodes):
        cards = [device(index, uuid=uuid_of(node, index), numa=index // 4) for index in range(8)]
        fleet.set_node(f"n{node}", cards)
        for index in range(idle // 2, 4):
            for at in (index, index + 4):
                held = grant(uuid_of(node, at), 1000 + 8 * node + at, 100)
                fleet.add_pod(f"{node}-{at}", "x", f"n{node}", PodGrants(containers=((held,),)))
    return fleet


class Trials:
    """Counts how often a node is tried exactly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr("hami_node.engine.fleet.explain.try_on", self)

    def __call__(self, node: NodeOffer, ready: Plan) -> Fitting | Rejection:
        self.count += 1
        return try_on(node, ready)


WHOLE_3, WHOLE_2 = ask(3, 8000, 100), ask(2, 8000, 100)
BOUND = PodWishes(cards=((NVIDIA, CardWishes(is_numa_bound=True)),))


@pytest.mark.parametrize(
    "request_",
    [
        _request(WHOLE_3, WHOLE_2),
        _request(ask(1, 9000, 60), ask(4, 9000, 60)),
        _request(ask(4, 4000, 100), ask(1, 4000, 0)),
        _request(ask(4, 9000, 0), ask(2, 9000, 0), ask(1, 100, 0)),
        _request(ask(4, 8000, 100), wishes=BOUND),
        _request(WHOLE_2, WHOLE_3, wishes=PodWishes(gpu_policy="topology-aware")),
        _request(ask(2, 4000, 30), ask(4, 4000, 71)),
        _request(ask(2, 4000, 30), ask(2, 4000, 71), ask(2, 4000, 72)),
        _request(ask(2, 4000, 60), ask(2, 4000, 60), ask(1, 4000, 50), wishes=BOUND),
    ],
    ids=["whole", "cores", "beside-whole", "memory", "numa", "links", "dealt", "three", "in-numa"],
)
def test_nodes_where_containers_fit_alone_but_not_together_are_not_tried(
    request_: PodRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(monkeypatch)
    assert _fleet(20).place(request_) == NoNode()
    assert trials.count == 0


def _deep(memory_mib: int = 4000) -> PodRequest:
    """Is refused only by trying: too many sizes to deal the cards out, in an order by NUMA node."""
    tiny = (ask(1, 1 + number, 0) for number in range(5))
    wishes = PodWishes(gpu_policy="numa,spread")
    return _request(ask(2, memory_mib, 30), ask(4, memory_mib, 71), *tiny, wishes=wishes)


def test_refused_group_is_not_tried_again_until_something_changes_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, trials = _fleet(20), Trials(monkeypatch)
    assert fleet.place(_deep()) == NoNode()
    first = trials.count
    assert first == 20
    assert fleet.place(_deep()) == NoNode()
    assert fleet.place(replace(_deep(), namespace="other")) == NoNode()
    assert trials.count == first
    fleet.add_pod("new", "x", "n3", PodGrants(containers=((grant(uuid_of(3, 2), 1, 0),),)))
    assert fleet.place(_deep()) == NoNode()
    assert trials.count == first + 1
    fleet.remove_pod("3-2")
    fleet.remove_pod("3-3")
    assert isinstance(fleet.place(_deep()), Placed)


def test_equal_nodes_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, trials = Fleet(Rules(compat=V2_10)), Trials(monkeypatch)
    for node in range(30):
        fleet.set_node(f"n{node}", [device(i, uuid=uuid_of(node, i)) for i in range(4)])
    assert fleet.place(_deep()) == NoNode()
    assert trials.count == 1


def test_reasons_are_found_once_for_place_and_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, trials = _fleet(20), Trials(monkeypatch)
    assert fleet.place(_deep()) == NoNode()
    reasons = fleet.explain(_deep())
    assert isinstance(reasons, dict)
    assert len(reasons) == trials.count == 20


def test_many_requests_are_remembered_and_the_oldest_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "MOST_REQUESTS", 10)
    fleet, trials = _fleet(5), Trials(monkeypatch)
    for _ in range(2):
        for number in range(10):
            assert fleet.place(_deep(4000 + number)) == NoNode()
    assert trials.count == 50
    assert fleet.place(_deep(5000)) == NoNode()
    assert fleet.place(_deep(4009)) == NoNode()
    assert trials.count == 55
    assert fleet.place(_deep(4000)) == NoNode()
    assert trials.count == 60


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_ANSWERS", 100)
    fleet, trials = _fleet(30), Trials(monkeypatch)
    for number in range(20):
        fleet.place(_deep(4000 + number))
    before = trials.count
    fleet.place(_deep(4019))
    assert trials.count == before
    fleet.place(_deep(4000))
    assert trials.count == before + 30


@pytest.mark.parametrize(("limit", "most"), [("MOST_REQUESTS", 10), ("MOST_ANSWERS", 200)])
def test_tenant_with_a_hundred_kinds_of_pods_pushes_out_only_its_own(
    limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, limit, most)
    fleet, trials = _fleet(30 if limit == "MOST_ANSWERS" else 5), Trials(monkeypatch)
    assert fleet.place(replace(_deep(3999), namespace="quiet")) == NoNode()
    for number in range(100):
        assert fleet.place(replace(_deep(4000 + number), namespace="loud")) == NoNode()
    before = trials.count
    assert fleet.place(replace(_deep(3999), namespace="quiet")) == NoNode()
    assert fleet.place(replace(_deep(4099), namespace="loud")) == NoNode()
    assert trials.count == before
    assert fleet.place(replace(_deep(4000), namespace="loud")) == NoNode()
    assert trials.count > before


def test_what_all_tenants_remember_together_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_REQUESTS", 10)
    fleet = _fleet(3)
    for number in range(60):
        fleet.place(replace(_deep(4000 + number), namespace=f"team-{number % 20}"))
        assert len(fleet._memory._explainers) <= 10


def test_quota_out_of_reach_shares_what_is_known_and_one_in_reach_does_not() -> None:
    quotas = QuotaBook()
    quotas.set_limits("team", "q", Limits(memory_mib=10_000))
    fleet = Fleet(Rules(compat=V2_10), quotas)
    fleet.set_node("n", [device(i, uuid=uuid_of(0, i)) for i in range(4)])
    small, large = _request(ask(2, 4000)), _request(ask(3, 4000))
    assert isinstance(fleet.place(replace(small, namespace="team")), Placed)
    assert isinstance(fleet.place(large), Placed)
    assert fleet.place(replace(large, namespace="team")) == NoNode()
    quotas.use("team", 4000, 0)
    assert fleet.place(replace(small, namespace="team")) == NoNode()
    assert isinstance(fleet.place(small), Placed)


@pytest.mark.parametrize(("count", "is_exact"), [(8, True), (16, False)])
def test_answer_tells_whether_the_best_linked_cards_were_found(count: int, is_exact: bool) -> None:
    size, stream = (32, random.Random(3))
    fleet = Fleet(Rules(compat=V2_10))
    cards = [device(index, uuid=uuid_of(0, index)) for index in range(size if count == 16 else 16)]
    scores = {
        a.uuid: {b.uuid: stream.randrange(1000) for b in cards if b.index > a.index} for a in cards
    }
    fleet.set_node("n", cards, pair_scores=scores)
    answer = fleet.place(_request(ask(count), wishes=PodWishes(gpu_policy="topology-aware")))
    assert isinstance(answer, Placed)
    assert answer.is_exact is is_exact
    assert len(answer.grants.containers[0]) == count


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
def test_mixed_vendors_and_divided_cards_answer_exactly(seed: int, compat: Compat) -> None:
    draw, quotas = Draw(seed), QuotaBook()
    fleet = Fleet(Rules(compat=compat), quotas)
    for number in range(6):
        fleet.set_node(f"n{number}", draw.devices(number))
    requests = [request for request in (draw.request() for _ in range(6)) if not request.is_empty]
    for number in range(40):
        request = draw.pick(*requests)
        answer = fleet.place(request)
        assert answer == exactly(fleet, quotas, request)
        if isinstance(answer, Placed):
            fleet.add_pod(f"pod-{number}", request.namespace, answer.node, answer.grants)
        if number % 3 == 2:
            fleet.remove_pod(f"pod-{draw.number(number)}")
        if number % 7 == 6:
            fleet.set_node("n1", draw.devices(1))


def test_long_lists_of_one_tenant_count_as_much_as_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An annotation lists 60,000 cards in 256 KiB: 256 such requests would take a gigabyte."""
    monkeypatch.setattr(memory, "MOST_ANSWERS", 50_000)
    fleet = Fleet(Rules(compat=V2_10))
    fleet.set_node("n1", [device(0, uuid=Uuid("only"))])
    modest = PodRequest(namespace="team", containers=(one_ask(4096),))
    fleet.place(modest)
    for number in range(40):
        listed = UuidWish(use=frozenset(f"{number}-{card}" for card in range(3_000)))
        wishes = PodWishes(cards=((NVIDIA, CardWishes(uuids=listed)),))
        fleet.place(PodRequest(namespace="greedy", containers=(one_ask(1024),), wishes=wishes))
    explainers = vars(vars(fleet)["_memory"])["_explainers"].values()
    kept = [explainer.namespace for explainer in explainers]
    assert kept.count("greedy") <= 8
    assert kept.count("team") == 1


def one_ask(memory_mib: int) -> ContainerAsks:
    return ContainerAsks(kind=ContainerKind.APP, asks=(ask(memory_mib=memory_mib),))
