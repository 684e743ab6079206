"""Libraries that were installed by us and that no container can get any more."""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from hami_node.logs import kv
from hami_node.vendors.nvidia.node.delivery.digests import digest_of
from hami_node.vendors.nvidia.node.delivery.installed_names import (
    MAX_POINTER_BYTES,
    POINTER,
    decode_pointer,
    digest_in,
)
from hami_node.vendors.nvidia.node.delivery.whole_file import read_whole
from hami_node.vendors.nvidia.node.handles import open_handle, regular_status
from hami_node.vendors.nvidia.node.limiter.limiter_files import LimiterFiles
from hami_node.vendors.on_node.upkeep import FilesInUse

log = logging.getLogger(__name__)

GRACE_S: Final = 600.0
"""How long nobody must have needed a library before it goes: time to change one's mind."""


class OldLimiters:
    """Those in one folder. One thread uses it."""

    def __init__(self, root: Path, files: LimiterFiles, grace_s: float = GRACE_S) -> None:
        """Look in `root`; `files` says what is served from there."""
        self._root, self._files, self._grace_s = root, files, grace_s
        self._idle: dict[str, float] = {}  # since when nobody has needed it

    def tidy(self, root: int, used: FilesInUse | None, now_s: float) -> float | None:
        """Remove what may go; when the next one may, None for nothing. Raises OSError.

        A library stays while the record or a container's folder names it: kubelet mounts the same
        path again when a container restarts. So does what the next container gets.
        """
        try:
            fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None  # an installer is at work: it may need what is idle now
        try:
            idle = self._idle_now(root, used) if used is not None else ()
            self._idle = {name: self._idle.get(name, now_s) for name in idle}
            for name, since_s in tuple(self._idle.items()):
                if now_s - since_s >= self._grace_s:
                    self._remove(root, name)
        finally:
            fcntl.flock(root, fcntl.LOCK_UN)
        waits = (self._grace_s - (now_s - since_s) for since_s in self._idle.values())
        return min((wait_s for wait_s in waits if wait_s > 0), default=None)

    def _idle_now(self, root: int, used: FilesInUse) -> tuple[str, ...]:
        served = self._files.find().library
        if served is None:
            return ()  # something is wrong: nothing that could help goes
        last = decode_pointer(read_whole(root, POINTER, MAX_POINTER_BYTES) or b"")
        next_ones = {served.name, last.name if last is not None else ""}
        return tuple(
            name
            for name in sorted(os.listdir(root))
            if digest_in(name)
            and name not in next_ones
            and _has_one_name(root, name)
            and not any(name in answer for answer in used.answers)
        )

    def _remove(self, root: int, name: str) -> None:
        del self._idle[name]
        with (
            suppress(OSError),  # what can't be read stays
            open_handle(name, os.O_RDONLY | os.O_NONBLOCK, root) as handle,
        ):
            if digest_of(handle).startswith(digest_in(name)):
                os.unlink(name, dir_fd=root)
                log.info("limiter_removed", extra=kv(library=str(self._root / name)))


def _has_one_name(root: int, name: str) -> bool:
    """True for a file of ours that no container's folder has as well."""
    status = regular_status(root, name)
    return status is not None and status.st_nlink == 1 and status.st_uid == os.geteuid()
