"""A container's region file on the node: read by handle, and changed in single aligned fields.

The container can write, truncate and grow the file, and where another plugin made the folder, put
anything else in its place. So nothing is opened before it is known to be a regular file, nothing is
mapped into memory, and nothing is written unless size, magic number and version match right then.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from hami_node.errors import RegionError, RegionNotReady
from hami_node.vendors.nvidia.node.handles import open_handle
from hami_node.vendors.nvidia.node.limiter.hook_folder import CONTAINERS, cache_name
from hami_node.vendors.nvidia.regions.region import RESERVE, Region, decode, slot_count, writes
from hami_node.vendors.nvidia.regions.region_layouts import (
    DEVICES,
    HEAD_BYTES,
    SLOTS,
    Layout,
    layout_of,
)
from hami_node.vendors.on_node.upkeep import BLOCK

ATTEMPTS: Final = 4
"""How often a file is read that its processes write meanwhile; then the last numbers count."""
TURNS: Final = 5
"""How often a file is read at most that misses notes of processes."""
PAUSE_S: Final = 0.04
"""Between these: together they are longer than living processes take to note the driver's word."""
MAX_CACHE_BYTES: Final = 64 * 1024 * 1024
"""On the disk. Far more than the region of any limiter: what lies beyond only fills the disk."""
_SUFFIX: Final = ".cache"
_MAX_NAMES: Final = 64
"""How many names of a folder that a container can write are looked at."""
_FEW: Final = 32
"""Slots that are looked at again one by one; of more the whole table is read."""
_STEP: Final = 8
"""How many slots behind the counted ones are read at first."""
_OPEN: Final = 0o666
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC


class RegionFile:
    """An open region file. Not thread-safe."""

    def __init__(self, handle: int) -> None:
        """Work on an open handle, which the caller closes."""
        self._handle = handle

    def cut(self) -> bool:
        """Free what a file takes on the disk beyond the limit, also behind its end; True if any.

        Raises:
            RegionError: it can't be shortened.
        """
        before = os.fstat(self._handle)
        taken = max(before.st_size, before.st_blocks * BLOCK)
        if taken <= MAX_CACHE_BYTES or before.st_nlink != 1:
            return False
        try:
            os.ftruncate(self._handle, min(before.st_size, MAX_CACHE_BYTES))
        except OSError as e:
            raise RegionError("unwritable", "is too large and can't be shortened") from e
        after = os.fstat(self._handle)
        return (after.st_size, after.st_blocks) != (before.st_size, before.st_blocks)

    def read(self, running: Collection[int] = (), noted: Collection[int] = ()) -> Region:
        """Read and decode what is needed of it; for the arguments see `region.decode`.

        Raises:
            RegionNotReady: the container has not finished it.
            RegionError: it is none, or was truncated or replaced while it was read.
        """
        for _ in range(ATTEMPTS):
            layout = self._layout()
            tail = self._bytes(layout.tail, layout.tail_bytes)
            slots = self._slots(layout, slot_count(tail))
            head = self._bytes(0, layout.slots)
            if not self._is_written(layout, slots):
                break
        if self._layout() is not layout:
            raise RegionError("changed", "was replaced while it was read")
        return decode(layout, head, slots, tail, running, noted)

    def read_settled(self) -> Region:
        """Read until every process is noted that lives; what killed ones leave takes `TURNS`.

        Raises:
            RegionError: as `read`.
        """
        region, pause = self.read(), threading.Event()  # never set: the waits are short
        for _ in range(TURNS - 1):
            if not region.misses_notes:
                break
            pause.wait(PAUSE_S)
            region = self.read(noted=region.noted)
        return region

    def write_memory_limit(self, device: int, limit_bytes: int) -> None:
        """Limit the memory of a card, by its number in the container; obeyed at the next request.

        Raises:
            RegionError: it is no region file right now, or can't be written.
        """
        if not 0 < limit_bytes < 1 << 63:  # 0 would mean no limit
            raise ValueError(limit_bytes)
        self._write(self._layout().memory_limit_at(_checked(device)), "<Q", limit_bytes)

    def write_core_limit(self, device: int, percent: int) -> None:
        """Limit the core use of a card; 0 and 100 for no limit.

        Raises:
            RegionError: as above.
        """
        if not 0 <= percent <= 100:
            raise ValueError(percent)
        self._write(self._layout().core_limit_at(_checked(device)), "<Q", percent)

    def write_feedback(
        self, *, recent_kernel: int | None = None, utilization_switch: int | None = None
    ) -> None:
        """Write what the limiter reads of a monitor; None leaves a field as it is.

        Raises:
            RegionError: as above.
        """
        layout = self._layout()
        if utilization_switch is not None:
            self._write(layout.switch_at, "<i", utilization_switch)
        if recent_kernel is not None:
            self._write(layout.recent_kernel_at, "<i", recent_kernel)

    def _layout(self) -> Layout:
        return layout_of(os.fstat(self._handle).st_size, self._bytes(0, HEAD_BYTES))

    def _slots(self, layout: Layout, count: int) -> bytes:
        """The counted slots, and those behind them up to the first that was never used."""
        size = layout.slot_bytes
        found = self._bytes(layout.slots, min(count + _STEP, SLOTS) * size)
        end = min(count + RESERVE, SLOTS)
        while len(found) < end * size and any(found[-size:]):
            more = self._bytes(layout.slots + len(found), _STEP * size)
            if len(more) < _STEP * size:
                break
            found += more
        return found

    def _is_written(self, layout: Layout, slots: bytes) -> bool:
        """Whether a process was writing its slot when it was read, or has written it since."""
        seen = writes(layout, slots)
        if any(count % 2 for count in seen.values()):
            return True
        if len(seen) > _FEW:
            return seen != writes(layout, self._bytes(layout.slots, len(slots)))
        size, word = layout.slot_bytes, layout.slots + layout.seqlock * 8
        return any(
            self._bytes(word + i * size, 8) != count.to_bytes(8, "little")
            for i, count in seen.items()
        )

    def _bytes(self, at: int, size: int) -> bytes:
        try:
            return os.pread(self._handle, size, at)
        except OSError as e:
            raise RegionError("unreadable", f"can't be read: {e.strerror or e}") from e

    def _write(self, at: int, form: str, number: int) -> None:
        try:
            os.pwrite(self._handle, struct.pack(form, number), at)
        except OSError as e:
            raise RegionError("unwritable", f"can't be written: {e.strerror or e}") from e


