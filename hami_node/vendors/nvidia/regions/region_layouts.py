"""The layouts of the limiter's region file, as data.

The size of the file, the magic number and, in most layouts, a version tell which one it is.
Source: HAMi-core's struct shared_region_t from 2024-01 to 2026-06.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from hami_node.errors import RegionError, RegionNotReady

MAGIC: Final = 19920718
DEVICES: Final = 16
SLOTS: Final = 1024
HEAD_BYTES: Final = 12
"""Magic number and version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything is, in bytes; inside of a slot in words of 8 bytes.

    Attributes:
        size: of the struct; the limiter makes the file one byte longer.
        version: major and minor, right after the magic number; None in files without.
        num: the number of cards, then their UUIDs, memory limits and core limits.
        slots: the first of the processes' slots; what follows the last one is the tail.
        slot_words: the length of a slot.
        used, used_words: a card's context, module, data, offset and total; how long that is.
        monitored: what the driver said that the process holds, by card.
        util, util_words: a card's utilization, core use at its third word; 0 where there is none.
        status: 0 free, 1 running, 2 suspended.
        seqlock: odd while the process writes; 0 where there is none.
        has_last_kernel: the tail has the time of the last kernel.
        zeroes_monitored: a living process sets `monitored` of those that are gone to 0.
    """

    name: str
    size: int
    version: tuple[int, int] | None
    num: int
    slots: int
    slot_words: int
    used: int = 1
    used_words: int = 8
    monitored: int = 129
    util: int = 145
    util_words: int = 6
    status: int = 241
    seqlock: int = 0
    has_last_kernel: bool = True
    zeroes_monitored: bool = True

    @property
    def slot_bytes(self) -> int:
        """The length of a slot."""
        return self.slot_words * 8

    @property
    def tail(self) -> int:
        """The first byte behind the slots: number of slots, switch, recent kernel, priority."""
        return self.slots + SLOTS * self.slot_bytes

    @property
    def tail_bytes(self) -> int:
        """How much of the tail is read."""
        return 24 if self.has_last_kernel else 16

    def memory_limit_at(self, device: int) -> int:
        """Where a card's memory limit is."""
        return self.slots - (2 * DEVICES - device) * 8

    def core_limit_at(self, device: int) -> int:
        """Where a card's core limit is."""
        return self.slots - (DEVICES - device) * 8

    @property
    def switch_at(self) -> int:
        """Where the utilization switch is."""
        return self.tail + 4

    @property
    def recent_kernel_at(self) -> int:
        """Where the sign of a recent kernel is."""
        return self.tail + 8


_V0A: Final = Layout(
    name="v0a", size=804680, version=None, num=48, slots=1848, slot_words=98,
    used_words=5, monitored=81, util=0, status=97, has_last_kernel=False, zeroes_monitored=False,
)  # fmt: skip
_V0: Final = Layout(
    name="v0", size=1197896, version=None, num=48, slots=1848, slot_words=146, used_words=5,
    monitored=81, util=97, util_words=3, status=145, has_last_kernel=False, zeroes_monitored=False,
)  # fmt: skip
_V1_1: Final = Layout(name="v1.1", size=2008952, version=(1, 1), num=56, slots=1856, slot_words=245)
_V1_1X: Final = Layout(
    name="v1.1x", size=2008984, version=(1, 1), num=88, slots=1888, slot_words=245,
    seqlock=1, used=2, monitored=130, util=146, status=242,
)  # fmt: skip
_V1_2: Final = Layout(
    name="v1.2", size=2008952, version=(1, 2), num=56, slots=1856, slot_words=245, seqlock=242
)
LAYOUTS: Final = (_V0A, _V0, _V1_1, _V1_1X, _V1_2)
_BY_SIZE: Final = {
    size: tuple(layout for layout in LAYOUTS if size in (layout.size, layout.size + 1))
    for size in sorted({layout.size + more for layout in LAYOUTS for more in (0, 1)})
}


def layout_of(size: int, head: bytes) -> Layout:
    """The layout of a file by its size and its first bytes.

    Raises:
        RegionNotReady: the limiter has not finished it.
        RegionError: it is none that is known.
    """
    layouts = _BY_SIZE.get(size)
    if size == 0:
        raise RegionNotReady("empty", "is still empty: no process has used the card yet")
    if layouts is None:
        raise RegionError("size", f"has {size} bytes, which is the size of no known layout")
    if len(head) < HEAD_BYTES:
        raise RegionError("truncated", "became shorter while it was read")
    magic, major, minor = struct.unpack_from("<iII", head)
    if magic == 0:
        raise RegionNotReady("empty", "is still being made")
    if magic != MAGIC:
        raise RegionError("magic", f"begins with {magic} instead of {MAGIC}")
    for layout in layouts:
        if layout.version in (None, (major, minor)):
            return layout
    raise RegionError("version", f"has the unknown version {major}.{minor} for {size} bytes")
