"""The record file: whole or refused, never half."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hami_node.errors import RecordError
from hami_node.record.file import MAX_BYTES, RecordFile, State


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    RecordFile(tmp_path / "r", "grants").save(b"first")
    RecordFile(tmp_path / "r", "grants").save(b"second")
    loaded = RecordFile(tmp_path / "r", "grants").load()
    assert (loaded.payload, loaded.problem) == (b"second", "")
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["grants.record"]


def test_only_root_reaches_the_folder_and_the_file(tmp_path: Path) -> None:
    RecordFile(tmp_path / "r", "grants").save(b"x")
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "r" / "grants.record").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r").chmod(mode)
    with pytest.raises(RecordError, match="others may write its folder"):
        RecordFile(tmp_path / "r", "grants").save(b"x")


def test_missing_record_is_said(tmp_path: Path) -> None:
    loaded = RecordFile(tmp_path, "grants").load()
    assert loaded.payload is None
    assert "missing" in loaded.problem


@pytest.mark.parametrize("cut", [0, 1, 20, 80, 100, -1])
def test_cut_record_is_set_aside(tmp_path: Path, cut: int) -> None:
    record = RecordFile(tmp_path, "grants")
    record.save(b"payload" * 10)
    path = tmp_path / "grants.record"
    path.write_bytes(path.read_bytes()[:cut])
    loaded = record.load()
    assert loaded.payload is None
    assert "damaged" in loaded.problem
    assert [path.name for path in tmp_path.iterdir()] == ["grants.damaged"]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    record = RecordFile(tmp_path, "grants")
    record.save(b"payload")
    path = tmp_path / "grants.record"
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert record.load().payload is None, f"byte {i}"


def test_newer_format_is_set_aside(tmp_path: Path) -> None:
    RecordFile(tmp_path, "grants", version=2).save(b"new")
    loaded = RecordFile(tmp_path, "grants").load()
    assert (loaded.state, loaded.payload) == (State.NEWER, None)
    assert "newer format 2" in loaded.problem
    assert (tmp_path / "grants.v2.newer").exists()


def test_older_format_is_read(tmp_path: Path) -> None:
    RecordFile(tmp_path, "grants").save(b"old")
    assert RecordFile(tmp_path, "grants", version=2).load().payload == b"old"


def test_links_and_other_files_are_not_followed(tmp_path: Path) -> None:
    RecordFile(tmp_path / "other", "grants").save(b"foreign")
    (tmp_path / "grants.record").symlink_to(tmp_path / "other" / "grants.record")
    record = RecordFile(tmp_path, "grants")
    assert record.load().payload is None
    os.mkfifo(tmp_path / "pipe.record")
    assert RecordFile(tmp_path, "pipe").load().payload is None


def test_unwritable_folder_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("a file where the folder should be")
    with pytest.raises(RecordError, match=r"can't be written.*check the disk"):
        RecordFile(tmp_path / "r", "grants").save(b"x")


def test_oversize_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="more than"):
        RecordFile(tmp_path, "grants").save(b"x" * (MAX_BYTES + 1))


def test_synced_record_is_loaded(tmp_path: Path) -> None:
    record = RecordFile(tmp_path, "grants")
    record.save(b"x")
    record.sync()
    assert record.load().payload == b"x"
