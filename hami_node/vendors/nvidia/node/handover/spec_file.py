"""A file with CDI specs of ours: read and replaced as a whole, never through a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hami_node.vendors.nvidia.node.handles import open_handle, remove_unfinished, write_whole
from hami_node.vendors.nvidia.node.handover.cdi_spec import CdiSpec, decode_spec, encode_spec

NAME: Final = "hami-node.io-gpu.json"
_MODE: Final = 0o644
_MAX_BYTES: Final = 4 * 1024 * 1024


class SpecFile:
    """One file in a folder that the container engine reads. Used by one thread at a time.

    During an upgrade two daemons may write it. Engines read only names that end in .json or .yaml.
    """

    def __init__(self, folder: Path, name: str = NAME) -> None:
        """Nothing is read or made yet."""
        self._folder, self._name = folder, name
        self._last: tuple[tuple[int, int, int], CdiSpec | None] | None = None
        self._is_tidy = False

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._folder / self._name

    def read(self) -> CdiSpec | None:
        """The specs in the file; None where there are none of ours."""
        mark = self._mark()
        if mark is None:
            return None
        if self._last is None or self._last[0] != mark:
            self._last = (mark, self._content())
        return self._last[1]

    def write(self, spec: CdiSpec) -> bool:
        """Replace the file unless it has these specs; True if it was replaced. Raises OSError."""
        if self.read() == spec:
            return False
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._opened() as folder:
            if not self._is_tidy:
                self._is_tidy = True
                with suppress(FileNotFoundError):  # another daemon has finished it
                    remove_unfinished(folder)
            content = encode_spec(spec)
            try:
                write_whole(folder, self._name, content, _MODE)
            except FileNotFoundError:  # another daemon has just tidied up
                write_whole(folder, self._name, content, _MODE)
        return True

    def remove(self) -> bool:
        """Remove the file if it is ours; True if it was there. Raises OSError."""
        if self.read() is None:
            return False
        with self._opened() as folder, suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=folder)
        return True

    def has_more(self) -> bool:
        """True where files for parts of cards may be beside it."""
        beginning = f"{self._name.removesuffix('.json')}-"
        try:
            return any(name.startswith(beginning) for name in os.listdir(self._folder))
        except OSError:
            return False

    def write_problem(self) -> str:
        """Why the folder can't be written in; "" if it can. Nothing is changed."""
        folder = self._folder
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return ""
        return "it can't be written in" if folder == self._folder else "it can't be made"

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder, which is the administrator's and may be a link."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(folder)

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.lstat()
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _content(self) -> CdiSpec | None:
        try:
            with open_handle(self.path, os.O_RDONLY | os.O_NONBLOCK) as handle:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    return None
                with os.fdopen(os.dup(handle), "rb") as file:
                    data = file.read(_MAX_BYTES + 1)
        except OSError:
            return None
        return decode_spec(data) if len(data) <= _MAX_BYTES else None
