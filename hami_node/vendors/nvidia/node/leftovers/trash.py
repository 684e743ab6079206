"""Empties folders that ended containers could write, with no capability and in bounded steps.

Such a folder may hold anything: deep trees, thousands of files, odd names, links, folders of other
users. So it is moved aside first, which gives its name back at once; then every folder in it that
is not empty is moved up beside it and emptied in its turn. Nothing is opened by a path of more than
one name, no link is followed, and no depth is too deep. Root without capabilities can't enter what
other users have closed: that stays, moved aside, and is told.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

from hami_node.vendors.nvidia.node.handles import open_handle, subfolder

TRASH: Final = ".removed"
"""Beside the folders of containers, so that moving into it is one step."""
STEPS: Final = 2000
"""Files that are removed in one pass, and folders that are looked into."""
RETRY_S: Final = 3600.0
"""How long what can't be removed waits for the next try."""
_OWN: Final = 0o700
_NOT_EMPTY: Final = (errno.ENOTEMPTY, errno.EEXIST)


class Trash:
    """What was moved aside in one folder of containers. One thread uses it."""

    def __init__(self) -> None:
        """Nothing has been tried yet."""
        self._stuck: dict[str, tuple[str, float]] = {}  # why, and when to try again
        self._steps = 0

    @property
    def stuck(self) -> tuple[str, ...]:
        """What can't be removed, each with the reason."""
        return tuple(f"{TRASH}/{name}: {why}" for name, (why, _) in sorted(self._stuck.items()))

    def take(self, containers: int, name: str, source: int | None = None) -> None:
        """Move a folder of `source` aside, or remove what is no folder. Raises OSError."""
        folder = containers if source is None else source
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=folder)
            return
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)
            return
        top = os.fsdecode(os.fsencode(name)[:200])
        with subfolder(containers, TRASH, _OWN) as trash:
            _move(folder, name, trash, f"{secrets.token_hex(4)}-{top}")

    def empty(self, containers: int, now_s: float) -> bool:
        """Remove what was moved aside; True if there is more that could go. Raises OSError."""
        self._steps = STEPS
        try:
            with open_handle(TRASH, os.O_RDONLY | os.O_DIRECTORY, containers) as trash:
                self._empty_all(trash, now_s)
                left = os.listdir(trash)
        except FileNotFoundError:
            self._stuck = {}
            return False
        if not left:
            os.rmdir(TRASH, dir_fd=containers)
        return any(name not in self._stuck for name in left)

    def _empty_all(self, trash: int, now_s: float) -> None:
        there = set(os.listdir(trash))
        self._stuck = {name: why for name, why in self._stuck.items() if name in there}
        waiting = [name for name in sorted(there) if self._is_due(name, now_s)]
        while waiting and self._steps > 0:
            for name in waiting:
                if self._steps > 0:
                    self._try(trash, name, now_s)
            # what was moved up meanwhile
            known, there = there, set(os.listdir(trash))
            waiting = sorted(there - known)

    def _is_due(self, name: str, now_s: float) -> bool:
        return name not in self._stuck or self._stuck[name][1] <= now_s

    def _try(self, trash: int, name: str, now_s: float) -> None:
        """Empty and remove one folder."""
        self._steps -= 1
        self._stuck.pop(name, None)
        try:
            with _entered(trash, name) as folder:
                why = self._empty(trash, folder, name)
            if self._steps > 0 and not why:
                os.rmdir(name, dir_fd=trash)
        except OSError as e:
            is_partly_read = e.errno in _NOT_EMPTY
            why = "" if is_partly_read else e.strerror or str(e)
        if why:
            self._stuck[name] = why, now_s + RETRY_S

    def _empty(self, trash: int, folder: int, name: str) -> str:
        """Remove what is in an open folder; why something stays, "" for nothing."""
        if os.fstat(folder).st_dev != os.fstat(trash).st_dev:
            return "another disk is mounted there"
        why = ""
        with os.scandir(folder) as entries:
            for entry in islice(entries, max(self._steps, 0)):
                self._steps -= 1
                try:
                    if entry.is_dir(follow_symlinks=False):
                        _remove_folder(folder, entry.name, trash, name)
                    else:
                        os.unlink(entry.name, dir_fd=folder)
                except OSError as e:
                    why = f"{entry.name!r}: {e.strerror or e}"
        return why


@contextmanager
def _entered(parent: int, name: str) -> Iterator[int]:
    """Open a folder to empty it; one of ours is opened for us first. Raises OSError."""
    with suppress(PermissionError):
        _open_up(parent, name)
    with open_handle(name, os.O_RDONLY | os.O_DIRECTORY, parent) as handle:
        yield handle


def _open_up(parent: int, name: str) -> None:
    """Give ourselves all rights in a folder that is ours. Raises OSError."""
    with open_handle(name, os.O_PATH | os.O_DIRECTORY, parent) as handle:
        status = os.fstat(handle)
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid == os.geteuid() and mode & _OWN != _OWN:
            os.chmod(f"/proc/self/fd/{handle}", mode | _OWN)  # a handle like this has no fchmod


def _remove_folder(folder: int, name: str, trash: int, above: str) -> None:
    """Remove an empty folder; move another one up, to be emptied there. Raises OSError."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as e:
        if e.errno not in _NOT_EMPTY:
            raise
        top = above.partition("-")[2][:120]
        _move(folder, name, trash, f"{secrets.token_hex(4)}-{top}")


def _move(folder: int, name: str, target: int, new: str) -> None:
    """Move a folder; without the right to write in it, it can't go elsewhere. Raises OSError."""
    with suppress(PermissionError):
        _open_up(folder, name)
    os.rename(name, new, src_dir_fd=folder, dst_dir_fd=target)
