"""The passes over the limiter's folder on this node; see `vendors.upkeep.Upkeep`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hami_node.vendors.nvidia.node.delivery.installed_names import LIBRARY
from hami_node.vendors.nvidia.node.handles import open_folder
from hami_node.vendors.nvidia.node.leftovers.folders import Folders
from hami_node.vendors.nvidia.node.leftovers.lock_folder import tidy_lock
from hami_node.vendors.nvidia.node.leftovers.old_limiters import OldLimiters
from hami_node.vendors.nvidia.node.limiter.hook_folder import CONTAINERS
from hami_node.vendors.nvidia.node.limiter.limiter_files import LimiterFiles
from hami_node.vendors.on_node.upkeep import FilesFound, FilesInUse


class LimiterUpkeep:
    """Removes the files of ended containers, then libraries that nobody needs."""

    def __init__(self, hook_path: Path, pins: Callable[[], tuple[str, ...]]) -> None:
        """Work in `<hook path>/vgpu`; nothing is read yet. `pins`: see `LimiterFiles`."""
        self._root = hook_path / "vgpu"
        files = LimiterFiles(self._root, self._root / LIBRARY, pins=pins, is_silent=True)
        self._folders, self._old = Folders(), OldLimiters(self._root, files)

    def tidy(self, used: FilesInUse | None, now_s: float) -> FilesFound:
        """One pass of bounded work."""
        try:
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return FilesFound()  # no container has been served yet
        try:
            found = self._tidy_folders(root, used, now_s)
            next_s = self._old.tidy(root, used, now_s)
        except OSError as e:
            return FilesFound(stuck=(f"{self._root}: {e.strerror or e}",))
        finally:
            os.close(root)
        return replace(found, next_s=_sooner(found.next_s, next_s))

    def _tidy_folders(self, root: int, used: FilesInUse | None, now_s: float) -> FilesFound:
        try:
            with open_folder(CONTAINERS, root) as containers:
                lock = tidy_lock(root, containers, self._folders.trash)
                found = self._folders.tidy(containers, used, now_s)
        except FileNotFoundError:
            return FilesFound()
        return replace(
            found,
            used_bytes=found.used_bytes + lock.used_bytes,
            stuck=(*found.stuck, *lock.stuck),
            next_s=_sooner(found.next_s, lock.next_s),
        )


def _sooner(*waits: float | None) -> float | None:
    return min((wait_s for wait_s in waits if wait_s is not None), default=None)
