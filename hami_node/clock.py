"""The system's clock, for code that builds objects; all other code is given a `ports.Clock`.

And the deadline: what is left of the time for an answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

SHORTEST_S: Final = 0.01
"""With less left there is no time for another try."""


class Waitable(Protocol):
    """A `threading.Event`, or a `threading.Condition` that is held."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; False if the timeout expires first."""


class SystemClock:
    """`ports.Clock` on the system's clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""
        return time.monotonic()

    def wait(self, event: Waitable, seconds: float | None) -> bool:
        """Wait so many seconds at most."""
        return event.wait(seconds)

    def deadline(self, seconds: float, stop: threading.Event | None = None) -> Deadline:
        """On the clock that never jumps."""
        return Deadline.after(seconds, time.monotonic, stop)


@dataclass(frozen=True, slots=True)
class Deadline:
    """When an answer is due: handed down, so that all steps share one budget of time.

    Attributes:
        monotonic: the clock's.
        ends_s: the end, on that clock.
        stop: ends all pauses, because the process is about to end.
    """

    monotonic: Callable[[], float]
    ends_s: float
    stop: threading.Event

    @classmethod
    def after(
        cls, seconds: float, monotonic: Callable[[], float], stop: threading.Event | None = None
    ) -> Deadline:
        """The deadline that many seconds from now."""
        return cls(monotonic, monotonic() + seconds, stop or threading.Event())

    def left_s(self) -> float:
        """Seconds until then; never negative."""
        return max(self.ends_s - self.monotonic(), 0.0)

    def at_most(self, seconds: float) -> Deadline:
        """This deadline, or `seconds` from now if that is earlier."""
        return Deadline(self.monotonic, min(self.ends_s, self.monotonic() + seconds), self.stop)

    def share(self, part: float) -> Deadline:
        """The deadline of a step that may use this part of what is left."""
        return self.at_most(self.left_s() * part)

    def before(self, seconds: float) -> Deadline:
        """So many seconds before this deadline, which are left for what follows."""
        return self.at_most(self.left_s() - seconds)

    def pause(self, seconds: float) -> bool:
        """Wait before another try, at most half of what is left; False if no time is left."""
        left_s = self.left_s()
        return left_s > SHORTEST_S and not self.stop.wait(min(seconds, left_s / 2))
