"""How long the choice of linked cards takes on the link layouts of real machines."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import pytest

from hami_node.model import PairScores, Uuid
from hami_node.vendors.nvidia.link_groups import best_set, worst_single
from tests.unit.engine.layouts import LAYOUTS, scores_of

pytestmark = pytest.mark.bench
REPEATS = 200


def _median_ms(call: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float]:
    """Median and worst of several runs in milliseconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1000)
    times.sort()
    return times[len(times) // 2], times[-1]


def _brute_force(cards: tuple[Uuid, ...], count: int, scores: PairScores) -> tuple[int, ...]:
    """The first best of all combinations."""
    rows = [[scores.get(a, {}).get(b, 0) for b in cards] for a in cards]
    return max(
        itertools.combinations(range(len(cards)), count),
        key=lambda chosen: sum(rows[a][b] for a, b in itertools.combinations(chosen, 2)),
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_best_set_on_real_layouts_prints_time(name: str) -> None:
    """Half of the cards, in visit order and shuffled; brute force beside it."""
    size, link = LAYOUTS[name]
    cards, scores = scores_of(size, link)
    shuffled = list(cards)
    random.Random(1).shuffle(shuffled)
    median, worst = _median_ms(lambda: best_set(cards, size // 2, scores))
    mixed, _ = _median_ms(lambda: best_set(shuffled, size // 2, scores))
    single, _ = _median_ms(lambda: worst_single(cards, scores))
    brute, _ = _median_ms(lambda: _brute_force(cards, size // 2, scores), 3)
    print(
        f"\n{name:28} {size // 2:2} of {size:2}: median {median:.3f} ms, worst {worst:.3f} ms, "
        f"shuffled {mixed:.3f} ms; worst single {single:.3f} ms; brute force {brute:.2f} ms"
    )
    assert best_set(cards, size // 2, scores) == _brute_force(cards, size // 2, scores)