@contextmanager
def open_region(hook_path: Path, folder_name: str) -> Iterator[RegionFile]:
    """Open the region file of a container by its folder's name; nothing below is a link.

    Raises:
        RegionNotReady: there is none yet.
        RegionError: something else has its name, or it can't be opened.
    """
    folders = os.O_RDONLY | os.O_DIRECTORY
    try:
        # the folder around them is the administrator's, and may be a link
        root = os.open(hook_path / "vgpu", folders | os.O_CLOEXEC)
        try:
            with (
                open_handle(CONTAINERS, folders, root) as containers,
                open_handle(folder_name, folders, containers) as own,
            ):
                handle = _open_cache(own, folder_name)
        finally:
            os.close(root)
    except OSError as e:
        raise _not_opened(e) from e
    try:
        yield RegionFile(handle)
    finally:
        os.close(handle)


def cut_cache(folder: int, name: str) -> bool:
    """`RegionFile.cut` a file in an open folder. Raises RegionError as `open_region`."""
    try:
        handle = _open_regular(folder, name)
    except OSError as e:
        raise _not_opened(e) from e
    try:
        return RegionFile(handle).cut()
    finally:
        os.close(handle)


def _not_opened(e: OSError) -> RegionError:
    if isinstance(e, FileNotFoundError):
        return RegionNotReady("missing", "is not there yet")
    return RegionError("unreadable", f"can't be opened: {e.strerror or e}")


def _open_cache(own: int, folder_name: str) -> int:
    """Open our cache file, or the only one that another plugin's container has made."""
    try:
        return _open_regular(own, cache_name(folder_name))
    except FileNotFoundError:
        names = [name for name in islice(_names(own), _MAX_NAMES) if name.endswith(_SUFFIX)]
    if len(names) > 1:
        raise RegionError(
            "ambiguous", f"is one of {len(names)}: {', '.join(map(ascii, sorted(names)[:3]))}"
        )
    if not names:
        raise FileNotFoundError
    return _open_regular(own, names[0])


def _names(folder: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name


def _open_regular(own: int, name: str) -> int:
    """Open a file for reading and, if it may be, writing.

    A device or a pipe is not even opened: opening one can have an effect. A file of ours that root
    in the container has closed is opened to all again.
    """
    with open_handle(name, os.O_PATH, own) as path:
        status = os.fstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise RegionError("kind", "is no regular file")
        same = f"/proc/self/fd/{path}"
        is_own = status.st_uid == os.geteuid() and status.st_nlink == 1
        if is_own and status.st_mode & _OPEN != _OPEN:
            with suppress(OSError):
                os.chmod(same, _OPEN)  # a handle like this has no fchmod
        try:
            return os.open(same, os.O_RDWR | _FLAGS)
        except OSError as e:
            if e.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return os.open(same, os.O_RDONLY | _FLAGS)


def _checked(device: int) -> int:
    if not 0 <= device < DEVICES:
        raise ValueError(device)
    return device
