"""How long a watch waits after failures: alone, and as one of thousands."""

from __future__ import annotations

import pytest

from hami_node.cluster.watching.watches import WatchHealth, WatchTimes
from hami_node.errors import KubeError
from tests.fakes.clock import FakeClock
from tests.reliability import shows

DAEMONS = 5_000
TIMES = WatchTimes()


def health() -> WatchHealth:
    return WatchHealth("pods", FakeClock(), TIMES)


@shows(
    "N5",
    fault="an API server with 5,000 daemons goes away and comes back",
    happens="their first attempts are spread over seconds, later ones over longer",
)
@pytest.mark.parametrize("retry_after_s", [None, 1.0], ids=["cut-off", "told-to-wait"])
def test_first_attempts_of_many_are_spread(retry_after_s: float | None) -> None:
    error = KubeError("away", 429 if retry_after_s else 0, retry_after_s)
    waits_s = sorted(health().failed(error) for _ in range(DAEMONS))
    assert waits_s[0] >= (retry_after_s or 0.0)
    assert waits_s[-1] <= (retry_after_s or 0.0) + 3 * TIMES.first_wait_s
    busiest = max(
        sum(begin <= wait_s < begin + 0.1 for wait_s in waits_s) for begin in waits_s[::50]
    )
    assert busiest < DAEMONS / 10


def test_waits_grow_up_to_the_limit_and_begin_anew_after_a_success() -> None:
    tried = [health() for _ in range(200)]
    error = KubeError("away")
    rounds = [[known.failed(error) for known in tried] for _ in range(30)]
    assert max(rounds[0]) <= 3 * TIMES.first_wait_s
    assert sum(rounds[-1]) > 2 * sum(rounds[0])
    assert max(map(max, rounds)) <= TIMES.longest_wait_s
    for known in tried:
        known.succeeded()
    assert max(known.failed(error) for known in tried) <= 3 * TIMES.first_wait_s


def test_wait_that_the_server_asks_for_is_bounded() -> None:
    wait_s = health().failed(KubeError("busy", 429, 86_400.0))
    assert wait_s <= TIMES.longest_wait_s + 3 * TIMES.first_wait_s
