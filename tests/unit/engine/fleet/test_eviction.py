"""Who has to leave a node for a pod: enough by the exact engine, never more than necessary."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Rejection
from hami_node.engine.fleet.eviction import Cleared, Holder, Look, Trial, fewest
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.fleet.kept import place_beside
from hami_node.engine.place import (
    ContainerAsks,
    Plan,
    PodRequest,
    Rules,
    place_on,
    plan,
)
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import PodGrants
from hami_node.model import Ask, ContainerKind, PodWishes, Uuid
from tests.unit.engine.cards import ask, device, grant, wishes_for
from tests.unit.engine.draws import Draw

MIB = 8192
"""A card of these tests."""
SEEDS = 300


def _request(*asks: Ask, wishes: PodWishes | None = None, namespace: str = "team") -> PodRequest:
    return PodRequest(
        namespace=namespace,
        containers=(ContainerAsks(kind=ContainerKind.APP, asks=asks),),
        wishes=wishes or PodWishes(),
    )


def _held(uuid: str, memory_mib: int) -> PodGrants:
    return PodGrants(containers=((grant(uuid, memory_mib, 0),),))


def _fleet(cards: int = 2, quotas: QuotaBook | None = None) -> Fleet:
    fleet = Fleet(Rules(), quotas)
    fleet.set_node(
        "n", [device(i, uuid=Uuid(f"GPU-{i}"), slots=4, memory_mib=MIB) for i in range(cards)]
    )
    return fleet


def _chosen(
    fleet: Fleet, request: PodRequest, *pods: tuple[str, int], gone: Iterable[str] = ()
) -> list[str] | None:
    holders = [Holder(key=key, priority=priority) for key, priority in pods]
    look = Look(gone=frozenset(gone))
    found = fewest(Trial(fleet, request), "n", look, holders)
    return None if found is None else [holder.key for holder in found.holders]


def test_nobody_goes_where_no_end_helps() -> None:
    fleet = _fleet()
    for number in range(2):
        fleet.add_pod(f"p{number}", "team", "n", _held(f"GPU-{number}", MIB))
    asked = _request(ask(memory_mib=2 * MIB, cores=0))
    assert _chosen(fleet, asked, ("p0", 0), ("p1", 0)) is None
    elsewhere = _request(ask(memory_mib=1, cores=0), wishes=wishes_for(use_types=("h200",)))
    assert _chosen(fleet, elsewhere, ("p0", 0), ("p1", 0)) is None
    assert _chosen(fleet, asked) is None


def test_room_of_pods_that_go_anyway_counts() -> None:
    fleet = _fleet(cards=1)
    fleet.add_pod("leaving", "team", "n", _held("GPU-0", MIB // 2))
    fleet.add_pod("staying", "team", "n", _held("GPU-0", MIB // 2))
    asked = _request(ask(memory_mib=MIB, cores=0))
    assert _chosen(fleet, asked, ("staying", 0), gone=("leaving",)) == ["staying"]
    half = _request(ask(memory_mib=MIB // 2, cores=0))
    assert _chosen(fleet, half, ("staying", 0), gone=("leaving",)) == []


def test_quota_is_freed_by_pods_of_the_same_namespace_only() -> None:
    quotas = QuotaBook()
    quotas.set_limits("team", "q", Limits(memory_mib=MIB))
    fleet = _fleet(cards=2, quotas=quotas)
    fleet.add_pod("own", "team", "n", _held("GPU-0", MIB))
    fleet.add_pod("other", "else", "n", _held("GPU-1", MIB))
    asked = _request(ask(memory_mib=MIB, cores=0))
    assert _chosen(fleet, asked, ("other", 0)) is None
    assert _chosen(fleet, asked, ("other", 0), ("own", 0)) == ["own"]


# -- against the exact engine ---------------------------------------------------------------------
class _Drawn:
    """A random node full of pods, and a pod that wants to get there."""

    def __init__(self, seed: int, compat: Compat) -> None:
        self.draw = Draw(seed)
        self.limits = Limits(memory_mib=self.draw.pick(None, 20000, 60000))
        self.rules = Rules(compat=compat)
        self.devices = [each for part in range(2) for each in self.draw.devices(part)]
        self.cordoned = frozenset({Uuid("0-1")}) if self.draw.number(3) == 0 else frozenset()
        self.pods: dict[str, tuple[str, PodGrants]] = {}
        fleet = self.fleet()
        for number in range(12):
            request = self.draw.request()
            answer = NoNode() if request.is_empty else fleet.place(request)
            if isinstance(answer, Placed):
                self.pods[f"p{number}"] = (request.namespace, answer.grants)
                fleet.add_pod(f"p{number}", request.namespace, "n", answer.grants)
        self.request = self.draw.request()
        self.holders = sorted(
            (
                Holder(key=key, priority=self.draw.number(3))
                for key in self.pods
                if self.draw.number(4)
            ),
            key=lambda holder: holder.priority,
        )

    def fleet(self, gone: Iterable[str] = ()) -> Fleet:
        """Built anew without these pods."""
        quotas, left_out = QuotaBook(), set(gone)
        quotas.set_limits("team", "q", self.limits)
        fleet = Fleet(self.rules, quotas)
        fleet.set_node("n", self.devices, cordoned=self.cordoned)
        for key, (namespace, grants) in self.pods.items():
            if key not in left_out:
                fleet.add_pod(key, namespace, "n", grants)
        return fleet

    def fits(self, gone: Iterable[str]) -> bool:
        fleet = self.fleet(gone)
        ready = plan(self.request, self.rules, fleet.quotas.quota(self.request.namespace))
        assert isinstance(ready, Plan)
        return not isinstance(place_on(fleet.nodes["n"].offer(), ready), Rejection)

    def check(self, found: Cleared | None) -> None:
        if found is None:
            assert not self.fits(holder.key for holder in self.holders)
            return
        keys = [holder.key for holder in found.holders]
        assert set(found.holders) <= set(self.holders)
        assert self.fits(keys)
        for size in range(len(keys)) if len(keys) <= 5 else ():
            assert not any(self.fits(some) for some in combinations(keys, size)), keys
        if found.holders:
            most = max(holder.priority for holder in found.holders)
            assert not self.fits(item.key for item in self.holders if item.priority < most)


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
def test_the_chosen_make_room_and_no_part_of_them_does(compat: Compat) -> None:
    sizes = []
    for seed in range(SEEDS):
        drawn = _Drawn(seed, compat)
        if drawn.request.is_empty or not drawn.devices:
            continue
        fleet = drawn.fleet()
        before = fleet.nodes["n"].usage.cards
        found = fewest(Trial(fleet, drawn.request), "n", Look(), drawn.holders)
        drawn.check(found)
        assert fleet.nodes["n"].usage.cards == before
        sizes.append(-1 if found is None else len(found.holders))
    assert {-1, 0, 1} <= set(sizes)
    assert max(sizes) > 1


def test_node_with_other_links_is_tried_by_itself() -> None:
    """Its cards are equal, but other ones of them are taken first."""
    fleet, fitting = Fleet(Rules(compat=V2_10)), {"a": ("a-1", "a-2"), "b": ("b-0", "b-1")}
    for name, best in fitting.items():
        cards = [
            device(index, uuid=Uuid(f"{name}-{index}"), memory_mib=(1 + (index == 2)) * MIB)
            for index in range(3)
        ]
        scores = {Uuid(best[0]): {Uuid(best[1]): 50}, Uuid(best[1]): {Uuid(best[0]): 50}}
        fleet.set_node(name, cards, pair_scores=scores)
    request = PodRequest(
        namespace="team",
        containers=tuple(
            ContainerAsks(kind=ContainerKind.APP, asks=(ask(count, memory_mib, 0),))
            for count, memory_mib in ((2, MIB), (1, MIB + 1))
        ),
        wishes=PodWishes(gpu_policy="topology-aware"),
    )
    for names in ("ab", "ba"):
        trial = Trial(fleet, request)
        fits = {name: trial.grants(name, Look()) is not None for name in names}
        assert fits == {"a": False, "b": True}


# -- beside what is kept --------------------------------------------------------------------------
def _two() -> Fleet:
    fleet = Fleet(Rules())
    for name in "ab":
        fleet.set_node(name, [device(0, uuid=Uuid(f"{name}-0"), slots=4, memory_mib=MIB)])
    return fleet


def _place(fleet: Fleet, memory_mib: int, *nodes: str, **kept: int) -> str | None:
    rooms = {name: (_held(f"{name}-0", mib),) for name, mib in kept.items()}
    asked = _request(ask(memory_mib=memory_mib, cores=0))
    answer = place_beside(fleet, asked, nodes or None, rooms)
    return answer.node if isinstance(answer, Placed) else None


def test_what_is_kept_is_not_given_away() -> None:
    fleet = _two()
    assert _place(fleet, MIB) == "a"
    assert _place(fleet, MIB, a=MIB) == "b"
    assert _place(fleet, MIB, "a", a=MIB) is None
    assert _place(fleet, MIB, a=MIB, b=1) is None


def test_the_rest_of_a_kept_node_is_given() -> None:
    fleet = _two()
    assert _place(fleet, MIB // 2, a=MIB // 2, b=MIB) == "a"
    assert _place(fleet, MIB // 2, a=MIB, b=MIB // 2) == "b"
    assert _place(fleet, MIB // 2 + 1, a=MIB // 2, b=MIB // 2) is None


# -- pods of many containers -----------------------------------------------------------------------
def _of_many(memory_mib: int) -> PodRequest:
    """62 init containers of different sizes, then one card."""
    sizes = [*range(1, 63), memory_mib]
    kinds = [*[ContainerKind.INIT] * 62, ContainerKind.APP]
    return PodRequest(
        namespace="team",
        containers=tuple(
            ContainerAsks(kind=kind, asks=(ask(memory_mib=mib, cores=0),))
            for kind, mib in zip(kinds, sizes, strict=True)
        ),
    )


def test_search_for_victims_of_a_pod_with_many_containers_has_an_end() -> None:
    """It tried a node 336 times under the lock of all decisions, 3 ms each."""
    fleet = Fleet(Rules())
    cards = [device(i, uuid=Uuid(f"GPU-{i}"), slots=10, memory_mib=MIB) for i in range(8)]
    fleet.set_node("n", cards)
    holders = []
    for number in range(80):
        fleet.add_pod(f"p{number}", "team", "n", _held(f"GPU-{number % 8}", MIB // 10))
        holders.append(Holder(key=f"p{number}", priority=number))
    trial = Trial(fleet, _of_many(MIB))
    found = fewest(trial, "n", Look(), holders)
    assert found is not None
    gone = frozenset(holder.key for holder in found.holders)
    assert trial.grants("n", Look(gone=gone)) is not None
    assert trial.count < 20
