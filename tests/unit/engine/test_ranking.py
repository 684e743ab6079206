"""Scores, orders and policies, with the numbers of the worked examples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.ranking import (
    Scored,
    Weights,
    _usual,
    device_score,
    has_word,
    node_score,
    parse_weights,
    visit_order,
    words,
)
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask
from hami_node.vendors.neuron.cards import NEURON
from tests.unit.engine.cards import ask, card

BUSY = (3, 6144, 40)


def _ask(count: int, memory_mib: int | None, percent: int | None, cores: int) -> Ask:
    return ask(count, memory_mib, cores, memory_percent=percent)


@pytest.mark.parametrize(
    ("wanted", "compat", "weights", "score"),
    [
        pytest.param(_ask(1, 4096, None, 20), V2_10, Weights(), 16.25, id="E1-2.10"),
        pytest.param(_ask(1, 4096, None, 20), V2_8, Weights(), 16.25, id="E1-2.8"),
        pytest.param(_ask(2, 4096, None, 20), V2_10, Weights(), 16.25, id="E3-2.10"),
        pytest.param(_ask(2, 4096, None, 20), V2_8, Weights(), 17.25, id="E3-2.8"),
        pytest.param(_ask(1, None, 50, 20), V2_10, Weights(), 18.75, id="E4-2.10"),
        pytest.param(_ask(1, None, 50, 20), V2_8, Weights(), 18.75, id="E4-2.8"),
        pytest.param(_ask(1, None, 1, 20), V2_8, Weights(), 13.849487305, id="one-percent-2.8"),
        pytest.param(_ask(1, None, 99, 20), V2_8, Weights(), 23.649902344, id="99-percent-2.8"),
        pytest.param(_ask(1, None, 100, 20), V2_10, Weights(), 23.75, id="E5-2.10"),
        pytest.param(_ask(1, None, 100, 20), V2_8, Weights(), 23.75, id="E5-2.8"),
        pytest.param(_ask(1, 4096, 50, 20), V2_10, Weights(), 16.25, id="E6-absolute-wins-2.10"),
        pytest.param(_ask(1, 4096, 50, 20), V2_8, Weights(), 16.25, id="E6-absolute-wins-2.8"),
        pytest.param(_ask(1, 4096, None, 20), V2_10, Weights(memory=3), 28.75, id="E7-2.10"),
        pytest.param(_ask(1, 4096, None, 20), V2_8, Weights(memory=3), 28.75, id="E7-2.8"),
        pytest.param(_ask(1, 4096, None, 20), V2_10, Weights(slot=0, core=0), 6.25, id="E8-2.10"),
        pytest.param(_ask(1, 4096, None, 20), V2_8, Weights(slot=0, core=0), 6.25, id="E8-2.8"),
    ],
)
def test_device_score_of_the_worked_examples(
    wanted: Ask, compat: Compat, weights: Weights, score: float
) -> None:
    assert device_score(card(used=BUSY), [wanted], compat, weights) == score


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
@pytest.mark.parametrize("total", ["slots", "cores", "memory_mib"])
def test_device_score_without_a_total_is_0(total: str, compat: Compat) -> None:
    assert device_score(card(used=BUSY, **{total: 0}), [ask()], compat) == 0


@pytest.mark.parametrize(
    ("compat", "score"), [(V2_10, 10.75), (V2_8, 16.25)], ids=["2.10", "2.8-counts-all"]
)
def test_device_score_with_an_ask_of_another_vendor(compat: Compat, score: float) -> None:
    other = ask(1, 4096, 20, vendor=NEURON)
    assert device_score(card(used=BUSY), [other], compat) == score


@pytest.mark.parametrize(
    ("used", "score"),
    [
        pytest.param((1, 8000, 100), 7.0, id="E11-node-A"),
        pytest.param((3, 26000, 280), 21.0, id="E12-node-B"),
        pytest.param((0, 0, 0), 0.0, id="E13-node-C"),
    ],
)
def test_node_score_of_the_worked_examples(used: tuple[int, int, int], score: float) -> None:
    cards = [card(0, used, slots=1, memory_mib=10000)]
    cards += [card(index, slots=1, memory_mib=10000) for index in (1, 2, 3)]
    assert node_score(cards) == score


def test_node_score_with_the_default_split_of_10() -> None:
    cards = [card(0, (1, 8000, 100), memory_mib=10000)]
    cards += [card(index, memory_mib=10000) for index in (1, 2, 3)]
    assert node_score(cards) == 4.75


def test_node_score_without_cards_is_0() -> None:
    assert node_score([]) == 0


FOUR = [("A", 0, 5.0, 0), ("B", 0, 15.0, 2), ("C", 1, 8.0, 0), ("D", 1, 20.0, 1)]


def _order(policy: str, compat: Compat, *, bound: bool, scores: float | None = None) -> str:
    scored = [
        Scored(
            card(place, (used, 0, 0), uuid=name, numa=numa),
            score if scores is None else scores,
            place,
        )
        for place, (name, numa, score, used) in enumerate(FOUR)
    ]
    order = visit_order(scored, policy, compat, is_numa_bound=bound)
    return " ".join(item.card.device.uuid for item in order)


@pytest.mark.parametrize(
    ("policy", "free", "bound"),
    [
        ("binpack", "D B C A", "B A D C"),
        ("spread", "A C B D", "C D A B"),
        ("mutex", "C A D B", "C A D B"),
        ("topology-aware", "A C B D", "C D A B"),
        ("mutex,topology-aware", "A C B D", "C D A B"),
        ("no-such-word", "A C B D", "C D A B"),
        ("", "A C B D", "C D A B"),
        ("numa", "D C B A", "D C B A"),
        ("binpack,numa", "D B C A", "D C B A"),
        ("numa,binpack", "D C B A", "D C B A"),
        ("spread,numa", "A C B D", "C D A B"),
        (" binpack , binpack", "D B C A", "D C B A"),
    ],
)
def test_visit_order_of_2_10(policy: str, free: str, bound: str) -> None:
    assert _order(policy, V2_10, bound=False) == free
    assert _order(policy, V2_10, bound=True) == bound


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("binpack", "B A D C"),
        ("spread", "C D A B"),
        ("topology-aware", "C D A B"),
        ("no-such-word", "C D A B"),
        ("", "C D A B"),
        ("numa", "D C B A"),
        ("binpack,numa", "D C B A"),
        ("numa,binpack", "D C B A"),
        ("spread,numa", "C D A B"),
        ("numa,spread", "C D A B"),
        ("topology-aware,binpack", "D C B A"),
        ("mutex,binpack", "D C B A"),
        ("mutex,topology-aware", "C D A B"),
    ],
)
def test_visit_order_of_2_8_has_numa_first_always(policy: str, order: str) -> None:
    assert _order(policy, V2_8, bound=False) == order
    assert _order(policy, V2_8, bound=True) == order


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
@pytest.mark.parametrize("bound", [False, True])
def test_visit_order_of_mutex_has_idle_cards_first_and_then_the_numa_node(
    compat: Compat, bound: bool
) -> None:
    assert _order("mutex", compat, bound=bound) == "C A D B"


@pytest.mark.parametrize(
    ("policy", "order"),
    [("binpack", "B A D C"), ("spread", "D C B A"), ("mutex", "C A D B"), ("numa", "D C B A")],
)
def test_visit_order_of_2_8_of_equal_scores(policy: str, order: str) -> None:
    assert _order(policy, V2_8, bound=False, scores=1.0) == order


@pytest.mark.parametrize(
    ("policy", "bound", "order"),
    [
        ("binpack", False, "D C B A"),
        ("binpack", True, "B A D C"),
        ("spread", False, "D C B A"),
        ("spread", True, "D C B A"),
    ],
)
def test_visit_order_of_equal_scores_takes_later_cards_first(
    policy: str, bound: bool, order: str
) -> None:
    assert _order(policy, V2_10, bound=bound, scores=1.0) == order


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
def test_visit_order_of_unknown_numa_is_like_the_lowest(compat: Compat) -> None:
    scored = [Scored(card(0, numa=None), 0, 0), Scored(card(1, numa=0), 0, 1)]
    order = visit_order(scored, "numa", compat, is_numa_bound=False)
    assert [item.card.device.index for item in order] == [1, 0]


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("memory=2, core=0 ,slot=0", Weights(slot=0, core=0, memory=2)),
        ("slot=1,core=1,memory=1", Weights()),
        ("slot = 7,core=1,memory=0", Weights(slot=7, core=1, memory=0)),
        ("slot=1,core=1", None),
        ("slot=1,core=1,memory=1.5", None),
        ("slot=1,core=1,memory=1,slot=1", None),
        ("slot=1,core=1,memory=1,size=1", None),
        ("slot=-1,core=1,memory=1", None),
        ("slot=0,core=0,memory=0", None),
        ("slot=1,core=1,memory=", None),
        ("slot=1,core=1,memory=1,", None),
        ("slot=1,core=1,memory=99999999999999", None),
        ("slot=1,core=1,memory=²", None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_parse_weights(text: str, weights: Weights | None) -> None:
    assert parse_weights(text) == weights


@given(st.text())
def test_parse_weights_never_raises(text: str) -> None:
    assert parse_weights(text) is None or text.count("=") == 3


@pytest.mark.parametrize(
    ("policy", "found"),
    [("mutex", True), ("binpack, mutex", True), ("mutexes", False), ("", False)],
)
def test_has_word_needs_the_whole_word(policy: str, found: bool) -> None:
    assert has_word(policy, "mutex") is found


USED = st.tuples(st.integers(0, 9), st.integers(0, 16384), st.integers(0, 100))


def _scored(cards: list[DeviceUsage], compat: Compat) -> list[Scored]:
    return [
        Scored(usage, device_score(usage, [ask()], compat), place)
        for place, usage in enumerate(cards)
    ]


@given(st.data(), st.lists(USED, min_size=1, max_size=8))
def test_visit_order_is_independent_of_the_order_given(
    data: Any, loads: list[tuple[int, int, int]]
) -> None:
    compat = data.draw(st.sampled_from([V2_8, V2_10]))
    scored = _scored([card(index, used) for index, used in enumerate(loads)], compat)
    policy = data.draw(st.sampled_from(["binpack", "spread", "mutex", "numa", "spread,numa"]))
    shuffled = data.draw(st.permutations(scored))
    assert visit_order(shuffled, policy, compat, is_numa_bound=False) == visit_order(
        scored, policy, compat, is_numa_bound=False
    )


def test_policy_of_a_tenant_is_not_remembered_at_length() -> None:
    before = _usual.cache_info().currsize
    assert len(words("binpack, ," * 20_000)) == 40_001
    assert _usual.cache_info().currsize == before
    assert words(" binpack , numa") == ("binpack", "numa")
