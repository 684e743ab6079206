"""Long work under the state's lock in slices, so that bindings and the watches come in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Final

from hami_node.engine.fleet.fleet import IsTimeUp
from hami_node.ports import Clock

SLICE_S: Final = 0.008
"""How long one slice may hold the lock."""
PAUSE_S: Final = 0.001
"""How long the lock is free between two slices: taken again at once, it would never be free."""
MOST_SLICES: Final = 2
"""So many slices a decision has; then the pod is tried again later, from where it was: the next
pods don't wait for it. One decision takes at most 30 ms of the scheduler's time."""
EXPLAIN_STEPS: Final = 9_000
"""Effort for the reasons of one answer: they are words, and kube-scheduler waits for them."""


class Slices:
    """Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        """Measure slices by `clock`."""
        self._clock = clock

    def turns(self) -> Iterator[IsTimeUp]:
        """For each slice of one piece of work, what tells that its time is up; without an end.

        The work takes the lock in each turn, and goes on where it was.
        """
        yield self._slice()
        while True:
            pause()
            yield self._slice()

    def some_turns(self) -> Iterator[IsTimeUp]:
        """As `turns`, of a decision, which may have only so many."""
        return islice(self.turns(), MOST_SLICES)

    def _slice(self) -> IsTimeUp:
        """Its time begins when it is first asked for: the lock is held by then."""
        ends_s: float | None = None

        def is_time_up() -> bool:
            nonlocal ends_s
            now_s = self._clock.monotonic()
            if ends_s is None:
                ends_s = now_s + SLICE_S
            return now_s >= ends_s

        return is_time_up


def pause() -> None:
    """Let another thread take the lock."""
    threading.Event().wait(PAUSE_S)
