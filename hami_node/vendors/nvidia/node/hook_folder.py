"""The limiter's folder on this node, `<hook path>/vgpu`, and what a container gets from it.

Containers can write two things: their own cache file, and the lock folder of old limiters. Every
folder around them belongs to root; below it everything is opened by handle and never by a link.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.logs import kv
from hami_node.vendors.answer import Slice
from hami_node.vendors.nvidia.node.handles import (
    close_to_strangers,
    ensure_shared_file,
    make_writable,
    regular_status,
    subfolder,
)
from hami_node.vendors.nvidia.node.limiter_files import LIBRARY, Limiter, LimiterFiles
from hami_node.vendors.nvidia.node.limiter_version import LimiterVersion, version_of

log = logging.getLogger(__name__)

CONTAINERS: Final = "containers"
LOCK: Final = "lock"
RECREATE: Final = "delete and recreate the pod"
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def cache_name(folder_name: str) -> str:
    """The name of a container's cache file, in its folder on the node and inside."""
    return f"{folder_name}.cache"


class HookFolder:
    """Finds the limiter and prepares containers. One thread prepares at a time."""

    def __init__(self, hook_path: Path) -> None:
        """Work in `<hook path>/vgpu`; nothing is read or made yet."""
        self._root = hook_path / "vgpu"
        self._files = LimiterFiles(self._root, self._root / LIBRARY)

    def limiter(self) -> Limiter:
        """The limiter's files as they are now."""
        return self._files.find()

    def prepare(self, granted: Slice, limiter: Limiter) -> Limiter:
        """Make the container's cache file, and keep its library beside it. Idempotent.

        Returns:
            The limiter for this container: a cache file made by one version must not meet
            another one, so its library stays the same whatever is installed later.

        Raises:
            AllocationError: something can't be made, or a link or a stranger has its place.
        """
        name = granted.folder_name
        own_folder = self._root / CONTAINERS / name
        try:
            self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
            with ExitStack() as handles:
                # the folder itself is the administrator's, and may be a link
                root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                handles.callback(os.close, root)
                containers = handles.enter_context(subfolder(root, CONTAINERS, 0o755))
                close_to_strangers(root)
                close_to_strangers(containers)
                own = handles.enter_context(subfolder(containers, name, 0o755))
                kept = self._keep_library(own, own_folder, limiter)
                ensure_shared_file(own, cache_name(name))
                if kept.uses_lock:
                    make_writable(handles.enter_context(subfolder(root, LOCK, 0o777)), LOCK)
        except OSError as e:
            hint = "check the disk and the mounts of the daemon"
            if isinstance(e, FileExistsError):
                hint = "find out who made it, and remove it"
            raise AllocationError(
                f"{e.filename or name} can't be made below {self._root} for {name}: "
                f"{e.strerror or e}: {hint}"
            ) from e
        return kept

    def _keep_library(self, own: int, own_folder: Path, limiter: Limiter) -> Limiter:
        """The library that this container was first served with, as a second name of its file.

        Raises:
            AllocationError: the library was replaced after it was checked.
        """
        if os.fstat(own).st_mode & _OTHERS_WRITE:
            return limiter  # made by HAMi or an earlier version: the container could put its own
        kept = _kept(own)
        if kept is not None:
            path = own_folder / kept[0]
            problem = self._files.library_problem(path)
            if problem:
                raise AllocationError(f"{path} {problem}: {RECREATE}")
            return replace(limiter, library=path, version=kept[1])
        if limiter.library is None:
            return limiter
        name = limiter.library.name
        try:
            os.link(limiter.library, name, dst_dir_fd=own, follow_symlinks=False)
        except OSError as e:  # another file system, or a file that isn't root's
            log.warning("limiter_not_kept", extra=kv(folder=str(own_folder), error=str(e)))
            return limiter
        self._files.was_linked(name)
        status = regular_status(own, name)
        if status is None or (status.st_dev, status.st_ino) != limiter.identity:
            os.unlink(name, dir_fd=own)
            raise AllocationError(f"{limiter.library} is being replaced just now: {RECREATE}")
        return replace(limiter, library=own_folder / name)


def _kept(own: int) -> tuple[str, LimiterVersion] | None:
    """The library in a container's folder and its version; None if there is none."""
    for name in sorted(os.listdir(own)):
        version = LimiterVersion() if name == LIBRARY else version_of(name, LIBRARY)
        if version is not None and regular_status(own, name) is not None:
            return name, version
    return None
