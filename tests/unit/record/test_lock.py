"""The lock on the records' folder within one process: what can't be locked, and what hangs."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hami_node.record.lock import RecordLock
from tests.fakes.waiting import eventually

LIMIT_S = 10.0
SHORT_S = 0.05


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Somebody else holds the folder."""
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


def is_free(folder: Path) -> bool:
    try:
        with held_now(folder):
            return True
    except BlockingIOError:
        return False


@contextmanager
def held_now(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def test_folder_is_made_closed_to_others_and_held(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    lock = RecordLock(folder)
    assert lock.take(LIMIT_S)
    assert lock.problem == ""
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not is_free(folder)


def test_lock_of_somebody_else_is_told_and_taken_over(tmp_path: Path) -> None:
    lock = RecordLock(tmp_path)
    with held(tmp_path):
        assert not lock.take(SHORT_S)
        eventually(lambda: "another hami-node serves this node" in lock.problem, LIMIT_S)
    assert lock.wait(LIMIT_S)
    assert not is_free(tmp_path)


def test_folder_that_can_not_be_opened_holds_nobody_up_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "record"
    folder.write_text("no folder")
    lock = RecordLock(folder)
    assert lock.take(LIMIT_S)
    (line,) = [line for line in caplog.records if line.message == "record_not_locked"]
    assert f"{folder} can't be locked: Not a directory" in str(line.__dict__)
    folder.unlink()
    folder.mkdir()
    eventually(lambda: not is_free(folder), LIMIT_S)


class Hanging(RecordLock):
    """Of a disk that does not answer."""

    answers = threading.Event()

    def _open(self) -> int:
        self.answers.wait(LIMIT_S)
        return super()._open()


def test_folder_that_hangs_is_told_and_waited_for(tmp_path: Path) -> None:
    lock = Hanging(tmp_path)
    assert not lock.take(SHORT_S)
    assert lock.problem == f"{tmp_path} has not answered: check the disk of this node"
    lock.answers.set()
    assert lock.wait(LIMIT_S)
