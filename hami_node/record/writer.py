"""A record on a disk that may hang: threads of its own read and write it, others wait bounded."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Final

from hami_node.errors import RecordError
from hami_node.logs import kv
from hami_node.record.bounded import BoundedWork
from hami_node.record.file import Loaded, RecordFile

log = logging.getLogger(__name__)

WAIT_S: Final = 3.0
"""How long a call of kubelet's may wait for a write, of its 10 s."""
MOMENT_S: Final = 0.2
"""How long everybody else waits: an error is on the disk before others hear of it."""
READ_S: Final = 1.0
RETRY_S: Final = 5.0
SYNC_S: Final = 1.0
"""How long a record that is synced later is left alone before."""


class RecordWriter:
    """Writes the newest payload that it was given. Thread-safe."""

    def __init__(
        self, file: RecordFile, *, is_synced_later: bool = False, retry_s: float = RETRY_S
    ) -> None:
        """Nothing is read or made yet.

        What is written survives the end of this process, and a power loss too: at once, or where
        `is_synced_later`, soon.
        """
        self._file, self._is_synced_later, self._retry_s = file, is_synced_later, retry_s
        self._reader = BoundedWork(READ_S)
        self._found: Loaded | None = None
        self._changed = threading.Condition()
        self._payload = b""
        self._given = self._tried = self._written = 0  # payloads are numbered
        self._error: BaseException | None = None
        self._is_retried = self._is_running = self._has_complained = False

    def load(self) -> Loaded:
        """Read the record.

        Raises:
            RecordError: the disk does not answer. While that lasts, nobody waits for it again.
        """
        if self._reader.is_busy:
            raise RecordError(f"{self._file.path} is still being read: check the disk of this node")
        try:
            found = self._found or self._reader.do(self._read)
        except RecordError as e:
            log.error("record_not_read", extra=kv(record=self._file.path, error=str(e)))  # noqa: TRY400
            raise
        self._found = None
        return found

    def _read(self) -> Loaded:
        """Kept for who asks next: reading sets a damaged record aside, and can't be repeated."""
        self._found = self._file.load()
        return self._found

    @property
    def is_late(self) -> bool:
        """True while the newest payload is not written."""
        return self._written < self._given

    def save(self, payload: bytes, wait_s: float = WAIT_S) -> None:
        """Replace the record.

        Raises:
            RecordError: it is not written in time. While the disk hangs, it may be written later.
        """
        error = self._give(payload, wait_s, is_retried=False)
        if error is not None:
            raise error

    def put(self, payload: bytes, wait_s: float = MOMENT_S) -> bool:
        """Have the record replaced; it is tried until it is written, or something newer.

        Waits a moment for that, but not for a disk that is known to hang. True if it is written.
        """
        is_hanging = self._tried < self._given
        error = self._give(payload, 0.0 if is_hanging else wait_s, is_retried=True)
        if error is not None and not isinstance(error, RecordError):
            raise error
        if error is not None and not self._has_complained:
            self._has_complained = True
            log.error("record_not_written", extra=kv(record=self._file.path, error=str(error)))
        return error is None

    def _give(self, payload: bytes, wait_s: float, *, is_retried: bool) -> BaseException | None:
        """Hand it to the thread; what went wrong with it until now."""
        with self._changed:
            self._given += 1
            number, self._payload, self._is_retried = self._given, payload, is_retried
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="record", daemon=True).start()
            self._changed.notify_all()
            if self._changed.wait_for(lambda: self._tried >= number, wait_s):
                return self._error if self._written < number else None
        return RecordError(
            f"the disk of this node's record has not answered for {wait_s:.1f} s: check the disk "
            "of this node"
        )

    def _run(self) -> None:
        """Write the newest payload, and what comes meanwhile; then sync it, if that is due."""
        while True:
            with self._changed:
                number, payload = self._given, self._payload
            error = self._attempt(payload)
            with self._changed:
                self._tried, self._error = number, error
                if error is None:
                    self._written, self._has_complained = number, False
                self._changed.notify_all()
                is_again = isinstance(error, RecordError) and self._is_retried
                is_unsynced = error is None and self._is_synced_later
                pause_s = self._retry_s if is_again else SYNC_S if is_unsynced else 0.0
                is_newer = self._changed.wait_for(partial(self._is_newer, number), pause_s)
            if is_unsynced and not is_newer:
                self._sync()
            with self._changed:
                self._is_running = is_again or self._is_newer(number)
                if not self._is_running:
                    self._payload = b""
                    return

    def _is_newer(self, number: int) -> bool:
        return self._given > number

    def _attempt(self, payload: bytes) -> BaseException | None:
        try:
            self._file.save(payload)
            if not self._is_synced_later:
                self._file.sync()
        except BaseException as e:  # noqa: BLE001 - raised again in the thread that waits
            return e
        return None

    def _sync(self) -> None:
        try:
            self._file.sync()
        except RecordError as e:
            log.warning("record_not_synced", extra=kv(error=str(e)))
