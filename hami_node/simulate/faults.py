"""Faults of the simulated API server, on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """A fault other than an HTTP status."""

    RESET = "reset"
    """The connection is reset; nothing was done."""
    RESET_AFTER = "reset-after"
    """The request is served, then the connection is reset: the response is lost."""
    HANG = "hang"
    """No response until the fault is cleared or the server stops."""
    FREEZE = "freeze"
    """A watch that opens and then sends nothing, until cleared; like `hang` for other requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the server noted about a request.

    `verb` is the API's: get, list, watch, create, update, patch, delete; `status` 0 means that
    none was sent.
    """

    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str
    user_agent: str
    status: int
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Rule:
    verb: str
    resource: str
    outcome: int | Outcome
    times_left: int

    def matches(self, verb: str, resource: str) -> bool:
        return self.times_left > 0 and self.verb in ("*", verb) and self.resource in ("*", resource)


@dataclass(slots=True)
class Faults:
    """Planned faults. Thread-safe."""

    latency_s: float = 0.0
    _rules: list[_Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _released: threading.Event = field(default_factory=threading.Event)

    def add(self, verb: str, resource: str, outcome: int | str, times: int) -> None:
        """Make the next `times` requests of this verb and resource (`*`: any) end like this."""
        end = Outcome(outcome) if isinstance(outcome, str) else outcome
        with self._lock:
            if self._released.is_set():
                self._released = threading.Event()
            self._rules.append(_Rule(verb, resource, end, times))

    def take(self, verb: str, resource: str) -> int | Outcome | None:
        """The fault for this request, which uses it up; None: serve it."""
        with self._lock:
            for rule in self._rules:
                if rule.matches(verb, resource):
                    rule.times_left -= 1
                    return rule.outcome
        return None

    def clear(self) -> None:
        """Remove all faults and release hanging requests."""
        with self._lock:
            self._rules.clear()
            self._released.set()
        self.latency_s = 0.0

    def hang(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until cleared or stopped."""
        released = self._released
        while not released.wait(0.05) and not is_stopped():
            pass
