"""Files and folders by handle, so that no part of a path can be swapped for a link meanwhile."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_NO_LINK: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_SWAPPED: Final = "something else has this name"


@contextmanager
def open_handle(path: Path | str, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open what is no link, by a name in `folder` if that is given. Raises OSError."""
    handle = os.open(path, flags | _NO_LINK, 0o600, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def open_folder(name: Path | str, parent: int | None = None) -> Iterator[int]:
    """Open a folder that is there, by a name in `parent` if that is given; never a link."""
    with open_handle(name, os.O_RDONLY | os.O_DIRECTORY, parent) as handle:
        yield handle


@contextmanager
def subfolder(parent: int, name: str, mode: int) -> Iterator[int]:
    """Open the folder `name`, made with this mode if it is missing; never a link.

    Raises:
        OSError: it can't be made, or something else has its name.
    """
    is_new = True
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        is_new = False
        if not stat.S_ISDIR(_status(name, parent).st_mode):
            raise FileExistsError(errno.EEXIST, _SWAPPED, name) from None
    with open_handle(name, os.O_RDONLY | os.O_DIRECTORY, parent) as handle:
        if is_new:
            os.fchmod(handle, mode)  # whatever the umask
        yield handle


def make_writable(folder: int, name: str) -> None:
    """Let every user write in the open folder `name`. Raises OSError."""
    if stat.S_IMODE(os.fstat(folder).st_mode) != 0o777:
        try:
            os.fchmod(folder, 0o777)
        except OSError as e:
            e.filename = name
            raise


def close_to_strangers(folder: int) -> None:
    """Take the right to write from strangers in an open folder of ours. Raises OSError."""
    status = os.fstat(folder)
    if status.st_mode & stat.S_IWOTH and status.st_uid == os.geteuid():
        os.fchmod(folder, stat.S_IMODE(status.st_mode) & ~stat.S_IWOTH)


def ensure_shared_file(folder: int, name: str) -> None:
    """Make an empty file that everybody may write; one with content is kept as it is.

    Raises:
        OSError: it can't be made, or something else has its name.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK
    try:
        with open_handle(name, flags | os.O_CREAT | os.O_EXCL, folder) as handle:
            os.fchmod(handle, 0o666)
            return
    except FileExistsError:
        status = _status(name, folder)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise FileExistsError(errno.EEXIST, _SWAPPED, name)
    is_unfinished = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != 0o666
    if status.st_size == 0 and is_unfinished:
        with open_handle(name, flags, folder) as handle:
            if os.fstat(handle).st_ino == status.st_ino:
                os.fchmod(handle, 0o666)


def regular_status(folder: int, name: str) -> os.stat_result | None:
    """The status of a regular file; None if it is missing or something else."""
    try:
        status = _status(name, folder)
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _status(name: str, folder: int) -> os.stat_result:
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


# -- writes files that others use at the same time: whole under another name, then renamed ---------
# No file that exists is opened for writing: a program that has the old one mapped keeps its
# bytes.
READABLE: Final = 0o444
_UNFINISHED: Final = re.compile(r"\.hami-node-[0-9a-f]{16}\.tmp")


def write_whole(folder: int, name: str, content: bytes, mode: int = READABLE) -> None:
    """Put a file in place of what has this name, through to the disk. Raises OSError."""
    new = f".hami-node-{secrets.token_hex(8)}.tmp"
    try:
        with open_handle(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder) as handle:
            left = memoryview(content)
            while left:
                left = left[os.write(handle, left) :]
            os.fchmod(handle, mode)  # whatever the umask
            os.fsync(handle)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise
    os.fsync(folder)


def read_whole(folder: int, name: str, max_bytes: int) -> bytes | None:
    """The content of a regular file that all may read; None for anything else, or larger."""
    try:
        with open_handle(name, os.O_RDONLY | os.O_NONBLOCK, folder) as handle:
            status = os.fstat(handle)
            is_open = stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH
            if not is_open or status.st_size > max_bytes:
                return None
            content, left = b"", max_bytes + 1
            while left > 0 and (part := os.read(handle, left)):
                content += part
                left -= len(part)
    except OSError:
        return None
    return content if len(content) <= max_bytes else None


def remove_unfinished(folder: int) -> int:
    """Remove what a killed `write_whole` has left; how many. Nobody else may be writing now."""
    removed = 0
    for name in os.listdir(folder):
        if not _UNFINISHED.fullmatch(name):
            continue
        status = regular_status(folder, name)
        if status is not None and status.st_uid == os.geteuid():
            os.unlink(name, dir_fd=folder)
            removed += 1
    return removed
