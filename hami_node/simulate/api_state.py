"""What the simulated API server keeps over restarts: objects, faults, the list of requests."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from hami_node.simulate.faults import Faults, Request
from hami_node.simulate.store import Store


class RequestLog:
    """The requests so far, in the order in which they ended. Thread-safe."""

    def __init__(self) -> None:
        """Start empty."""
        self._requests: list[Request] = []
        self._lock = threading.Lock()

    def add(self, request: Request) -> None:
        """Append a request."""
        with self._lock:
            self._requests.append(request)

    def all(self) -> tuple[Request, ...]:
        """Every request so far."""
        with self._lock:
            return tuple(self._requests)


@dataclass(slots=True, kw_only=True)
class ApiState:
    """Shared by the server and the threads that serve its connections.

    Attributes:
        token: the bearer token that requests must have; None accepts all.
        bookmark_interval_s: how often a silent watch gets a bookmark.
        stopped: set once the server stops for good.
        watch_generation: a new number ends the watches that began before.
    """

    token: str | None = None
    bookmark_interval_s: float = 60.0
    store: Store = field(default_factory=Store)
    faults: Faults = field(default_factory=Faults)
    requests: RequestLog = field(default_factory=RequestLog)
    stopped: threading.Event = field(default_factory=threading.Event)
    watch_generation: int = 0
