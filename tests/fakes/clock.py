"""A clock that a test moves by hand, and one that is real."""

from __future__ import annotations

import threading
import time

from hami_node.clock import Deadline


class FakeClock:
    """Starts at a fixed moment; `advance` moves both readings."""

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now_s, self._monotonic_s = now_s, 1000.0

    def now(self) -> float:
        with self._lock:
            return self._now_s

    def monotonic(self) -> float:
        with self._lock:
            return self._monotonic_s

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now_s += seconds
            self._monotonic_s += seconds


class RealClock:
    """The machine's own time, for tests over real sockets."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def soon(seconds: float = 0.2) -> Deadline:
    """A deadline so short that tests of what happens at its end are quick."""
    return Deadline.after(seconds, time.monotonic)
