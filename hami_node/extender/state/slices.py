"""Long work under the state's lock in slices, so that bindings and the watches come in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Final

from hami_node.ports import Clock

SLICE_S: Final = 0.008
"""How long one slice may hold the lock."""
PAUSE_S: Final = 0.001
"""How long the lock is free between two slices: taken again at once, it would never be free."""
MOST_SLICES: Final = 2
"""So many slices a decision has; then the pod is tried again later, from where it was: the next
pods don't wait for it. One decision takes at most 30 ms of the scheduler's time, its reasons
included."""
DECISION_S: Final = MOST_SLICES * SLICE_S
"""What search and reasons share."""
STEPS_PER_S: Final = 1_000_000
"""What a step of effort takes is about a microsecond."""
MOST_EXPLAIN_STEPS: Final = 10_000
"""Effort for the reasons of one answer: they are words, and kube-scheduler waits for them."""
LEAST_EXPLAIN_STEPS: Final = 2_000
"""Even where the search took all the time of the decision: a few exact reasons, and more of them
in each further attempt."""


def explain_steps(took_s: float, nodes: int) -> int:
    """The effort for the reasons of a refusal: what its search, which took so long, has left.

    To name a node takes a step, whatever its reason is.
    """
    left = int((DECISION_S - took_s) * STEPS_PER_S)
    most = min(left, MOST_EXPLAIN_STEPS)
    return max(most - nodes, LEAST_EXPLAIN_STEPS)


class Slice:
    """Called, it tells whether its time is up."""

    def __init__(self, clock: Clock) -> None:
        """Its time begins when it is first asked for: the lock is held by then."""
        self._clock = clock
        self._begun_s: float | None = None

    def __call__(self) -> bool:
        """True once the time is up."""
        return self.took_s() >= SLICE_S

    def took_s(self) -> float:
        """How long it has been going on."""
        now_s = self._clock.monotonic()
        if self._begun_s is None:
            self._begun_s = now_s
        return now_s - self._begun_s


class Slices:
    """Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        """Measure slices by `clock`."""
        self._clock = clock

    def turns(self) -> Iterator[Slice]:
        """For each slice of one piece of work, what tells that its time is up; without an end.

        The work takes the lock in each turn, and goes on where it was.
        """
        yield Slice(self._clock)
        while True:
            pause()
            yield Slice(self._clock)

    def some_turns(self) -> Iterator[Slice]:
        """As `turns`, of a decision, which may have only so many."""
        return islice(self.turns(), MOST_SLICES)


def pause() -> None:
    """Let another thread take the lock."""
    threading.Event().wait(PAUSE_S)
