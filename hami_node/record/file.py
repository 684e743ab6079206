"""A small file that survives kill -9: written whole under another name, then renamed.

The first line holds the format's version, the size and a checksum of what follows; so a damaged,
cut or foreign file is recognized, and is never taken for a record.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from hami_node.errors import RecordError
from hami_node.logs import kv

log = logging.getLogger(__name__)

MAX_BYTES: Final = 128 * 1024 * 1024
"""What is larger is no record: more than all pods of a node have in one."""

_HEADER: Final = re.compile(rb"hami-node ([a-z-]{1,32}) ([0-9]{1,6}) ([0-9]{1,9}) ([0-9a-f]{64})\n")
_HEADER_BYTES: Final = 160
_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC


class State(StrEnum):
    """What was found on the disk."""

    WHOLE = "whole"
    MISSING = "missing"
    DAMAGED = "damaged"
    """Or unreadable, for any reason."""
    NEWER = "newer"
    """Of a format that this program does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The record, as far as it could be read.

    Attributes:
        payload: the record; None where there is none that can be read.
        problem: what is wrong, for people; "" for a whole record.
        kept_as: the ending of the name under which a record that can't be read is kept.
    """

    state: State
    payload: bytes | None = None
    problem: str = ""
    kept_as: str = ""

    @property
    def is_lost(self) -> bool:
        """True where there was a record that could not be read."""
        return self.state in (State.DAMAGED, State.NEWER)


class RecordFile:
    """One record of this node. Not thread-safe: its owner holds a lock."""

    def __init__(self, folder: Path, name: str, *, version: int = 1) -> None:
        """Keep the record `name` in `folder`, which only root may reach; nothing is read yet."""
        self._folder, self._name, self._version = folder, name, version
        self.path = folder / f"{name}.record"

    def load(self) -> Loaded:
        """Read the record. Never raises: what can't be read is set aside and reported.

        So is a record of a newer format, for the newer program that may come back.
        """
        found = self._read()
        if not found.is_lost:
            return found
        kept = self._folder / f"{self._name}.{found.kept_as}"
        try:
            self.path.replace(kept)  # in place of what was kept there before
        except OSError as e:  # it stays, and is replaced by the next save
            log.warning("record_not_set_aside", extra=kv(record=self.path, error=str(e)))
            return found
        return replace(found, problem=f"{found.problem}; it is kept as {kept}")

    def save(self, payload: bytes) -> None:
        """Replace the record. It survives the end of this process, but not yet a power loss.

        Raises:
            RecordError: it can't be written; the message has the reason and a hint.
        """
        if len(payload) > MAX_BYTES:
            raise RecordError(f"{self.path} would have {len(payload)} bytes, more than {MAX_BYTES}")
        digest = _digest(self._name, self._version, payload)
        header = f"hami-node {self._name} {self._version} {len(payload)} {digest}\n".encode()
        new = self._folder / f"{self._name}.new"
        try:
            _make_closed(self._folder)
            new.unlink(missing_ok=True)
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(header)
                file.write(payload)
            new.replace(self.path)
        except OSError as e:
            raise RecordError(
                f"{self.path} can't be written: {e.strerror or e}: check the disk, and that the "
                f"daemon may write {self._folder}"
            ) from e

    def sync(self) -> None:
        """Write the record through to the disk, if it is there, so that it survives a power loss.

        Raises:
            RecordError: the disk refused it.
        """
        try:
            for path in (self.path, self._folder):
                handle = os.open(path, os.O_RDONLY | _FLAGS)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        except FileNotFoundError:  # somebody has removed it
            return
        except OSError as e:
            raise RecordError(f"{self.path} can't be synced: {e.strerror or e}") from e

    def _read(self) -> Loaded:
        path = self.path
        try:
            raw = _read_regular(path)
        except FileNotFoundError:
            return Loaded(state=State.MISSING, problem=f"{path} is missing")
        except OSError as e:
            return _damaged(f"{path} can't be read: {e.strerror or e}")
        header = _HEADER.match(raw[:_HEADER_BYTES])
        if header is None or header[1].decode() != self._name:
            return _damaged(f"{path} is damaged: it is no {self._name} record")
        version, size = int(header[2]), int(header[3])
        if version > self._version:
            problem = f"{path} is of the newer format {version}"
            return Loaded(state=State.NEWER, problem=problem, kept_as=f"v{version}.newer")
        payload = raw[header.end() :]
        if len(payload) != size or _digest(self._name, version, payload) != header[4].decode():
            return _damaged(f"{path} is damaged: size or checksum differ")
        return Loaded(state=State.WHOLE, payload=payload)


def _make_closed(folder: Path) -> None:
    """Create the folder; one that is there must not be open to strangers. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(0, "others may write its folder")


def _damaged(problem: str) -> Loaded:
    return Loaded(state=State.DAMAGED, problem=problem, kept_as="damaged")


def _digest(name: str, version: int, payload: bytes) -> str:
    return hashlib.sha256(f"{name} {version}\n".encode() + payload).hexdigest()


def _read_regular(path: Path) -> bytes:
    """Read a regular file of bounded size. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no regular file")
        if status.st_size > MAX_BYTES + _HEADER_BYTES:
            raise OSError(0, f"it has {status.st_size} bytes, more than {MAX_BYTES}")
        return file.read(MAX_BYTES + _HEADER_BYTES)
