"""Restarts this program in its own process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""To be unblocked once their handlers are installed: `restart_program` leaves them blocked."""


def restart_program(ended: threading.Event) -> None:
    """Execute the same command again; returns only when `ended` is set.

    A process that ends is restarted by kubelet, but with a growing delay: two edits within minutes
    would leave the cluster without a scheduler. A signal that arrives in between waits for the
    handlers of the restarted program.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    if not ended.is_set():
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execv(sys.executable, command)  # noqa: S606 - our own command line, and no shell
