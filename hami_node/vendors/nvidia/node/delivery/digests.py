"""Checksums of files on the node, computed once for each content."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

from hami_node.vendors.nvidia.node.elf import MAX_BYTES
from hami_node.vendors.nvidia.node.handles import open_handle

Content = tuple[int, int, int, int]
"""Which file it is, its size and when it was last written."""
_PART_BYTES: Final = 1 << 20


def content_of(status: os.stat_result) -> Content:
    """What a file's checksum is remembered by: another name or mode does not change it."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Digests:
    """The sha256 of regular files of at most a library's size. Any thread may ask."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._known: dict[Content, str] = {}

    def of(self, path: Path) -> tuple[Content, str] | None:
        """The file's content and its sha256; None where it can't be told."""
        try:
            with open_handle(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                    return None
                content = content_of(status)
                if content not in self._known:
                    digest = _read(handle)
                    if content_of(os.fstat(handle)) != content:
                        return None  # it is being written
                    self._known[content] = digest
                return content, self._known[content]
        except OSError:
            return None

    def keep(self, contents: Collection[Content]) -> None:
        """Forget all others."""
        self._known = {
            content: digest for content, digest in self._known.items() if content in contents
        }


def _read(handle: int) -> str:
    digest, left = hashlib.sha256(), MAX_BYTES + 1
    while left > 0 and (part := os.read(handle, min(left, _PART_BYTES))):
        digest.update(part)
        left -= len(part)
    return digest.hexdigest()
