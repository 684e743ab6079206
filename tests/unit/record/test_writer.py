"""A record on a disk that hangs or refuses: nobody waits long, the newest is written in the end."""

from __future__ import annotations

import threading
import time

import pytest

from hami_node.errors import RecordError
from hami_node.record.file import Loaded
from hami_node.record.writer import RecordWriter
from tests.fakes.ledgers import MemoryFile
from tests.fakes.waiting import eventually

LONG_S = 30.0
"""How long the disk hangs if nobody ends it."""


class HangingFile(MemoryFile):
    """The disk does not answer until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.loads = self.syncs = 0

    def load(self) -> Loaded:
        assert self.released.wait(LONG_S)
        self.loads += 1
        return super().load()

    def save(self, payload: bytes) -> None:
        assert self.released.wait(LONG_S)
        super().save(payload)

    def sync(self) -> None:
        self.syncs += 1


def test_write_that_hangs_holds_nobody_and_the_newest_is_written_in_the_end() -> None:
    file = HangingFile()
    writer = RecordWriter(file)
    began_s = time.monotonic()
    for number in range(100):
        writer.put(b"%d" % number)
    with pytest.raises(RecordError, match=r"has not answered for 0\.1 s: check the disk"):
        writer.save(b"refused", 0.1)
    writer.put(b"last")
    assert time.monotonic() - began_s < LONG_S / 2
    file.released.set()
    eventually(lambda: file.loaded.payload == b"last")
    assert file.saves == 2


def test_what_was_put_is_tried_again_and_what_was_refused_is_not() -> None:
    file = MemoryFile()
    writer = RecordWriter(file, retry_s=0.01)
    file.error = RecordError("no space left")
    writer.put(b"kept")
    file.error = None
    eventually(lambda: file.loaded.payload == b"kept")
    file.error = RecordError("no space left")
    with pytest.raises(RecordError, match="no space left"):
        writer.save(b"refused")
    file.error = None
    time.sleep(0.1)  # ten times as long as a retry takes
    assert (file.saves, file.loaded.payload) == (1, b"kept")
    writer.save(b"next")
    assert (file.saves, file.loaded.payload) == (2, b"next")


def test_read_that_hangs_is_waited_for_once_and_answered_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = HangingFile()
    writer = RecordWriter(file)
    began_s = time.monotonic()
    for _ in range(100):
        with pytest.raises(RecordError, match="check the disk"):
            writer.load()
    assert time.monotonic() - began_s < LONG_S / 2
    assert [record.message for record in caplog.records] == ["record_not_read"]
    file.released.set()
    eventually(lambda: not writer._reader.is_busy)
    assert writer.load() == file.loaded
    assert file.loads == 1, "the first read may have set the record aside"


def test_record_that_is_synced_later_is_synced() -> None:
    file = HangingFile()
    file.released.set()
    RecordWriter(file, is_synced_later=True).save(b"x")
    eventually(lambda: file.syncs == 1)
