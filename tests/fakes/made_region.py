"""Region files made slot by slot, for moments that nobody has recorded."""

from __future__ import annotations

import struct
from typing import Self

from hami_node.vendors.nvidia.regions.region_layouts import MAGIC, Layout

MIB = 1 << 20


class MadeRegion:
    """A region file made slot by slot."""

    def __init__(self, layout: Layout, counted: int) -> None:
        self.layout, self.raw = layout, bytearray(layout.size + 1)
        major, minor = layout.version or (0, 0)
        struct.pack_into("<iII", self.raw, 0, MAGIC, major, minor)
        struct.pack_into("<Q", self.raw, layout.num, 2)
        struct.pack_into("<iiii", self.raw, layout.tail, counted, 1, 2, 1)

    def put(
        self,
        index: int,
        pid: int,
        mib: int,
        *,
        host_pid: int = -1,
        monitored: int | None = None,
        seqlock: int = 2,
        status: int = 1,
        card: int = 0,
        core: int = 0,
    ) -> Self:
        layout = self.layout
        at = layout.slots + index * layout.slot_bytes
        host_pid = pid + 1000 if host_pid < 0 else host_pid
        struct.pack_into("<II", self.raw, at, pid, host_pid)
        if layout.seqlock:
            struct.pack_into("<Q", self.raw, at + layout.seqlock * 8, seqlock)
        use = at + (layout.used + card * layout.used_words) * 8
        total = mib * MIB % (1 << 64)
        struct.pack_into("<QQQQQ", self.raw, use, 0, 0, total, 0, total)
        noted = (mib if monitored is None else monitored) * MIB
        struct.pack_into("<Q", self.raw, at + (layout.monitored + card) * 8, noted)
        if layout.util:
            util = at + (layout.util + card * layout.util_words + 2) * 8
            struct.pack_into("<Q", self.raw, util, core)
        struct.pack_into("<i", self.raw, at + layout.status * 8, status)
        return self
