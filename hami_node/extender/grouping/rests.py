"""How long a group rests after it got nothing, or did not use what it got. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REFUSED_FACTOR: Final = 10.0
"""A group that does not fit costs at most a tenth of the time of decisions, and waits at most..."""
MAX_REFUSED_S: Final = 0.5
"""...so long for the next look."""
MIN_BROKEN_S: Final = 1.0
MAX_BROKEN_S: Final = 300.0
MAX_KNOWN: Final = 10_000
"""Groups that are remembered; of more, those that rest longest are forgotten."""


@dataclass(slots=True)
class _Rest:
    until_s: float
    why: str
    breaks: int = 0


class Rests:
    """By the key of a group. Not thread-safe."""

    def __init__(self) -> None:
        """Start with groups that never failed."""
        self._rests: dict[str, _Rest] = {}

    def why(self, key: str, now_s: float) -> str:
        """Why a group rests; "" for one that does not."""
        rest = self._rests.get(key)
        return rest.why if rest is not None and now_s < rest.until_s else ""

    def refused(self, key: str, why: str, cost_s: float, now_s: float) -> None:
        """It did not fit, which took so long to find out."""
        rest = self._of(key)
        rest.until_s = now_s + min(REFUSED_FACTOR * cost_s, MAX_REFUSED_S)
        rest.why = why

    def broken(self, key: str, why: str, held_s: float, now_s: float) -> None:
        """It held room for so long and did not use it: others have as long, then longer."""
        rest = self._of(key)
        longer = 2.0 ** min(rest.breaks, 10)
        rest.breaks += 1
        rest.until_s = now_s + min(max(held_s, MIN_BROKEN_S) * longer, MAX_BROKEN_S)
        rest.why = why

    def forget(self, key: str) -> None:
        """It is complete."""
        self._rests.pop(key, None)

    def _of(self, key: str) -> _Rest:
        rest = self._rests.pop(key, None) or _Rest(0.0, "")
        self._rests[key] = rest
        while len(self._rests) > MAX_KNOWN:
            del self._rests[next(iter(self._rests))]
        return rest
