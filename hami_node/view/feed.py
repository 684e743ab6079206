"""What has changed since when, for pages that listen.

A listener has no queue: it remembers the number that it has seen, and gets the sum of what came
after it. So a slow one costs nothing, and one that comes back goes on where it was.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

KEPT: Final = 512
"""Changes that a listener may have missed."""
MAX_NAMES: Final = 200
"""Nodes named in a change; with more, everything may have changed."""
MAX_LISTENERS: Final = 64
"""Pages that listen at a time."""

Wake = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the page. `nodes` is None where every node may have changed."""

    nodes: frozenset[str] | None = frozenset()
    is_waiting_changed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The sum of what a listener has not seen; `mark` is where it goes on."""

    mark: str
    change: Change
    summary: Mapping[str, Any]


@dataclass(slots=True)
class _State:
    number: int = 0
    summary: Mapping[str, Any] = field(default_factory=dict)
    kept: deque[tuple[int, Change]] = field(default_factory=lambda: deque(maxlen=KEPT))


class Feed:
    """Changes in their order. Thread-safe."""

    def __init__(self, most: int = MAX_LISTENERS) -> None:
        """Have at most so many listeners."""
        self._most = most
        self._run = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._state = _State()
        self._listeners: set[Wake] = set()
        self.is_closed = False

    def publish(self, change: Change, summary: Mapping[str, Any]) -> None:
        """Tell all listeners."""
        with self._lock:
            state = self._state
            state.number += 1
            state.kept.append((state.number, change))
            state.summary = summary
            listeners = tuple(self._listeners)
        for wake in listeners:
            wake()

    def summary(self) -> Mapping[str, Any]:
        """The newest summary; empty before the first."""
        with self._lock:
            return self._state.summary

    def join(self, wake: Wake) -> bool:
        """Call `wake` after each change; False where there are too many listeners."""
        with self._lock:
            if len(self._listeners) >= self._most or self.is_closed:
                return False
            self._listeners.add(wake)
            return True

    def leave(self, wake: Wake) -> None:
        """No longer."""
        with self._lock:
            self._listeners.discard(wake)

    @property
    def listeners(self) -> int:
        """How many listen."""
        with self._lock:
            return len(self._listeners)

    def close(self) -> None:
        """End all listeners."""
        with self._lock:
            self.is_closed = True
            listeners = tuple(self._listeners)
        for wake in listeners:
            wake()

    def since(self, mark: str) -> Delta | None:
        """What came after that mark; all for a mark that is not known, None for nothing."""
        with self._lock:
            state = self._state
            if state.number == 0:
                return None
            run, _, text = mark.partition(".")
            seen = int(text) if run == self._run and text.isascii() and text.isdigit() else -1
            if seen == state.number:
                return None
            first = state.kept[0][0]
            is_known = first - 1 <= seen < state.number
            missed = [change for number, change in state.kept if number > seen]
            return Delta(
                mark=f"{self._run}.{state.number}",
                change=_sum(missed) if is_known else Change(nodes=None, is_waiting_changed=True),
                summary=state.summary,
            )


def _sum(changes: list[Change]) -> Change:
    names: set[str] = set()
    is_all = False
    for change in changes:
        is_all = is_all or change.nodes is None
        names |= change.nodes or frozenset()
    return Change(
        nodes=None if is_all or len(names) > MAX_NAMES else frozenset(names),
        is_waiting_changed=any(change.is_waiting_changed for change in changes),
    )
