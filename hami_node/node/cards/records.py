"""Small records of the vendors' drivers, which know neither folders nor checksums."""

from __future__ import annotations

import logging
from pathlib import Path

from hami_node.logs import kv
from hami_node.record.file import RecordFile
from hami_node.record.writer import RecordWriter

log = logging.getLogger(__name__)


class CardRecord:
    """The port `Record` in a file that survives kill -9 and a power loss."""

    def __init__(self, folder: Path, name: str) -> None:
        """Nothing is read or made yet."""
        self._name = name
        self._writer = RecordWriter(RecordFile(folder, name))

    def load(self) -> bytes | None:
        """What was saved last; a record that can't be read is reported, and set aside.

        Raises:
            RecordError: its disk does not answer.
        """
        found = self._writer.load()
        if found.problem and "missing" not in found.problem:
            log.error("record_lost", extra=kv(record=self._name, problem=found.problem))
        return found.payload

    def save(self, payload: bytes) -> None:
        """Replace it.

        Raises:
            RecordError: it can't be written, or not in time.
        """
        self._writer.save(payload)

    def put(self, payload: bytes) -> None:
        """Have it replaced."""
        self._writer.put(payload)
