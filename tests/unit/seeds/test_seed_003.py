"""Specification document 003: scores of cards and nodes. Tests by section."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.fleet.fleet import Fleet, Placed
from hami_node.engine.place import ContainerAsks, PodRequest, Rules
from hami_node.engine.ranking import Scored, device_score, node_score, visit_order
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.model import Ask, ContainerKind, PodWishes, Uuid
from hami_node.vendors.request import wishes_of
from tests.unit.engine.cards import ask, card, device, grant
from tests.unit.seeds.bench import VENDORS, place

COMPATS = pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])


# -- 3: cards ------------------------------------------------------------------------------------
@COMPATS
def test_seed_003_3_3_numeric_example_is_16_25(compat: Compat) -> None:
    used = card(0, (3, 6144, 40), slots=10, cores=100, memory_mib=16384)
    assert device_score(used, [ask(1, 4096, 20)], compat) == 16.25


@COMPATS
@pytest.mark.parametrize(
    ("wanted", "score"),
    [
        pytest.param(ask(1, 0, 0), 10 * (4 / 10 + 40 / 100 + 6144 / 16384), id="used-score"),
        pytest.param(ask(1, 0, 20), 10 * (4 / 10 + 60 / 100 + 6144 / 16384), id="core-score"),
        pytest.param(ask(1, 4096, 0), 10 * (4 / 10 + 40 / 100 + 10240 / 16384), id="mem-score"),
    ],
)
def test_seed_003_3_2_each_share_is_that_after_the_request(
    compat: Compat, wanted: Ask, score: float
) -> None:
    used = card(0, (3, 6144, 40))
    assert device_score(used, [wanted], compat) == pytest.approx(score)


@pytest.mark.parametrize(("count", "score"), [(1, 16.25), (2, 17.25), (5, 20.25)])
def test_seed_003_3_1_slot_share_adds_the_number_of_cards(count: int, score: float) -> None:
    assert device_score(card(0, (3, 6144, 40)), [ask(count, 4096, 20)], V2_8) == score


# -- 4: order of cards ---------------------------------------------------------------------------
EXAMPLE_4_4 = (("GPU-A", 0, 5.0), ("GPU-B", 0, 15.0), ("GPU-C", 1, 8.0), ("GPU-D", 1, 20.0))


def _visited(policy: str, cards: Sequence[tuple[str, int, float]] = EXAMPLE_4_4) -> list[str]:
    scored = [
        Scored(card(place_at, uuid=uuid, numa=numa), score, place_at)
        for place_at, (uuid, numa, score) in enumerate(cards)
    ]
    order = visit_order(scored, policy, V2_8, is_numa_bound=False)
    return [str(item.card.device.uuid) for item in order]


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("binpack", ["GPU-B", "GPU-A", "GPU-D", "GPU-C"]),
        ("spread", ["GPU-C", "GPU-D", "GPU-A", "GPU-B"]),
    ],
)
def test_seed_003_4_4_worked_example_of_the_visit_order(policy: str, order: list[str]) -> None:
    assert _visited(policy) == order


@pytest.mark.parametrize("policy", ["", "topology-aware", "anything"])
def test_seed_003_4_1_every_other_word_is_spread(policy: str) -> None:
    assert _visited(policy) == _visited("spread")


def test_seed_003_4_2_binpack_takes_the_fullest_and_4_3_spread_the_emptiest_of_a_numa_node() -> (
    None
):
    one_node = [(uuid, 0, score) for uuid, _, score in EXAMPLE_4_4]
    fullest_first = ["GPU-D", "GPU-B", "GPU-C", "GPU-A"]
    assert _visited("binpack", one_node) == fullest_first
    assert _visited("spread", one_node) == fullest_first[::-1]


# -- 5, 6: nodes ---------------------------------------------------------------------------------
EXAMPLE_6_1 = (("Node-A", 1, 25, 20, 7.0), ("Node-B", 3, 70, 65, 21.0), ("Node-C", 0, 0, 0, 0.0))
"""Used cards of 4, percent of cores, percent of memory, score. 3 of 4 cards are 75 percent."""


def _example_cards(used: int, cores: int, memory: int) -> list[DeviceUsage]:
    """Four cards for one task each; what is used is spread over the used ones."""
    loads = [(1, _share(memory * 400, used, at), _share(cores * 4, used, at)) for at in range(used)]
    loads += [(0, 0, 0)] * (4 - used)
    return [card(at, load, slots=1, memory_mib=10000) for at, load in enumerate(loads)]


def _share(total: int, parts: int, at: int) -> int:
    return total // parts + (at < total % parts)


def test_seed_003_5_2_and_6_1_node_scores_of_the_example() -> None:
    found = {
        name: node_score(_example_cards(used, cores, memory))
        for name, used, cores, memory, _ in EXAMPLE_6_1
    }
    assert found == {
        "Node-A": 7.0,
        "Node-B": 21.0,
        "Node-C": 0.0,
    }


def _cluster(compat: Compat, policy: str) -> Fleet:
    fleet = Fleet(Rules(compat=compat, node_policy=policy))
    for name, used, cores, memory, _ in EXAMPLE_6_1:
        usages = _example_cards(used, cores, memory)
        fleet.set_node(
            name,
            [
                device(at, uuid=Uuid(f"{name}-{at}"), slots=1, memory_mib=10000)
                for at in range(len(usages))
            ],
        )
        for at, usage in enumerate(usages):
            if usage.slots_used:
                held = grant(f"{name}-{at}", usage.memory_used_mib, usage.cores_used)
                fleet.add_pod(f"{name}-{at}", "team", name, PodGrants(containers=((held,),)))
    return fleet


def _chosen(fleet: Fleet, annotations: dict[str, str] | None = None, *, count: int = 1) -> str:
    wishes = PodWishes() if annotations is None else wishes_of(annotations, VENDORS)
    asks = (ask(count, 1000, 10),)
    container = ContainerAsks(kind=ContainerKind.APP, asks=asks)
    answer = fleet.place(PodRequest(namespace="team", containers=(container,), wishes=wishes))
    assert isinstance(answer, Placed)
    return answer.node


@COMPATS
def test_seed_003_6_1_binpack_takes_the_fullest_node_and_spread_the_emptiest(
    compat: Compat,
) -> None:
    assert _chosen(_cluster(compat, "binpack")) == "Node-B"
    assert _chosen(_cluster(compat, "spread")) == "Node-C"


@COMPATS
def test_seed_003_6_node_that_does_not_fit_is_left_out_of_the_order(compat: Compat) -> None:
    assert _chosen(_cluster(compat, "binpack"), count=2) == "Node-A"
    assert _chosen(_cluster(compat, "binpack"), count=4) == "Node-C"


@COMPATS
def test_seed_003_6_default_is_binpack_over_nodes_and_spread_over_cards(compat: Compat) -> None:
    assert Rules(compat=compat) == Rules(compat=compat, node_policy="binpack", gpu_policy="spread")


# -- 7: words of the pod -------------------------------------------------------------------------
@COMPATS
def test_seed_003_7_1_pods_node_policy_wins(compat: Compat) -> None:
    spread = {"hami.io/node-scheduler-policy": "spread"}
    binpack = {"hami.io/node-scheduler-policy": "binpack"}
    assert _chosen(_cluster(compat, "binpack"), spread) == "Node-C"
    assert _chosen(_cluster(compat, "spread"), binpack) == "Node-B"


@COMPATS
def test_seed_003_7_2_pods_gpu_policy_wins(compat: Compat) -> None:
    cards = [card(0, (1, 1000, 10)), card(1)]
    binpack = {"hami.io/gpu-scheduler-policy": "binpack"}
    spread = {"hami.io/gpu-scheduler-policy": "spread"}
    assert place(cards, ask(), annotations=binpack, compat=compat) == "GPU-0"
    assert place(cards, ask(), annotations=spread, policy="binpack", compat=compat) == "GPU-1"


# -- 8 to 10 -------------------------------------------------------------------------------------
@COMPATS
def test_seed_003_8_score_of_a_node_is_that_before_the_pod(compat: Compat) -> None:
    """What the pod itself takes does not change which node comes first."""
    fleet = Fleet(Rules(compat=compat, node_policy="binpack"))
    fleet.set_node("large", [device(0, uuid=Uuid("large-0"), memory_mib=100000)])
    fleet.set_node("small", [device(0, uuid=Uuid("small-0"))])
    held = PodGrants(containers=((grant("large-0", 1000, 1),),))
    fleet.add_pod("p", "team", "large", held)
    assert _chosen(fleet) == "large"


@COMPATS
def test_seed_003_9_weight_makes_a_difference_of_0_01_one_of_0_1(compat: Compat) -> None:
    scores = [
        device_score(card(0, (0, used, 0), memory_mib=10000), [ask(1, 0, 0)], compat)
        for used in (3100, 3200)
    ]
    assert scores[1] - scores[0] == pytest.approx(0.1)


@COMPATS
@pytest.mark.parametrize(
    ("policy", "order"),
    [("spread", "GPU-1 GPU-0 GPU-1 GPU-0"), ("binpack", "GPU-1 GPU-1 GPU-1 GPU-1")],
)
def test_seed_003_10_container_changes_what_the_next_one_finds(
    compat: Compat, policy: str, order: str
) -> None:
    asks = [ask(1, 1000, 10)] * 4
    assert place([card(0), card(1)], *asks, policy=policy, compat=compat) == order
