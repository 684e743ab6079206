"""The folders of ended containers: which may go, and what all of them take on the disk."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Sequence
from itertools import islice
from typing import Final

from hami_node.errors import RegionError, RegionNotReady
from hami_node.logs import kv
from hami_node.vendors.nvidia.node.handles import open_handle
from hami_node.vendors.nvidia.node.leftovers.trash import TRASH, Trash
from hami_node.vendors.nvidia.node.regions.region_file import cut_cache
from hami_node.vendors.on_node.upkeep import BLOCK, ClosedFile, FilesFound, FilesInUse

log = logging.getLogger(__name__)

GRACE_S: Final = 60.0
"""How long nobody must have known of a pod before its files go."""
MAX_FOLDERS: Final = 4096
MAX_FILES: Final = 64
"""Read in one folder to see what it takes; ours have three."""
MORE_S: Final = 2.0
"""The pause in long work."""
_OURS: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]{0,63})_[a-z0-9][-a-z0-9]{0,62}")


class Folders:
    """Those in one open folder. One thread uses it."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        """Nobody has been missed yet."""
        self._grace_s = grace_s
        self._missed: dict[str, float] = {}  # since when nobody has known of its pod
        self.trash = Trash()

    def tidy(self, containers: int, used: FilesInUse | None, now_s: float) -> FilesFound:
        """Remove what may go, in bounded steps. Raises OSError."""
        stuck: list[str] = []
        has_more = False
        if used is None:
            self._missed.clear()
        else:
            self._miss(os.listdir(containers), used, now_s)
            stuck = self._take(containers, used, now_s)
            has_more = self.trash.empty(containers, now_s)
        names = os.listdir(containers)
        used_bytes, closed = _used_bytes(containers, names[:MAX_FOLDERS])
        return FilesFound(
            folders=sum(1 for name in names if _OURS.fullmatch(name)),
            used_bytes=used_bytes,
            closed=closed,
            stuck=(*stuck, *self.trash.stuck),
            next_s=MORE_S if has_more else self._soonest_s(now_s),
        )

    def _miss(self, names: Sequence[str], used: FilesInUse, now_s: float) -> None:
        """Note for each folder since when nobody has known of its pod."""
        found = ((name, _OURS.fullmatch(name)) for name in names)
        self._missed = {
            name: self._missed.get(name, now_s)
            for name, match in found
            if match is not None and match[1] not in used.uids
        }

    def _take(self, containers: int, used: FilesInUse, now_s: float) -> list[str]:
        """Move what may go aside; what can't be moved."""
        stuck = []
        for name, since_s in tuple(self._missed.items()):
            uid = name.partition("_")[0]
            if now_s - since_s < self._grace_s or used.is_held(uid):
                continue
            try:
                self.trash.take(containers, name)
            except FileNotFoundError:
                pass
            except OSError as e:
                stuck.append(f"{name}: {e.strerror or e}")
                continue
            log.info("container_files_removed", extra=kv(folder=name))
            del self._missed[name]
        return stuck

    def _soonest_s(self, now_s: float) -> float | None:
        waits = [self._grace_s - (now_s - since_s) for since_s in self._missed.values()]
        return min((wait_s for wait_s in waits if wait_s > 0), default=None)


def _used_bytes(containers: int, names: Sequence[str]) -> tuple[int, tuple[ClosedFile, ...]]:
    """What the folders take on the disk, and which cache files can't be kept small.

    A library with several names counts once.
    """
    seen: dict[tuple[int, int], int] = {}
    closed: list[ClosedFile] = []
    for name in names:
        try:
            with open_handle(name, os.O_RDONLY | os.O_DIRECTORY, containers) as folder:
                why = _add_files(folder, seen, is_deep=name == TRASH)
        except OSError:
            continue  # gone, no folder, or closed to us
        if why and _OURS.fullmatch(name):
            closed.append(ClosedFile(folder=name, why=why))
    return sum(seen.values()), tuple(closed)


def _add_files(folder: int, seen: dict[tuple[int, int], int], *, is_deep: bool) -> str:
    """Add what the files take, cache files after they were cut; why one can't be, if so."""
    why = ""
    with os.scandir(folder) as entries:
        for entry in islice(entries, MAX_FILES):
            try:
                if entry.name.endswith(".cache") and entry.is_file(follow_symlinks=False):
                    why = _cut(folder, entry.name) or why
                status = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    seen[status.st_dev, status.st_ino] = status.st_blocks * BLOCK
                elif is_deep and stat.S_ISDIR(status.st_mode):
                    with open_handle(entry.name, os.O_RDONLY | os.O_DIRECTORY, folder) as below:
                        _add_files(below, seen, is_deep=False)
            except OSError:
                continue
    return why


def _cut(folder: int, name: str) -> str:
    """Shorten a cache file that a container has blown up; why that can't be, if so."""
    try:
        if cut_cache(folder, name):
            log.warning("cache_file_cut", extra=kv(file=ascii(name)))
    except RegionNotReady:
        return ""  # gone meanwhile
    except RegionError as e:
        return str(e)
    return ""
