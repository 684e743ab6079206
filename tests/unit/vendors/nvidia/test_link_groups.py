"""The worst linked card and the best linked set, against hand-made cases and brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from hami_node.engine.card_rules import LinkSteps
from hami_node.model import PairScores, Uuid
from hami_node.vendors.nvidia.link_groups import best_set, link_score, worst_single
from tests.unit.engine.layouts import LAYOUTS, Link, scores_of

SEED_PAIRS = {(0, 1): 80, (0, 2): 45, (0, 3): 30, (1, 2): 50, (1, 3): 35, (2, 3): 60}
"""The four cards of the seed document, section 5.5."""


def _brute_force(cards: Sequence[Uuid], count: int, scores: PairScores) -> tuple[int, ...]:
    """The first best of all combinations, in visit order."""
    rows = [[link_score(a, b, scores) for b in cards] for a in cards]
    best: tuple[int, tuple[int, ...]] | None = None
    for chosen in itertools.combinations(range(len(cards)), count):
        total = 0
        for end, a in enumerate(chosen):
            row = rows[a]
            for b in chosen[:end]:
                total += row[b]
        if best is None or total > best[0]:
            best = total, chosen
    assert best is not None
    return best[1]


def _seed_scores() -> tuple[tuple[Uuid, ...], PairScores]:
    return scores_of(4, lambda a, b: SEED_PAIRS[a, b])


def _random_link(stream: random.Random) -> Link:
    """Links of one of six characters, from no symmetry to a tree with a flaw."""
    kind = stream.randrange(6)
    levels = sorted(stream.sample(range(1, 9), 3))
    flaw = stream.randrange(20)
    groups = [stream.randrange(3) for _ in range(20)]

    def link(a: int, b: int) -> int:
        if kind == 0:
            return stream.randrange(1000)
        if kind == 1:
            return stream.randrange(-3, 3)
        if kind == 2:
            return stream.choice([0, 100])
        if kind == 3:
            return 100 if groups[a] == groups[b] else 10
        tree = next((50 - 10 * i for i, size in enumerate(levels) if a // size == b // size), 10)
        return tree if kind == 4 or flaw not in (a, a + b) else tree + 100

    return link


def _nested(link: Link, split: int) -> Link:
    """Two groups of such links, and one weak link between any two cards of both."""
    return lambda a, b: link(a % 9, b % 9) if (a < split) == (b < split) else 17


def test_worst_single_no_scores_takes_first_visited() -> None:
    assert worst_single([Uuid("c"), Uuid("a"), Uuid("b")], {}) == 0


def test_worst_single_no_candidates_raises() -> None:
    with pytest.raises(ValueError, match="empty"):
        worst_single([], {})


@pytest.mark.parametrize("count", [-1, 0, 5])
def test_best_set_impossible_count_raises(count: int) -> None:
    cards, scores = _seed_scores()
    with pytest.raises(ValueError, match=f"{count} of 4"):
        best_set(cards, count, scores)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({}, 0),
        ({"a": {"b": 7}}, 7),
        ({"b": {"a": 7}}, 7),
        ({"a": {"b": 3}, "b": {"a": 7}}, 7),
        ({"a": {"b": -3}}, -3),
        ({"a": {"b": 0}, "b": {"a": -2}}, 0),
    ],
    ids=["none", "there", "back", "larger of both", "negative", "both, one zero"],
)
def test_link_score_reads_both_directions(
    scores: dict[Uuid, dict[Uuid, int]], expected: int
) -> None:
    assert link_score(Uuid("a"), Uuid("b"), scores) == expected
    assert best_set([Uuid("c"), Uuid("b"), Uuid("a")], 2, scores) == (
        (1, 2) if expected > 0 else (0, 1)
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_best_set_real_layout_equals_brute_force(name: str) -> None:
    size, link = LAYOUTS[name]
    cards, scores = scores_of(size, link)
    stream = random.Random(name)
    for count in (2, 4, size // 2, size - 2):
        order = stream.sample(cards, size)
        assert best_set(order, count, scores) == _brute_force(order, count, scores)


@pytest.mark.parametrize("graphs", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_best_set_random_graphs_equals_brute_force(graphs: int) -> None:
    stream = random.Random(20260922)
    for _ in range(graphs):
        size = stream.choice((2, 3, 4, 5, 6, 7, 8, 9, 9, 10, 11 + stream.randrange(4)))
        link, split = _random_link(stream), stream.randrange(1, size)
        if stream.random() < 0.1:
            link = _nested(link, split)
        cards, scores = scores_of(size, link)
        count = stream.randint(1, size)
        assert best_set(cards, count, scores) == _brute_force(cards, count, scores), scores


# -- a search that is cut short -------------------------------------------------------------------
def _links_at_random(size: int) -> tuple[tuple[Uuid, ...], PairScores]:
    stream = random.Random(size)
    return scores_of(size, lambda *_: stream.randrange(1000))


@pytest.mark.parametrize("name", LAYOUTS)
def test_search_on_known_machines_is_far_from_its_steps(name: str) -> None:
    size, link = LAYOUTS[name]
    cards, scores = scores_of(size, link)
    for count in range(1, size):
        steps = LinkSteps()
        most = steps.left
        best_set(cards, count, scores, steps)
        assert steps.is_exact
        assert steps.left > most / 2


@pytest.mark.parametrize("size", [32, 64])
def test_search_without_symmetry_ends_and_tells_that_it_was_cut(size: int) -> None:
    cards, scores = _links_at_random(size)
    steps = LinkSteps()
    chosen = best_set(cards, size // 2, scores, steps)
    assert not steps.is_exact
    assert steps.left > -size
    assert len(set(chosen)) == size // 2
    assert set(chosen) <= set(range(size))
    assert best_set(cards, size // 2, scores) == chosen


def test_cut_search_gives_a_set_no_worse_than_the_first_cards_and_more_steps_a_better_one() -> None:
    cards, scores = _links_at_random(24)

    def total(chosen: Sequence[int]) -> int:
        return sum(
            link_score(cards[a], cards[b], scores) for a, b in itertools.combinations(chosen, 2)
        )

    found = [total(best_set(cards, 12, scores, LinkSteps(left=left))) for left in (0, 100, 10**7)]
    assert found == sorted(found)
    assert found[0] > total(range(12))


class Counting(dict[Uuid, dict[Uuid, int]]):
    """Scores that count how often they are looked at."""

    looks = 0

    def get(self, key: Uuid, default: object = None) -> Any:
        self.looks += 1
        return super().get(key, default)


def test_worst_single_of_divided_cards_compares_each_pair_of_cards_once() -> None:
    """Of 8 cards in 7 parts each 3,080 pairs were compared for each container: 1.5 ms."""
    draw = random.Random(3)
    cards = [Uuid(f"GPU-{number}") for number in range(8)]
    for _ in range(50):
        scores = Counting(
            {a: {b: draw.randrange(9) for b in cards if draw.random() < 0.8} for a in cards}
        )
        for card in cards:
            scores[card].pop(card, None)
        parts = [draw.choice(cards) for _ in range(56)]
        found = worst_single(parts, scores)
        assert scores.looks <= 2 * 8 * 8
        plain = dict(scores)
        totals = [
            sum(link_score(card, other, plain) for b, other in enumerate(parts) if b != a)
            for a, card in enumerate(parts)
        ]
        assert found == totals.index(min(totals))
