"""Signals to a program, taken by a thread of their own.

A signal handler runs between two steps of the main thread, perhaps while that thread is inside a
lock: a handler that takes the same lock, as `Event.set` does, waits for ever. So there are no
handlers here. The signals are blocked in every thread, and one thread waits for them; what it calls
may take any lock. A blocked signal also waits while a program starts, or replaces itself, and does
nothing to one that is about to end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import Final

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_WAKE: Final = signal.SIGUSR2


class SignalThread:
    """Calls an action for each signal that arrives; several of a kind at once may be one call."""

    def __init__(self, *numbers: signal.Signals) -> None:
        """Block the signals from now on, in this thread and those that it starts later.

        To be called by the main thread before there are others. Nothing is called before `start`.
        """
        self._awaited = {*numbers, _WAKE}
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)

    def start(self, actions: Mapping[signal.Signals, Callable[[], None]]) -> None:
        """From now on call these actions, for signals that are waiting too."""
        self._thread = threading.Thread(
            target=self._run, args=(actions,), name="signals", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Finish the last action. Later signals wait: also for a program that replaces this one."""
        thread = self._thread
        if thread is not None and thread.ident is not None:
            self._is_over = True
            signal.pthread_kill(thread.ident, _WAKE)
            thread.join()

    def hand_back(self) -> None:
        """Finish the last action; later signals do what they did before."""
        self.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _run(self, actions: Mapping[signal.Signals, Callable[[], None]]) -> None:
        while True:
            action = actions.get(signal.Signals(signal.sigwait(self._awaited)))
            if action is not None:
                action()
            elif self._is_over:
                return
