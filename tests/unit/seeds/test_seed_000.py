"""Specification document 000: how a container gets its cards. Tests by section."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from hami_node.engine.card_rules import filters_after_numa
from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import BEFORE_NUMA, Reason, context, first_failing
from hami_node.engine.place import ContainerAsks, NodeOffer, Plan, PodRequest, Rules, place_on, plan
from hami_node.engine.quota import Quota, QuotaTally
from hami_node.engine.ranking import WEIGHT, device_score
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.model import Ask, ContainerKind, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA, MigReason
from hami_node.vendors.nvidia.mig import codec as mig_codec
from hami_node.vendors.nvidia.node.sharing import offered_cards
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.request import wishes_of
from tests.unit.engine.cards import A100, ask, card, choose, device, template_card
from tests.unit.seeds.bench import VENDORS, links, place

COMPATS = pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
BOUND = {"nvidia.com/numa-bind": "true"}
TOPOLOGY = "topology-aware"


def _numa(*groups: int) -> list[DeviceUsage]:
    return [card(index, numa=numa) for index, numa in enumerate(groups)]


# -- 2: one container on one node ----------------------------------------------------------------
@COMPATS
def test_seed_000_2_2_more_cards_than_the_node_has_is_node_insufficient_device(
    compat: Compat,
) -> None:
    assert place([card(0), card(1)], ask(3), compat=compat) == "NodeInsufficientDevice"


@COMPATS
def test_seed_000_2_3_score_is_ten_times_the_three_shares(compat: Compat) -> None:
    used, wanted = card(used=(3, 6144, 40)), ask(1, 4096, 20)
    shares = (1 + 3) / 10, (20 + 40) / 100, (4096 + 6144) / 16384
    assert WEIGHT == 10
    assert device_score(used, [wanted], compat) == pytest.approx(10 * sum(shares))


@COMPATS
@pytest.mark.parametrize(("policy", "chosen"), [("binpack", "GPU-0"), ("spread", "GPU-1")])
def test_seed_000_2_3_binpack_fills_used_cards_and_spread_takes_idle_ones(
    compat: Compat, policy: str, chosen: str
) -> None:
    assert place([card(0, (3, 6144, 40)), card(1)], ask(), policy=policy, compat=compat) == chosen


@COMPATS
def test_seed_000_2_3_what_a_container_took_is_used_for_the_next(compat: Compat) -> None:
    cards = [card(0), card(1)]
    assert place(cards, ask(2, 9000), ask(1, 9000), compat=compat) == "2/2 CardInsufficientMemory"
    assert place(cards, ask(2, 9000), ask(1, 7000), compat=compat) == "GPU-1+GPU-0 GPU-1"


# -- 3: the filters ------------------------------------------------------------------------------
def test_seed_000_3_2_first_of_the_filters_in_the_documents_order_gives_the_reason() -> None:
    """A card that fails all of them is mended filter by filter."""
    wanted = ask(1, 6000, 100)
    annotations = {
        "nvidia.com/use-gputype": "H100",
        "nvidia.com/use-gpuuuid": "GPU-other",
        "hami.io/gpu-scheduler-policy": "spread",
    }
    wishes = wishes_of(annotations, VENDORS).of(NVIDIA)
    full_quota = QuotaTally.start(Quota(memory_limit_mib=1), V2_8)
    ctx = context(wanted, wishes, V2_8, quota=full_quota)
    bad = template_card(0, healthy=False, model="Tesla T4", slots=1, memory_mib=10000)
    bad = replace(bad, slots_used=1, memory_used_mib=9000, cores_used=10)
    found = []

    def look() -> None:
        rules = (*BEFORE_NUMA, *filters_after_numa(NVIDIA, V2_8))
        found.append(first_failing(bad, ctx, rules))

    look()
    bad = replace(bad, device=replace(bad.device, healthy=True))
    look()
    bad = replace(bad, device=replace(bad.device, model="NVIDIA H100"))
    look()
    ctx = replace(ctx, wishes=replace(wishes, uuids=wishes_of({}, VENDORS).of(NVIDIA).uuids))
    look()
    bad = replace(bad, device=replace(bad.device, slots=7))
    look()
    bad = replace(bad, cores_used=0)
    look()
    bad = replace(bad, memory_used_mib=0)
    look()
    bad = replace(bad, slots_used=0)
    look()
    ctx = replace(ctx, quota=None)
    bad = replace(bad, device=replace(bad.device, memory_mib=99999))
    ctx = replace(ctx, ask=replace(wanted, memory_mib=50000))
    look()
    ctx = replace(ctx, ask=wanted)
    look()
    assert found == [
        Reason.NOT_HEALTHY,
        Reason.TYPE_MISMATCH,
        Reason.UUID_MISMATCH,
        Reason.NO_SLOT,
        Reason.TOO_FEW_CORES,
        Reason.TOO_LITTLE_MEMORY,
        Reason.NOT_EXCLUSIVE,
        Reason.OVER_QUOTA,
        MigReason.NO_TEMPLATE,
        None,
    ]


@COMPATS
def test_seed_000_3_2_cards_are_taken_until_the_count_is_reached(compat: Compat) -> None:
    cards = [card(0), card(1, healthy=False), card(2), card(3)]
    assert place(cards, ask(2), compat=compat) == "GPU-3+GPU-2"
    assert place(cards, ask(3), compat=compat) == "GPU-3+GPU-2+GPU-0"


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
    ("annotations", "fits"),
    [
        ({"nvidia.com/use-gputype": "a100"}, True),
        ({"nvidia.com/use-gputype": "H100,A100"}, True),
        ({"nvidia.com/use-gputype": "H100"}, False),
        ({"nvidia.com/nouse-gputype": "A100"}, False),
        ({"nvidia.com/nouse-gputype": "H100"}, True),
        ({"nvidia.com/vgpu-mode": "hami-core"}, True),
        ({"nvidia.com/vgpu-mode": "mig"}, False),
        ({"nvidia.com/vgpu-mode": "mps"}, False),
    ],
)
def test_seed_000_3_3_2_type_and_mode(
    compat: Compat, annotations: dict[str, str], fits: bool
) -> None:
    answer = place([card(model=A100)], ask(), annotations=annotations, compat=compat)
    assert answer == ("GPU-0" if fits else "1/1 CardTypeMismatch")


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


@COMPATS
def test_seed_000_3_3_4_split_count_is_the_number_of_tasks(compat: Compat) -> None:
    (offered,) = offered_cards((device(),), NvidiaSettings(split_count=2))
    cards = [DeviceUsage(device=offered)]
    small = ask(memory_mib=1, cores=1)
    assert place(cards, small, small, compat=compat) == "GPU-0 GPU-0"
    assert place(cards, small, small, small, compat=compat) == "1/1 CardTimeSlicingExhausted"


@COMPATS
def test_seed_000_3_3_5_more_than_100_cores_are_100(compat: Compat) -> None:
    assert place([card()], ask(cores=250), compat=compat) == "GPU-0"
    used = [card(used=(0, 0, 1))]
    assert place(used, ask(cores=250), compat=compat) == "1/1 CardInsufficientCore"


@COMPATS
def test_seed_000_3_3_6_percentage_is_of_the_cards_memory(compat: Compat) -> None:
    half = ask(memory_mib=None, memory_percent=50)
    assert place([card(used=(1, 8192, 0))], half, compat=compat) == "GPU-0"
    full = [card(used=(1, 8193, 0))]
    assert place(full, half, compat=compat) == "1/1 CardInsufficientMemory"


@COMPATS
def test_seed_000_3_3_8_quota_of_the_namespace_counts_all_cards_of_the_pod(compat: Compat) -> None:
    cards = [card(0), card(1)]
    quota = Quota(memory_limit_mib=10000, memory_used_mib=1000)
    assert place(cards, ask(2, 4500), quota=quota, compat=compat) == "GPU-1+GPU-0"
    answer = place(cards, ask(1, 4500), ask(1, 4501), quota=quota, compat=compat)
    assert answer == "2/2 ResourceQuotaNotFit"
    cores = Quota(core_limit=50)
    assert place(cards, ask(cores=51), quota=cores, compat=compat) == "2/2 ResourceQuotaNotFit"


# -- 4: NUMA -------------------------------------------------------------------------------------
@COMPATS
@pytest.mark.parametrize("word", ["true", "1", "t", "TRUE", "True", "T"])
def test_seed_000_4_1_true_words_bind(compat: Compat, word: str) -> None:
    cards = _numa(0, 0, 1)
    annotations = {"nvidia.com/numa-bind": word}
    assert place(cards, ask(2), annotations=annotations, compat=compat) == "GPU-1+GPU-0"


@COMPATS
@pytest.mark.parametrize("word", ["false", "0", "yes", ""])
def test_seed_000_4_1_other_words_do_not_bind(compat: Compat, word: str) -> None:
    cards = _numa(0, 0, 1)
    annotations = {"nvidia.com/numa-bind": word}
    assert place(cards, ask(2), annotations=annotations, compat=compat) == "GPU-2+GPU-1"


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


@COMPATS
def test_seed_000_4_2_no_domain_is_large_enough_is_numa_not_fit(compat: Compat) -> None:
    answer = place(_numa(0, 0, 1, 1), ask(3), annotations=BOUND, compat=compat)
    assert "4 NumaNotFit" in answer


# -- 5: topology ---------------------------------------------------------------------------------
EXAMPLE_5_5 = {(0, 1): 80, (0, 2): 45, (0, 3): 30, (1, 2): 50, (1, 3): 35, (2, 3): 60}
EXAMPLE_5_4 = {(0, 1): 59, (0, 2): 99, (0, 3): 12, (1, 2): 21, (1, 3): 4, (2, 3): 60}
"""Twice the sums 85, 42, 90, 38 of the document, which no whole symmetric scores have."""


@COMPATS
def test_seed_000_5_4_single_card_is_the_worst_linked(compat: Compat) -> None:
    sums = [sum(score for pair, score in EXAMPLE_5_4.items() if at in pair) for at in range(4)]
    assert sums == [2 * 85, 2 * 42, 2 * 90, 2 * 38]
    scores = links(EXAMPLE_5_4)
    cards = _numa(0, 0, 0, 0)
    assert place(cards, ask(), policy=TOPOLOGY, pair_scores=scores, compat=compat) == "GPU-3"


@COMPATS
def test_seed_000_5_5_several_cards_are_the_best_linked_combination(compat: Compat) -> None:
    pairs = list(combinations(range(4), 2))
    assert len(pairs) == math.comb(4, 2) == 6
    assert max(pairs, key=lambda pair: EXAMPLE_5_5[pair]) == (0, 1)
    scores = links(EXAMPLE_5_5)
    answer = place(_numa(0, 0, 0, 0), ask(2), policy=TOPOLOGY, pair_scores=scores, compat=compat)
    assert answer == "GPU-1+GPU-0"


@COMPATS
def test_seed_000_5_3_as_many_candidates_as_asked_are_all_taken(compat: Compat) -> None:
    cards = [card(0), card(1, healthy=False), card(2), card(3, (10, 0, 0))]
    scores = links(EXAMPLE_5_5)
    answer = place(cards, ask(2), policy=TOPOLOGY, pair_scores=scores, compat=compat)
    assert answer == "GPU-2+GPU-0"
    answer = place(cards, ask(3), policy=TOPOLOGY, pair_scores=scores, compat=compat)
    assert "AllocatedCardsInsufficientRequest" in answer


@COMPATS
def test_seed_000_5_6_pods_word_chooses_the_topology(compat: Compat) -> None:
    annotations = {"hami.io/gpu-scheduler-policy": TOPOLOGY}
    cards, scores = _numa(0, 0, 0, 0), links(EXAMPLE_5_5)
    assert place(cards, ask(2), pair_scores=scores, compat=compat) == "GPU-3+GPU-2"
    answer = place(cards, ask(2), annotations=annotations, pair_scores=scores, compat=compat)
    assert answer == "GPU-1+GPU-0"


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


def test_seed_000_6_1_card_outside_mig_mode_passes() -> None:
    ctx = context(ask(), wishes_of({}, VENDORS).of(NVIDIA), V2_8)
    own = NVIDIA.own_filters[0].rule
    assert own(card(), ctx) is None
    assert own(template_card(), ctx) is None


def test_seed_000_6_2_instance_is_charged_with_its_own_size() -> None:
    taken = choose(template_card(), 9000)
    assert taken is not None
    grant, after = NVIDIA.grant(template_card(), taken)
    assert (grant.memory_mib, grant.cores) == (10240, 28)
    assert (after.slots_used, after.memory_used_mib, after.cores_used) == (1, 10240, 28)
