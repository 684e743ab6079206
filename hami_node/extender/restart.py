"""Starts this program anew in its own process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""Who takes these has to unblock them once its handlers stand: `start_anew` leaves them blocked."""


def start_anew(ended: threading.Event) -> None:
    """Become the same command again; returns only when `ended` says that the end is wanted.

    A process that ends is started again by kubelet, but with a growing delay: two edits within
    minutes would leave the cluster without a scheduler. A signal that comes in between waits for
    the handlers of the new start.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    if not ended.is_set():
        again = [sys.executable, *sys.orig_argv[1:]]
        os.execv(sys.executable, again)  # noqa: S606 - our own command line, and no shell
