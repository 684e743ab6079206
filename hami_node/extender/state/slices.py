"""Long work under the state's lock in slices, so that bindings and the watches come in between."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from functools import partial
from typing import Final

from hami_node.engine.fleet.fleet import IsTimeUp
from hami_node.ports import Clock

SLICE_S: Final = 0.008
"""How long one slice may hold the lock."""
PAUSE_S: Final = 0.001
"""How long the lock is free between two slices: taken again at once, it would never be free."""
LONGEST_S: Final = 2.0
"""After so long the rest is done in one piece: changes may come faster than slices."""
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
        start_s = now_s = self._clock.monotonic()
        while True:
            is_last = now_s - start_s > LONGEST_S
            yield partial(self._is_past, math.inf if is_last else now_s + SLICE_S)
            pause()
            now_s = self._clock.monotonic()

    def _is_past(self, ends_s: float) -> bool:
        return self._clock.monotonic() >= ends_s


def pause() -> None:
    """Let another thread take the lock."""
    threading.Event().wait(PAUSE_S)
