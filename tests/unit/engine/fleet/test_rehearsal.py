"""A node is refused in the rehearsal if and only if placing refuses it, in the cases it covers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Rejection
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.fleet.needs import Needs, needs
from hami_node.engine.place import ContainerAsks, Plan, PodRequest, Rules, place_on, plan, try_on
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import PodGrants
from hami_node.model import Ask, CardWishes, ContainerKind, PodWishes, Uuid, UuidWish
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.unit.engine.cards import ask, device, grant

KINDS = st.sampled_from([*([ContainerKind.APP] * 4), ContainerKind.INIT, ContainerKind.SIDECAR])
ASKS = st.builds(
    lambda count, memory_mib, percent, cores: ask(
        count, memory_mib, cores, memory_percent=None if memory_mib is not None else percent
    ),
    st.integers(1, 3),
    st.sampled_from([None, 0, 2000, 4096, 8192]),
    st.sampled_from([None, 25, 50, 100]),
    st.sampled_from([0, 0, 1, 30, 50, 100]),
)
REQUESTS = st.builds(
    lambda containers, policy, weights: PodRequest(
        namespace="free",
        containers=tuple(ContainerAsks(kind=kind, asks=(item,)) for kind, item in containers),
        wishes=PodWishes(gpu_policy=policy, scoring_weights=weights),
    ),
    st.lists(st.tuples(KINDS, ASKS), min_size=2, max_size=4),
    st.sampled_from([None, "binpack", "spread", "mutex", "unknown"]),
    st.sampled_from([None, "slot=1,core=0,memory=3"]),
)


@st.composite
def nodes(draw: st.DrawFn, compat: Compat) -> Fleet:
    fleet = Fleet(Rules(compat=compat))
    count = draw(st.integers(1, 5))
    cards = [
        device(
            index,
            uuid=Uuid(f"c{index}"),
            numa=draw(st.sampled_from([0, 1, None])),
            slots=draw(st.sampled_from([1, 2, 10])),
            memory_mib=draw(st.sampled_from([8192, 16384])),
            cores=draw(st.sampled_from([100, 100, 200])),
            healthy=draw(st.integers(0, 9)) > 0,
        )
        for index in range(count)
    ]
    cordoned = draw(st.sampled_from([frozenset[Uuid](), frozenset({Uuid("c0")})]))
    fleet.set_node("n", cards, cordoned=cordoned)
    for number in range(draw(st.integers(0, 6))):
        uuid = Uuid(f"c{draw(st.integers(0, count - 1))}")
        memory_mib = draw(st.sampled_from([0, 500, 3000]))
        held = grant(uuid, memory_mib, draw(st.sampled_from([0, 20, 50])))
        fleet.add_pod(str(number), "x", "n", PodGrants(containers=((held,),)))
    fleet.catch_up()
    return fleet


def needs_on(fleet: Fleet, ready: Plan) -> Needs:
    state = fleet.nodes["n"]
    return needs(
        ready, {state.kinds[uuid]: card.device for uuid, card in state.usage.cards.items()}
    )


@settings(max_examples=600)
@given(st.data(), st.sampled_from([V2_8, V2_10]), REQUESTS)
def test_rehearsal_says_what_placing_says(
    data: st.DataObject, compat: Compat, request: PodRequest
) -> None:
    fleet = data.draw(nodes(compat))
    ready = plan(request, fleet.rules)
    assert isinstance(ready, Plan)
    rehearsal, state = needs_on(fleet, ready).rehearsal, fleet.nodes["n"]
    steady = [item for item in request.containers if item.kind is not ContainerKind.INIT]
    assert (rehearsal is not None) == (len(steady) > 1)
    if rehearsal is None or state.summary is None:
        return
    is_refused = isinstance(place_on(state.offer(), ready), Rejection)
    may_fit = rehearsal.may_fit(state.summary.rooms)
    assert may_fit or is_refused
    if len(steady) == len(request.containers):
        assert may_fit is not is_refused


def _request(*asks: Ask, wishes: PodWishes | None = None) -> PodRequest:
    return PodRequest(
        namespace="free",
        containers=tuple(ContainerAsks(kind=ContainerKind.APP, asks=(item,)) for item in asks),
        wishes=wishes or PodWishes(gpu_policy="spread"),
    )


SMALL_FIRST = (ask(1, 1000, 10), ask(1, 8000, 100))


def _one_idle_card(nodes: int) -> Fleet:
    """Every node in another state, with one idle card among eight."""
    fleet = Fleet(Rules(compat=V2_10))
    for node in range(nodes):
        uuids = [Uuid(f"{node}-{index}") for index in range(8)]
        fleet.set_node(f"n{node}", [device(at, uuid=uuid) for at, uuid in enumerate(uuids)])
        for at, uuid in enumerate(uuids[1:]):
            held = grant(uuid, 1 + node, 20 + at)
            fleet.add_pod(uuid, "x", f"n{node}", PodGrants(containers=((held,),)))
    return fleet


def test_small_container_that_takes_the_idle_card_is_noticed_without_trying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, tried = _one_idle_card(20), list[Plan]()

    def counted(*args: object) -> object:
        tried.append(args[1])  # type: ignore[arg-type]
        return try_on(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("hami_node.engine.fleet.explain.try_on", counted)
    assert fleet.place(_request(*SMALL_FIRST)) == NoNode()
    assert not tried
    assert isinstance(fleet.place(_request(*reversed(SMALL_FIRST))), Placed)
    fleet.remove_pod("7-3")
    answer = fleet.place(_request(*SMALL_FIRST))
    assert isinstance(answer, Placed)
    assert answer.node == "n7"
    assert len(tried) == 2


@pytest.mark.parametrize(
    "wishes",
    [
        PodWishes(gpu_policy="topology-aware"),
        PodWishes(gpu_policy="numa"),
        PodWishes(gpu_policy="numa,spread"),
        PodWishes(cards=((NVIDIA, CardWishes(is_numa_bound=True)),)),
        PodWishes(cards=((NVIDIA, CardWishes(uuids=UuidWish(nouse=frozenset({"x"})))),)),
    ],
    ids=["links", "numa", "chained", "bound", "named"],
)
def test_what_is_placed_in_another_way_is_not_rehearsed(wishes: PodWishes) -> None:
    fleet = Fleet(Rules(compat=V2_10))
    fleet.set_node("n", [device(0, uuid=Uuid("c"))])
    ready = plan(_request(*SMALL_FIRST, wishes=wishes), fleet.rules)
    assert isinstance(ready, Plan)
    assert needs_on(fleet, ready).rehearsal is None


def test_what_a_quota_may_refuse_is_not_rehearsed() -> None:
    quotas = QuotaBook()
    quotas.set_limits("free", "q", Limits(memory_mib=9_000))
    fleet = Fleet(Rules(compat=V2_10), quotas)
    fleet.set_node("n", [device(0, uuid=Uuid("c"))])
    ready = plan(_request(*SMALL_FIRST), fleet.rules, quotas.quota("free"))
    assert isinstance(ready, Plan)
    assert needs_on(fleet, ready).rehearsal is None
