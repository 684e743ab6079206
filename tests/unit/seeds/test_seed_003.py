"""Specification document 003: scores of cards and nodes. Tests by section."""

from __future__ import annotations

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.fleet.fleet import Fleet, Placed
from hami_node.engine.place import ContainerAsks, PodRequest, Rules
from hami_node.engine.ranking import node_score
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.model import ContainerKind, PodWishes, Uuid
from hami_node.vendors.request import wishes_of
from tests.unit.engine.cards import ask, card, device, grant
from tests.unit.seeds.bench import VENDORS, place

COMPATS = pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])


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


# -- 7: words of the pod -------------------------------------------------------------------------
@COMPATS
def test_seed_003_7_1_pods_node_policy_wins(compat: Compat) -> None:
    spread = {"hami.io/node-scheduler-policy": "spread"}
    binpack = {"hami.io/node-scheduler-policy": "binpack"}
    assert _chosen(_cluster(compat, "binpack"), spread) == "Node-C"
    assert _chosen(_cluster(compat, "spread"), binpack) == "Node-B"


# -- 8 to 10 -------------------------------------------------------------------------------------


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
