"""Which call may try for a node's lock next: one at a time, in order of arrival.

Otherwise every waiting call would try for a lock as soon as it is freed, and the requests of all
but the first to the API server would be wasted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOK_S: Final = 0.05
"""How often a waiting call checks whether it may go on waiting; this makes no request."""
MAX_WAITING: Final = 16
"""Calls that may wait for one node: each holds a thread that binds on other nodes need."""


class BindQueue:
    """Thread-safe. Keeps nothing about nodes that no call waits for."""

    def __init__(self) -> None:
        """Start without waiting calls."""
        self._changed = threading.Condition()
        self._queues: dict[str, deque[object]] = {}

    @contextmanager
    def turn(self, node: str, is_late: Callable[[], bool]) -> Iterator[bool]:
        """Wait for our turn and keep it inside the block.

        Yields False if `is_late` became true before, or too many calls wait already. An exception
        from `is_late` ends the wait.
        """
        ticket = object()
        with self._changed:
            queue = self._queues.setdefault(node, deque())
            is_full = len(queue) >= MAX_WAITING
            if not is_full:
                queue.append(ticket)
        if is_full:
            yield False
            return
        try:
            yield self._comes(queue, ticket, is_late)
        finally:
            with self._changed:
                queue.remove(ticket)
                if not queue:
                    del self._queues[node]
                self._changed.notify_all()

    def waiting(self) -> int:
        """How many calls have their turn or wait for it."""
        with self._changed:
            return sum(len(queue) for queue in self._queues.values())

    def _comes(self, queue: deque[object], ticket: object, is_late: Callable[[], bool]) -> bool:
        while True:
            with self._changed:
                if queue[0] is ticket:
                    return True
                self._changed.wait(LOOK_S)
            if is_late():
                return False
