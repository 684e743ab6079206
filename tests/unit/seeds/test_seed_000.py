"""Specification document 000: how a container gets its cards. Tests by section."""

from __future__ import annotations

from typing import Any

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.place import ContainerAsks, NodeOffer, Plan, PodRequest, Rules, place_on, plan
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.model import Ask, ContainerKind, Uuid
from hami_node.vendors.nvidia.mig import codec as mig_codec
from tests.unit.engine.cards import ask, card, template_card
from tests.unit.seeds.bench import links, place

COMPATS = pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
BOUND = {"nvidia.com/numa-bind": "true"}
TOPOLOGY = "topology-aware"


def _numa(*groups: int) -> list[DeviceUsage]:
    return [card(index, numa=numa) for index, numa in enumerate(groups)]


# -- 3: the filters ------------------------------------------------------------------------------


@COMPATS
@pytest.mark.parametrize(
    ("changes", "used", "wanted", "reason"),
    [
        pytest.param({"healthy": False}, (0, 0, 0), ask(), "CardNotHealth", id="3.3-1-health"),
        pytest.param({}, (10, 0, 0), ask(), "CardTimeSlicingExhausted", id="3.3-4-slots"),
        pytest.param({}, (1, 0, 71), ask(cores=30), "CardInsufficientCore", id="3.3-5-cores"),
        pytest.param({}, (1, 12289, 0), ask(), "CardInsufficientMemory", id="3.3-6-memory"),
        pytest.param(
            {},
            (1, 0, 0),
            ask(cores=100),
            "ExclusiveDeviceAllocateConflict",
            id="3.3-7-exclusive",
        ),
        pytest.param(
            {}, (1, 0, 100), ask(cores=0), "CardComputeUnitsExhausted", id="3.3-7-no-cores-left"
        ),
    ],
)
def test_seed_000_3_3_card_fails_for_its_reason(
    compat: Compat,
    changes: dict[str, Any],
    used: tuple[int, int, int],
    wanted: Ask,
    reason: str,
) -> None:
    bad = card(0, used, **changes)
    assert place([bad], wanted, compat=compat) == f"1/1 {reason}"
    assert place([bad, card(1)], wanted, compat=compat) == "GPU-1"


@COMPATS
@pytest.mark.parametrize(
    ("annotations", "chosen"),
    [
        ({"nvidia.com/use-gpuuuid": "GPU-0,GPU-9"}, "GPU-0"),
        ({"nvidia.com/nouse-gpuuuid": "GPU-1,GPU-2"}, "GPU-0"),
        ({"nvidia.com/use-gpuuuid": "GPU-9"}, "3/3 CardUuidMismatch"),
    ],
)
def test_seed_000_3_3_3_uuids(compat: Compat, annotations: dict[str, str], chosen: str) -> None:
    cards = [card(0), card(1), card(2)]
    assert place(cards, ask(), annotations=annotations, compat=compat) == chosen


# -- 4: NUMA -------------------------------------------------------------------------------------


@COMPATS
@pytest.mark.parametrize(
    ("groups", "count", "chosen"),
    [
        pytest.param((0, 0, 1, 1), 2, "GPU-3+GPU-2", id="one-domain"),
        pytest.param((0, 0, 0, 1), 3, "GPU-2+GPU-1+GPU-0", id="begins-anew-in-the-next-domain"),
        pytest.param((0, 1, 0, 1), 2, "GPU-3+GPU-1", id="domains-are-put-together"),
    ],
)
def test_seed_000_4_2_all_cards_are_of_one_numa_domain(
    compat: Compat, groups: tuple[int, ...], count: int, chosen: str
) -> None:
    assert place(_numa(*groups), ask(count), annotations=BOUND, compat=compat) == chosen


# -- 5: topology ---------------------------------------------------------------------------------
EXAMPLE_5_4 = {(0, 1): 59, (0, 2): 99, (0, 3): 12, (1, 2): 21, (1, 3): 4, (2, 3): 60}
"""Twice the sums 85, 42, 90, 38 of the document, which no whole symmetric scores have."""


@COMPATS
def test_seed_000_5_4_single_card_is_the_worst_linked(compat: Compat) -> None:
    sums = [sum(score for pair, score in EXAMPLE_5_4.items() if at in pair) for at in range(4)]
    assert sums == [2 * 85, 2 * 42, 2 * 90, 2 * 38]
    scores = links(EXAMPLE_5_4)
    cards = _numa(0, 0, 0, 0)
    assert place(cards, ask(), policy=TOPOLOGY, pair_scores=scores, compat=compat) == "GPU-3"


# -- 6: MIG --------------------------------------------------------------------------------------
def _mig(*amounts_mib: int) -> list[str] | str:
    request = PodRequest(
        namespace="team",
        containers=tuple(
            ContainerAsks(kind=ContainerKind.APP, asks=(ask(1, amount, 0),))
            for amount in amounts_mib
        ),
    )
    ready = plan(request, Rules(compat=V2_8))
    assert isinstance(ready, Plan)
    answer = place_on(NodeOffer(cards={Uuid("GPU-0"): template_card()}), ready)
    if not isinstance(answer, PodGrants):
        return answer.text()
    return [mig_codec.joined_uuid(grant) for held in answer.containers for grant in held]


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        pytest.param((5000,), ["GPU-0[0-0]"], id="6.1-first-template-that-holds-it"),
        pytest.param((9000,), ["GPU-0[1-1]"], id="6.2-instance-behind-the-card"),
        pytest.param((20000,), ["GPU-0[2-0]"], id="6.1-template-by-memory"),
        pytest.param((9000, 9000, 5000), ["GPU-0[1-1]", "GPU-0[1-2]", "GPU-0[1-0]"], id="6.2"),
        pytest.param((5000, 9000), "1/1 CardNotFoundCustomFilterRule", id="6.1-template-stays"),
        pytest.param((40000, 40000), "1/1 CardInsufficientMemory", id="6.1-card-is-full"),
        pytest.param((99999,), "1/1 CardInsufficientMemory", id="6.1-more-than-the-card"),
    ],
)
def test_seed_000_6_instances_come_from_the_cards_templates(
    amounts: tuple[int, ...], expected: list[str] | str
) -> None:
    assert _mig(*amounts) == expected
