"""Whole pods in both generations: where `2.8` and `2.10` choose otherwise, and words both know."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Rejection
from hami_node.engine.place import (
    ContainerAsks,
    NodeOffer,
    Plan,
    PodRequest,
    Rules,
    place_on,
    plan,
)
from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage
from hami_node.model import (
    NO_SCORES,
    Ask,
    ContainerKind,
    PairScores,
    PodWishes,
)
from tests.unit.engine.cards import ask, card

INIT, APP = ContainerKind.INIT, ContainerKind.APP
BOTH = pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])


def _place(
    cards: Sequence[DeviceUsage],
    compat: Compat,
    *containers: Ask,
    policy: str = "spread",
    wishes: PodWishes | None = None,
    quota: Quota | None = None,
    pair_scores: PairScores = NO_SCORES,
    inits: int = 0,
) -> str:
    """The indexes of each container's cards, or the reasons; `inits` containers are first."""
    request = PodRequest(
        namespace="team",
        containers=tuple(
            ContainerAsks(kind=INIT if place < inits else APP, asks=(wanted,))
            for place, wanted in enumerate(containers)
        ),
        wishes=wishes or PodWishes(),
    )
    ready = plan(request, Rules(compat=compat, gpu_policy=policy), quota)
    assert isinstance(ready, Plan)
    node = NodeOffer(cards={usage.device.uuid: usage for usage in cards}, pair_scores=pair_scores)
    answer = place_on(node, ready)
    if isinstance(answer, Rejection):
        return answer.text()
    index = {usage.device.uuid: str(usage.device.index) for usage in cards}
    return " ".join("+".join(index[grant.uuid] for grant in grants) for grants in answer.containers)


def _numa(*groups: int) -> list[DeviceUsage]:
    return [card(index, numa=numa) for index, numa in enumerate(groups)]


# -- order of cards for later containers ---------------------------------------------------------
@pytest.mark.parametrize(
    ("policy", "older", "newer"),
    [
        pytest.param("spread", "2 2 2", "2 1 0", id="spread"),
        pytest.param("binpack", "1 1 1", "2 2 2", id="binpack"),
        pytest.param("no-such-word", "2 2 2", "2 1 0", id="unknown-word"),
        pytest.param("topology-aware", "2 2 2", "2 1 0", id="topology-aware"),
        pytest.param("numa", "2 2 2", "2 2 2", id="numa"),
        pytest.param("spread,numa", "2 2 2", "2 1 0", id="chain"),
    ],
)
def test_later_containers_stay_on_the_first_numa_node_in_2_8(
    policy: str, older: str, newer: str
) -> None:
    cards = _numa(0, 0, 1)
    asks = [ask(memory_mib=1000, cores=10)] * 3
    assert _place(cards, V2_8, *asks, policy=policy) == older
    assert _place(cards, V2_10, *asks, policy=policy) == newer


@BOTH
@pytest.mark.parametrize(("policy", "order"), [("spread", "2 1 0 2"), ("binpack", "2 2 2 2")])
def test_later_containers_see_the_scores_after_the_earlier_ones(
    compat: Compat, policy: str, order: str
) -> None:
    asks = [ask(memory_mib=1000, cores=10)] * 4
    assert _place(_numa(0, 0, 0), compat, *asks, policy=policy) == order


@BOTH
def test_init_container_changes_no_score_for_the_later_ones(compat: Compat) -> None:
    asks = (ask(memory_mib=16000), ask(memory_mib=1000), ask(memory_mib=1000))
    assert _place(_numa(0, 0), compat, *asks, inits=1) == "1 1 0"


# -- the first card ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("policy", "older", "newer"),
    [
        pytest.param("binpack", "1", "3", id="binpack"),
        pytest.param("spread", "2", "0", id="spread"),
        pytest.param("binpack,numa", "3", "3", id="binpack-numa"),
        pytest.param("spread,numa", "2", "0", id="spread-numa"),
    ],
)
def test_numa_node_comes_before_the_score_in_2_8(policy: str, older: str, newer: str) -> None:
    """The seed's four cards: A(0, 5), B(0, 15), C(1, 8), D(1, 20)."""
    loads = ((0, 500), (0, 1500), (1, 800), (1, 2000))
    cards = [card(at, (1, mib, 0), numa=numa) for at, (numa, mib) in enumerate(loads)]
    wanted = ask(memory_mib=1000, cores=0)
    assert _place(cards, V2_8, wanted, policy=policy) == older
    assert _place(cards, V2_10, wanted, policy=policy) == newer


# -- words that HAMi 2.8 did not know ------------------------------------------------------------
@BOTH
@pytest.mark.parametrize("policy", ["mutex", "binpack,mutex", "mutex, numa", "spread,mutex"])
def test_mutex_takes_unused_cards_only(compat: Compat, policy: str) -> None:
    cards = [card(0), card(1, (1, 1, 1)), card(2, (9, 1, 1))]
    assert _place(cards, compat, ask(), policy=policy) == "0"
    assert _place(cards[1:], compat, ask(), policy=policy) == (
        "2/2 ExclusiveDeviceAllocateConflict"
    )
    assert _place(cards[:1], compat, ask(), ask(), policy=policy) == (
        "1/1 ExclusiveDeviceAllocateConflict"
    )


@BOTH
def test_pods_word_wins_over_the_default(compat: Compat) -> None:
    cards = [card(0), card(1, (1, 1, 1))]
    wishes = PodWishes(gpu_policy="mutex")
    assert _place(cards, compat, ask(), policy="binpack") == "1"
    assert _place(cards, compat, ask(), policy="binpack", wishes=wishes) == "0"


@BOTH
@pytest.mark.parametrize(
    ("weights", "first"),
    [
        ("slot=1,core=0,memory=0", "2"),
        ("slot=0,core=1,memory=0", "1"),
        ("slot=0,core=0,memory=1", "0"),
    ],
)
def test_weights_change_the_order(compat: Compat, weights: str, first: str) -> None:
    cards = [card(0, (5, 100, 60)), card(1, (6, 9000, 0)), card(2, (1, 9500, 65))]
    wishes = PodWishes(scoring_weights=weights)
    assert _place(cards, compat, ask(), wishes=wishes) == first


# -- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compat", "answer"),
    [(V2_8, "1/1 ResourceQuotaNotFit"), (V2_10, "0 0")],
    ids=["2.8-sums", "2.10-takes-the-peak"],
)
def test_quota_and_init_containers(compat: Compat, answer: str) -> None:
    quota = Quota(memory_limit_mib=10000)
    asks = (ask(memory_mib=6000), ask(memory_mib=6000))
    assert _place([card()], compat, *asks, quota=quota, inits=1) == answer


@pytest.mark.parametrize(
    ("compat", "answer"),
    [(V2_8, "0"), (V2_10, "1/1 ResourceQuotaNotFit")],
    ids=["2.8-no-limit", "2.10-nothing"],
)
def test_quota_of_zero(compat: Compat, answer: str) -> None:
    assert _place([card()], compat, ask(), quota=Quota(memory_limit_mib=0)) == answer


@pytest.mark.parametrize(
    ("compat", "answer"),
    [
        (V2_8, "1/3 AllocatedCardsInsufficientRequest, 1/3 CardInsufficientCore"),
        (V2_10, "1/3 CardInsufficientMemory, 2/3 AllocatedCardsInsufficientRequest"),
    ],
    ids=["2.8", "2.10"],
)
def test_reason_of_a_card_without_memory_and_cores(compat: Compat, answer: str) -> None:
    cards = [card(0), card(1), card(2, (1, 16000, 90))]
    assert _place(cards, compat, ask(3)) == answer
