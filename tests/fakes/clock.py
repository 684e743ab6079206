"""Clocks: moved by hand, real, and real but faster."""

from __future__ import annotations

import threading
import time

from hami_node.clock import Deadline, SystemClock, Waitable


class FakeClock(SystemClock):
    """Starts at a fixed moment; `advance` moves both readings. Its waits are real."""

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now_s, self._monotonic_s = now_s, 1000.0

    def now(self) -> float:
        with self._lock:
            return self._now_s

    def monotonic(self) -> float:
        with self._lock:
            return self._monotonic_s

    def deadline(self, seconds: float, stop: threading.Event | None = None) -> Deadline:
        return Deadline.after(seconds, self.monotonic, stop)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now_s += seconds
            self._monotonic_s += seconds


class RealClock(SystemClock):
    """The machine's own time, for tests over real sockets."""


class PacedClock(SystemClock):
    """Runs `factor` times as fast as the system's clock, and its waits are as much shorter.

    Intervals and back-off shrink together, as if the system ran faster. Deadlines don't: an answer
    of another process, which knows nothing of this clock, takes as long as ever.
    """

    def __init__(self, factor: float) -> None:
        """It starts at the system's time."""
        self._factor = factor
        self._began_s, self._began_monotonic_s = time.time(), time.monotonic()

    def now(self) -> float:
        """Seconds since the epoch, ahead of the system's clock."""
        return self._began_s + self._passed_s()

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""
        return self._began_monotonic_s + self._passed_s()

    def wait(self, event: Waitable, seconds: float | None) -> bool:
        """Wait so many seconds of this clock at most."""
        return event.wait(None if seconds is None else seconds / self._factor)

    def _passed_s(self) -> float:
        return (time.monotonic() - self._began_monotonic_s) * self._factor


def soon(seconds: float = 0.2) -> Deadline:
    """A deadline so short that tests of what happens at its end are quick."""
    return Deadline.after(seconds, time.monotonic)
