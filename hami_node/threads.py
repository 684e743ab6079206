"""Threads that can't die unnoticed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from hami_node.clock import SystemClock
from hami_node.logs import kv

log = logging.getLogger(__name__)

JOIN_S: Final = 8.0
"""How long all threads together may take to end."""


class GuardedThreads:
    """The threads of a process. When a thread dies, the process ends: it would report false state.

    Attributes:
        running: every thread that was started.
        died: why the process has to end: the name of the thread that died; "" while all run.
    """

    def __init__(self, stop: threading.Event) -> None:
        """`stop` is set when a thread dies."""
        self.running: list[threading.Thread] = []
        self.died = ""
        self._stop = stop

    def start(self, name: str, body: Callable[[], None]) -> None:
        """Run `body` in a thread of that name."""

        def guarded() -> None:
            try:
                body()
            except BaseException:
                log.exception("thread_died", extra=kv(thread=name))
                self.died = name
                self._stop.set()
                raise

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self.running.append(thread)
        thread.start()

    def join(self, timeout_s: float = JOIN_S) -> None:
        """Wait until all have ended; what is still alive then is named in the log."""
        clock = SystemClock()
        deadline_s = clock.monotonic() + timeout_s
        for thread in self.running:
            thread.join(max(deadline_s - clock.monotonic(), 0.01))
        late = [thread.name for thread in self.running if thread.is_alive()]
        if late:
            log.warning("threads_left", extra=kv(threads=late))
