"""What could not be done yet, and when to try again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from hami_node.ports import Clock

FIRST_WAIT_S: Final = 2.0
LONGEST_WAIT_S: Final = 300.0
HANDS_OFF_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    tries: int
    until_s: float
    why: str


class Waits:
    """What could not be done yet, why, and when to try again: each time after a longer wait."""

    def __init__(self, clock: Clock) -> None:
        """Nothing waits."""
        self._clock = clock
        self._waits: dict[Hashable, _Wait] = {}

    def put_off(self, key: Hashable, why: str) -> None:
        """It was tried in vain."""
        tries = self.tries(key)
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(tries, 16), LONGEST_WAIT_S)
        self._put(key, _Wait(tries=tries + 1, until_s=self._clock.monotonic() + wait_s, why=why))

    def hold(self, key: Hashable, why: str) -> None:
        """It may not be tried now."""
        until_s = self._clock.monotonic() + HANDS_OFF_S
        self._put(key, _Wait(tries=self.tries(key), until_s=until_s, why=why))

    def _put(self, key: Hashable, wait: _Wait) -> None:
        self._waits = {**self._waits, key: wait}

    def done(self, key: Hashable) -> None:
        """It is over, one way or another."""
        self._waits = {other: wait for other, wait in self._waits.items() if other != key}

    def is_due(self, key: Hashable) -> bool:
        """True for what does not wait, or has waited long enough."""
        wait = self._waits.get(key)
        return wait is None or wait.until_s <= self._clock.monotonic()

    def why(self, key: Hashable) -> str:
        """Why it waits; "" where it doesn't. Any thread may ask."""
        wait = self._waits.get(key)
        return wait.why if wait else ""

    def tries(self, key: Hashable) -> int:
        """How often it has failed in a row."""
        wait = self._waits.get(key)
        return wait.tries if wait else 0

    def next_s(self) -> float | None:
        """Seconds until something is due; None where nothing waits."""
        now_s = self._clock.monotonic()
        return min((max(each.until_s - now_s, 0.0) for each in self._waits.values()), default=None)

    def keep_only(self, keys: Iterable[Hashable]) -> None:
        """Forget all others."""
        kept = set(keys)
        self._waits = {key: wait for key, wait in self._waits.items() if key in kept}
