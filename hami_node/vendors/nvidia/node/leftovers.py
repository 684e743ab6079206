"""The passes over the limiter's folder on this node; see `vendors.upkeep.Upkeep`."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from hami_node.errors import RegionError, RegionNotReady
from hami_node.logs import kv
from hami_node.vendors.nvidia.node.handles import (
    open_folder,
    open_handle,
    read_whole,
    regular_status,
    subfolder,
)
from hami_node.vendors.nvidia.node.limiter.hook_folder import CONTAINERS, LOCK
from hami_node.vendors.nvidia.node.limiter.limiter_files import LimiterFiles, digest_of
from hami_node.vendors.nvidia.node.limiter.versions import (
    LIBRARY,
    MAX_POINTER_BYTES,
    POINTER,
    decode_pointer,
    digest_in,
)
from hami_node.vendors.nvidia.node.regions.region_file import cut_cache
from hami_node.vendors.on_node.upkeep import BLOCK, ClosedFile, FilesFound, FilesInUse


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


# -- the folders of ended containers: which may go, and what all of them take on the disk ----------
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


# -- the folder in which limiters up to 2.8.0 take a lock, one for the whole node ------------------
# Every container with such a limiter can write there. Only the limiter's own lock stays, an empty
# file: the rest would fill the disk, or be there for the next tenant to read.
SOON_S: Final = 1.0
"""The pause after a pass that removed something: who fills the folder may go on."""
INTERVAL_S: Final = 30.0
MAX_STUCK: Final = 64
_ITSELF: Final = "lock"


def tidy_lock(root: int, containers: int, trash: Trash) -> FilesFound:
    """Remove what is not the limiter's, one bounded step of it. Raises OSError.

    Args:
        root: the folder that has the lock folder; containers can't write it.
        containers: the folder whose `trash` takes what has to be emptied first.
        trash: empties it later.
    """
    removed, used_bytes = 0, 0
    stuck: list[str] = []
    try:
        with open_folder(LOCK, root) as lock, os.scandir(lock) as entries:
            for entry in entries:
                if removed == STEPS:
                    break
                try:
                    status = entry.stat(follow_symlinks=False)
                    if _is_the_limiters(entry.name, status):
                        continue
                    used_bytes += status.st_blocks * BLOCK
                    trash.take(containers, entry.name, lock)
                    removed += 1
                except FileNotFoundError:
                    continue
                except OSError as e:
                    if len(stuck) < MAX_STUCK:
                        stuck.append(f"{LOCK}/{ascii(entry.name)[1:-1]}: {e.strerror or e}")
    except FileNotFoundError:
        return FilesFound()  # no limiter here needs it
    if removed:
        log.warning("lock_folder_tidied", extra=kv(removed=removed))
    next_s = SOON_S if removed else INTERVAL_S
    return FilesFound(used_bytes=used_bytes, stuck=tuple(stuck), next_s=next_s)


def _is_the_limiters(name: str, status: os.stat_result) -> bool:
    return name == _ITSELF and stat.S_ISREG(status.st_mode) and not status.st_blocks


# -- libraries that were installed by us and that no container can get any more --------------------
LIMITER_GRACE_S: Final = 600.0
"""How long nobody must have needed a library before it goes: time to change one's mind."""


class OldLimiters:
    """Those in one folder. One thread uses it."""

    def __init__(self, root: Path, files: LimiterFiles, grace_s: float = LIMITER_GRACE_S) -> None:
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


# -- empties folders that ended containers could write, with no capability and in bounded steps ----
# Such a folder may hold anything: deep trees, thousands of files, odd names, links, folders of
# other users. So it is moved aside first, which gives its name back at once; then every folder in
# it that is not empty is moved up beside it and emptied in its turn. Nothing is opened by a path
# of more than one name, no link is followed, and no depth is too deep. Root without capabilities
# can't enter what other users have closed: that stays, moved aside, and is told.
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
