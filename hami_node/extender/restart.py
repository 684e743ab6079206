"""Restarts this program in its own process."""

from __future__ import annotations

import logging
import os
import sys


def restart_program() -> None:
    """Execute the same command again.

    A process that ends is restarted by kubelet, but with a growing delay: two edits within minutes
    would leave the cluster without a scheduler. Signals are blocked, which the new program
    inherits: one that arrives in between waits until that program takes it.
    """
    logging.shutdown()
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execv(sys.executable, command)  # noqa: S606 - our own command line, and no shell
