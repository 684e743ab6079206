"""The limiter's folder on this node, `<hook path>/vgpu`, and what a container gets from it.

Containers can write two things: their own cache file, and the lock folder of old limiters. Every
folder around them belongs to root; below it everything is opened by handle and never by a link.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError, NodeUnfit, RegionError
from hami_node.logs import kv
from hami_node.vendors.nvidia.node.handles import (
    close_to_strangers,
    ensure_shared_file,
    make_writable,
    open_folder,
    open_handle,
    regular_status,
    subfolder,
)
from hami_node.vendors.nvidia.node.limiter.limiter_files import Limiter, LimiterFiles
from hami_node.vendors.nvidia.node.limiter.versions import LIBRARY, LimiterVersion, version_of
from hami_node.vendors.nvidia.regions.region_layouts import HEAD_BYTES, layout_of
from hami_node.vendors.on_node.answer import Slice

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

    def __init__(
        self,
        hook_path: Path,
        pins: Callable[[], tuple[str, ...]] = tuple,
        *,
        problem: str = "",
    ) -> None:
        """Work in `<hook path>/vgpu`; nothing is read or made yet.

        Args:
            hook_path: the folder that contains it.
            pins: returns the sha256 that the library must have, as the settings have them.
            problem: why nothing that is put there reaches containers.
        """
        self.problem = problem
        self._root = hook_path / "vgpu"
        self._files = LimiterFiles(self._root, self._root / LIBRARY, pins=pins)

    def limiter(self) -> Limiter:
        """The limiter's files as they are now."""
        if self.problem:
            return Limiter(problem=self.problem, hint=MOUNT_HINT)
        return self._files.find()

    def limiter_of(self, name: str) -> Limiter:
        """The limiter for the container with this folder.

        One that was served before keeps its library, also while no other may be served.
        """
        found = self.limiter()
        if found.library is None and not self.problem:
            with suppress(OSError), ExitStack() as handles:
                containers = self._root / CONTAINERS
                own = handles.enter_context(open_folder(containers / name))
                kept = None if os.fstat(own).st_mode & _OTHERS_WRITE else _kept(own)
                if kept is not None:
                    path, version = containers / name / kept[0], kept[1]
                    return replace(found, library=path, version=version)
        return found

    def prepare(self, granted: Slice, limiter: Limiter) -> Limiter:
        """Make the container's cache file, and keep its library beside it. Idempotent.

        Returns:
            The limiter for this container: a cache file made by one version must not meet
            another one, so its library stays the same whatever is installed later.

        Raises:
            AllocationError: something can't be made, or a link or a stranger has its place.
        """
        if self.problem:
            raise NodeUnfit(f"{self.problem}: {MOUNT_HINT}")
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
                had = None if os.fstat(own).st_mode & _OTHERS_WRITE else _kept(own)
                kept = self._keep_library(own, own_folder, limiter)
                if kept.library is not None:
                    is_its_own = had is not None and kept.library.parent == own_folder
                    remove_misfit(own, cache_name(name), kept.version, is_its_own=is_its_own)
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
            return replace(limiter, library=path, version=kept[1], sha256="")
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


def node_hook_folder(hook_path: Path, pins: Callable[[], tuple[str, ...]]) -> HookFolder:
    """The folder on this node; whatever is wrong with its mount is logged and refuses pods."""
    problem = folder_problem(hook_path / "vgpu")
    if problem:
        log.error("hook_folder_unusable", extra=kv(reason=problem, hint=MOUNT_HINT))
    return HookFolder(hook_path, pins, problem=problem)


def _kept(own: int) -> tuple[str, LimiterVersion] | None:
    """The library in a container's folder and its version; None if there is none."""
    for name in sorted(os.listdir(own)):
        version = LimiterVersion() if name == LIBRARY else version_of(name, LIBRARY)
        if version is not None and regular_status(own, name) is not None:
            return name, version
    return None


# -- whether the hook folder is the node's: mounted where the hook path says, and writable ---------
# What the daemon puts there is mounted into containers by the host's paths. A folder of the
# daemon's own container would have these files for nobody else.
MOUNT_HINT: Final = (
    "--hook-path (HOOK_PATH) and the daemon's mount of the node's folder have to agree, see "
    "daemonset/overlays/read-only-usr-local"
)
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _MountPoint:
    path: Path
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What this process sees of its mounts.

    Attributes:
        mountinfo: the kernel's list of them.
        is_container: this process is the first of a container, whose root is not the node's.
    """

    mountinfo: Path = Path("/proc/self/mountinfo")
    is_container: bool = field(default_factory=lambda: os.getpid() == 1)


def folder_problem(folder: Path, around: Surroundings | None = None) -> str:
    """Why containers can't get files from that folder; "" if nothing is known against it."""
    around = around or Surroundings()
    mount = _mount_of(folder, around.mountinfo) if around.is_container else None
    if mount is not None and mount.path == Path("/"):
        return f"{folder} is in the daemon's own container, not on the node"
    if mount is not None and not _may_be_same(mount):
        log.warning(
            "hook_folder_from_elsewhere",
            extra=kv(folder=str(folder), mounted_from=mount.root, hint=MOUNT_HINT),
        )
    return _writing_problem(folder)


def _writing_problem(folder: Path) -> str:
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if os.access(there, os.W_OK | os.X_OK):
        return ""
    return f"{folder} can't be written" if there == folder else f"{folder} can't be made"


def _may_be_same(mount: _MountPoint) -> bool:
    """A bind mount's source ends as its target does; a file system of its own says nothing."""
    return mount.root == "/" or mount.root.rsplit("/", 1)[-1] == mount.path.name


def _mount_of(folder: Path, mountinfo: Path) -> _MountPoint | None:
    """The mount that the folder is in; None where that can't be read."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = None
    for line in lines:
        words = line.split(" ")
        if len(words) < 10 or "-" not in words[6:-1]:
            continue
        point = Path(_plain(words[4]))
        is_longer = found is None or len(point.parts) >= len(found.path.parts)
        if is_longer and folder.is_relative_to(point):
            found = _MountPoint(path=point, root=_plain(words[3]))
    return found


def _plain(text: str) -> str:
    """A path of mountinfo, in which spaces and the like are octal numbers."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)


# -- whether a container's cache file may meet a library: one made by another version must not -----
# Programs then hang, crash, or run without limits; so such a container gets a new, empty file.
# Those that run keep the old one, which they have open.
UNKNOWN: Final = ""


def remove_misfit(folder: int, name: str, version: LimiterVersion, *, is_its_own: bool) -> None:
    """Remove the cache file if it may have been made by another library. Raises OSError.

    Args:
        folder: the container's, open.
        name: the cache file's.
        version: of the library that the container gets.
        is_its_own: it is the library that this container has got from the beginning.
    """
    status = regular_status(folder, name)
    if status is None or status.st_size == 0 or status.st_nlink != 1:
        return
    made_by, wanted = _layout(folder, name, status.st_size), version.layout
    is_known = UNKNOWN not in (made_by, wanted)
    if made_by == wanted if is_known else is_its_own:
        return
    os.unlink(name, dir_fd=folder)
    log.warning("cache_file_renewed", extra=kv(file=name, made_by=made_by, library=str(version)))


def _layout(folder: int, name: str, size: int) -> str:
    try:
        with open_handle(name, os.O_RDONLY | os.O_NONBLOCK, folder) as handle:
            return layout_of(size, os.pread(handle, HEAD_BYTES, 0)).name
    except (OSError, RegionError):
        return UNKNOWN
