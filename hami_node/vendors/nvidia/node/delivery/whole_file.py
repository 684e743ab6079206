"""Writes files that others use at the same time: whole under another name, then renamed.

No file that exists is opened for writing: a program that has the old one mapped keeps its bytes.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from typing import Final

from hami_node.vendors.nvidia.node.handles import open_handle, regular_status

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
