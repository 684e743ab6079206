"""One daemon writes the records of a node: the lock on their folder."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from pathlib import Path
from typing import Final

from hami_node.logs import kv

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
ANOTHER: Final = (
    "another hami-node serves this node and holds {}: this one takes over as soon as that has ended"
)


class RecordLock:
    """The lock on the folder of the records, until this process ends, however it ends.

    A thread waits for it, so that probes are answered meanwhile: a folder that hangs may be
    another's. One that can't be opened has no records that could be overwritten: nobody waits for
    it, and it is tried again.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is opened yet."""
        self._folder = folder
        self._is_over = threading.Event()
        self._never = threading.Event()
        self._answer = f"{folder} has not answered: check the disk of this node"

    def take(self, patience_s: float) -> bool:
        """Begin to take it; True if nobody has to wait for it any more."""
        threading.Thread(target=self._take, name="record-lock", daemon=True).start()
        return self.wait(patience_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is held, or can't be; False if neither was so in time."""
        return self._is_over.wait(timeout_s)

    @property
    def problem(self) -> str:
        """Why this process has to wait; "" once it has not."""
        return "" if self._is_over.is_set() else self._answer

    def _take(self) -> None:
        while True:
            try:
                self._lock(self._open())
            except OSError as e:
                if not self._is_over.is_set():
                    hint = "check the disk, and the mount of the daemon"
                    problem = f"{self._folder} can't be locked: {e.strerror or e}"
                    fields = kv(problem=problem, hint=hint)
                    log.error("record_not_locked", extra=fields)  # noqa: TRY400 - it is no bug
                self._is_over.set()
                self._never.wait(RETRY_S)
            else:
                self._is_over.set()
                return

    def _open(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            return os.open(self._folder, flags)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self._folder, flags)

    def _lock(self, handle: int) -> None:
        """Wait for the lock; the handle stays open with it. Raises OSError."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._answer = ANOTHER.format(self._folder)
            fcntl.flock(handle, fcntl.LOCK_EX)
