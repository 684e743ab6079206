"""Which cards serve an ask: order, NUMA groups, linked sets, reasons."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hami_node.engine.card_rules import Placement
from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import context
from hami_node.engine.place import fit
from hami_node.engine.quota import Quota, QuotaTally
from hami_node.engine.usage import DeviceUsage
from hami_node.model import NO_CARD_WISHES, NO_SCORES, Ask, CardWishes, PairScores, Uuid
from tests.unit.engine.cards import ask, card

BOUND = CardWishes(is_numa_bound=True)


def _fit(
    cards: Sequence[DeviceUsage],
    wanted: Ask,
    *,
    wishes: CardWishes = NO_CARD_WISHES,
    compat: Compat | None = None,
    policy: str = "spread",
    scores: PairScores = NO_SCORES,
    quota: Quota | None = None,
) -> list[int] | str:
    """Indexes in the order taken, or the reasons; without `compat` both generations agree."""
    if compat is None:
        older, newer = (
            _fit(
                cards, wanted, wishes=wishes, compat=each, policy=policy, scores=scores, quota=quota
            )
            for each in (V2_8, V2_10)
        )
        assert older == newer
        return newer
    ctx = context(
        wanted,
        wishes,
        compat,
        policy=policy,
        quota=None if quota is None else QuotaTally.start(quota, compat),
    )
    answer = fit(cards, ctx, policy=policy, pair_scores=scores)
    if isinstance(answer, Placement):
        return [taken.device.index for taken in answer.taken]
    return answer.text()


def _numa(*groups: int | None) -> list[DeviceUsage]:
    """Cards 0, 1, ... visited in that order, with these NUMA nodes."""
    return [card(index, numa=numa) for index, numa in enumerate(groups)]


def test_takes_the_first_cards_that_fit() -> None:
    cards = [card(0, (10, 0, 0)), card(1), card(2, (1, 16000, 0)), card(3), card(4)]
    assert _fit(cards, ask(2)) == [1, 3]


def test_takes_what_was_asked_of_each_card() -> None:
    ctx = context(ask(memory_mib=None, memory_percent=33, cores=250), NO_CARD_WISHES, V2_10)
    answer = fit([card()], ctx)
    assert isinstance(answer, Placement)
    assert (answer.taken[0].memory_mib, answer.taken[0].cores) == (5406, 100)


def test_reasons_count_the_first_filter_of_each_card() -> None:
    cards = [
        card(0, healthy=False),
        card(1, (1, 16000, 0)),
        card(2, (10, 0, 0)),
        card(3, (1, 16000, 0)),
    ]
    expected = "1/4 CardNotHealth, 1/4 CardTimeSlicingExhausted, 2/4 CardInsufficientMemory"
    assert _fit(cards, ask()) == expected


@pytest.mark.parametrize(
    ("compat", "held"), [(V2_8, 1), (V2_10, 2)], ids=["2.8-counts-1", "2.10-counts-cards"]
)
def test_too_few_cards_that_fit(compat: Compat, held: int) -> None:
    cards = [card(0), card(1), card(2, healthy=False)]
    expected = {f"{held}/3 AllocatedCardsInsufficientRequest", "1/3 CardNotHealth"}
    assert set(str(_fit(cards, ask(3), compat=compat)).split(", ")) == expected


def test_no_card_at_all_gives_no_reason() -> None:
    assert _fit([], ask()) == ""


@pytest.mark.parametrize(
    ("groups", "count", "expected"),
    [
        pytest.param([1, 0, 0], 2, [1, 2], id="E42-dropped-at-the-change"),
        pytest.param([0, 0, 1], 2, [0, 1], id="first-group-does"),
        pytest.param([0, 1, 0], 2, [0, 2], id="E44-interleaved-mended"),
        pytest.param([None, None], 1, [0], id="unknown-serves-one"),
        pytest.param(
            [None, None],
            2,
            "1/2 AllocatedCardsInsufficientRequest, 1/2 NumaNotFit",
            id="unknown-is-no-group",
        ),
    ],
)
def test_numa_bound_cards_are_of_one_group(
    groups: list[int | None], count: int, expected: list[int] | str
) -> None:
    assert _fit(_numa(*groups), ask(count), wishes=BOUND) == expected


@pytest.mark.parametrize(
    ("compat", "held"), [(V2_8, 1), (V2_10, 2)], ids=["2.8-counts-1", "E43-2.10-counts-cards"]
)
def test_numa_reasons_where_no_group_is_large_enough(compat: Compat, held: int) -> None:
    answer = _fit(_numa(1, 1, 0, 0), ask(3), wishes=BOUND, compat=compat)
    assert answer == f"{held}/4 AllocatedCardsInsufficientRequest, {held}/4 NumaNotFit"


def test_unhealthy_card_changes_no_numa_group() -> None:
    cards = [card(0, numa=0), card(1, numa=1, healthy=False), card(2, numa=0)]
    assert _fit(cards, ask(2), wishes=BOUND) == [0, 2]


SEED_PAIRS = {(0, 1): 80, (0, 2): 45, (0, 3): 30, (1, 2): 50, (1, 3): 35, (2, 3): 60}


def _scores(pairs: dict[tuple[int, int], int]) -> dict[Uuid, dict[Uuid, int]]:
    scores: dict[Uuid, dict[Uuid, int]] = {}
    for (a, b), score in pairs.items():
        for first, other in ((a, b), (b, a)):
            scores.setdefault(Uuid(f"GPU-{first}"), {})[Uuid(f"GPU-{other}")] = score
    return scores


FOUR = [card(index) for index in (3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(1, [3], id="E45b-worst-linked"),
        pytest.param(2, [1, 0], id="E45-best-pair"),
        pytest.param(3, [2, 1, 0], id="E45-best-three"),
        pytest.param(4, [3, 2, 1, 0], id="E45-all"),
    ],
)
def test_topology_aware_choice_of_the_seed(count: int, expected: list[int]) -> None:
    answer = _fit(FOUR, ask(count), policy="topology-aware", scores=_scores(SEED_PAIRS))
    assert answer == expected


@pytest.mark.parametrize(
    ("compat", "held"), [(V2_8, 1), (V2_10, 4)], ids=["2.8-counts-1", "E45-2.10-counts-cards"]
)
def test_topology_aware_with_too_few_cards(compat: Compat, held: int) -> None:
    scores = _scores(SEED_PAIRS)
    answer = _fit(FOUR, ask(5), policy="topology-aware", scores=scores, compat=compat)
    assert answer == f"{held}/4 AllocatedCardsInsufficientRequest"


def test_topology_aware_single_looks_at_candidates_only() -> None:
    cards = [*FOUR[:3], card(0, healthy=False)]
    assert _fit(cards, ask(), policy="topology-aware", scores=_scores(SEED_PAIRS)) == [1]


@pytest.mark.parametrize(("count", "expected"), [(1, [3]), (2, [3, 2])])
def test_topology_aware_without_scores_takes_the_first(count: int, expected: list[int]) -> None:
    assert _fit(FOUR, ask(count), policy="topology-aware") == expected


def test_quota_counts_cards_taken_for_the_same_ask() -> None:
    answer = _fit([card(0), card(1)], ask(2, 6000), quota=Quota(memory_limit_mib=10000))
    assert answer == "1/2 AllocatedCardsInsufficientRequest, 1/2 ResourceQuotaNotFit"


def test_quota_of_a_left_numa_group_is_given_back() -> None:
    answer = _fit(_numa(0, 1, 1), ask(2, 4000), wishes=BOUND, quota=Quota(memory_limit_mib=8000))
    assert answer == [1, 2]
