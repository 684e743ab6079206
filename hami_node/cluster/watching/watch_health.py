"""The health of a watch: when the server last responded, what failed, and how long to wait then."""

from __future__ import annotations

import logging
import random
import threading
from dataclasses import dataclass
from typing import Final

from hami_node.errors import Gone, KubeError
from hami_node.logs import kv
from hami_node.ports import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why nothing new arrives, and since when, seconds on the monotonic clock."""

    error: KubeError
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """Waits and limits in seconds.

    Attributes:
        server_timeout_s: the server ends a watch after this time, up to a tenth less at random.
        grace_s: a silent watch that lasts this much longer is dead. (TCP detects a dead peer
            earlier.)
        first_wait_s: the wait after a failure is random: from a tenth of this to three times the
            wait before, which is this at first. So the daemons of a large cluster come back spread
            over seconds, the first time too.
        longest_wait_s: the upper limit of a wait.
    """

    server_timeout_s: float = 120.0
    grace_s: float = 10.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 15.0


OF_FEW: Final = WatchTimes(first_wait_s=0.2, longest_wait_s=2.0)
"""For the few watches of an extender: their load is small, and pods wait for them."""


class WatchHealth:
    """Written by the watch's thread, read by any.

    Attributes:
        failures_in_a_row: failures since the server last served us.
    """

    def __init__(self, resource: str, clock: Clock, times: WatchTimes) -> None:
        """Start without a response; `resource` is for the log."""
        self.failures_in_a_row, self._last_wait_s = 0, times.first_wait_s
        self._resource, self._clock, self._times = resource, clock, times
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._has_warned = False
        self._lock = threading.Lock()
        self._last_contact_s: float | None = None
        self._trouble: Trouble | None = None

    def trouble(self) -> Trouble | None:
        """The last failure, since the first of its series; None while the server serves us."""
        with self._lock:
            return self._trouble

    def last_contact_age_s(self) -> float | None:
        """Seconds since the server last responded; None before the first response."""
        with self._lock:
            contact_s = self._last_contact_s
        return None if contact_s is None else max(0.0, self._clock.monotonic() - contact_s)

    def touch(self) -> None:
        """Note that the server responded."""
        with self._lock:
            self._last_contact_s = self._clock.monotonic()
            self._trouble = None

    def succeeded(self) -> None:
        """Note that the server served us, which ends a series of failures."""
        self.touch()
        if self._has_warned:
            fields = kv(resource=self._resource, failures=self.failures_in_a_row)
            log.info("watch_recovered", extra=fields)
        self._has_warned = False
        self.reset()

    def reset(self) -> None:
        """Make the next wait after a failure short again."""
        self.failures_in_a_row, self._last_wait_s = 0, self._times.first_wait_s

    def failed(self, error: KubeError) -> float:
        """Note a failure and return how long to wait, seconds; only the first is a warning."""
        self.failures_in_a_row += 1
        if not isinstance(error, Gone):
            with self._lock:
                since_s = self._trouble.since_s if self._trouble else self._clock.monotonic()
                self._trouble = Trouble(error=error, since_s=since_s)
        times = self._times
        longest_s = min(3 * self._last_wait_s, times.longest_wait_s)
        self._last_wait_s = self._random.uniform(min(times.first_wait_s / 10, longest_s), longest_s)
        wait_s = self._last_wait_s + min(error.retry_after_s or 0.0, times.longest_wait_s)
        level = logging.DEBUG
        if not self._has_warned and not isinstance(error, Gone):
            self._has_warned, level = True, logging.WARNING
        fields = kv(resource=self._resource, error=str(error), retry_s=round(wait_s, 2))
        log.log(level, "watch_interrupted", extra=fields)
        return wait_s
