"""The system's clock, for code that builds objects; all other code is given a `ports.Clock`."""

from __future__ import annotations

import time


class SystemClock:
    """`ports.Clock` on the system's clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""
        return time.monotonic()
