"""Usage files of containers, damaged: refused, or numbers that can be right."""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import Final

from hami_node.errors import RegionError, RegionNotReady
from hami_node.vendors.nvidia.node.regions.region_file import RegionFile
from hami_node.vendors.nvidia.node.regions.usage_reader import uses_of
from hami_node.vendors.nvidia.regions.region import slot_count
from hami_node.vendors.nvidia.regions.region_layouts import LAYOUTS, Layout, layout_of
from hami_node.vendors.on_node.usage import Holder
from tests.fakes.cards import card
from tests.fakes.regions import recorded_regions
from tests.fuzz.mutate import Source

MEMORY_MIB: Final = 81920
CARDS: Final = (card(4, memory_mib=MEMORY_MIB), card(6, memory_mib=MEMORY_MIB))
HOLDER: Final = Holder(pod_uid="u", namespace="ns", pod="p", container="c", cards=CARDS)
WORDS: Final = (0, 1, 2, 3, 101, 1024, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
SPARE: Final = 12
"""Slots behind the counted ones that are damaged, too."""


@cache
def _samples() -> tuple[tuple[Layout, bytes], ...]:
    found = (recorded.content for recorded in recorded_regions())
    return tuple((layout_of(len(raw), raw[:12]), raw) for raw in found)


@cache
def _memory() -> int:
    return os.memfd_create("region")


def _place(source: Source, layout: Layout, count: int) -> int:
    """Where a word is: of the head, of a field of a slot, of any in a slot, or of the tail."""
    stream = source.stream
    fields = (0, layout.used, layout.used + 4, layout.monitored, layout.util, layout.status)
    slot = layout.slots + stream.randrange(count + SPARE) * layout.slot_bytes
    return stream.choice(
        (
            stream.randrange(layout.slots // 8) * 8,
            layout.num,
            *[slot + stream.choice((*fields, layout.seqlock)) * 8] * 3,
            slot + stream.randrange(layout.slot_words) * 8,
            layout.tail,
            layout.tail + stream.randrange(layout.tail_bytes // 8) * 8,
        )
    )


def _damaged(source: Source) -> bytes:
    stream = source.stream
    layout, sample = stream.choice(_samples())
    raw, count = bytearray(sample), slot_count(sample[layout.tail :])
    for _ in range(stream.randint(0, 6)):
        struct.pack_into("<Q", raw, _place(source, layout, count), stream.choice(WORDS))
    sizes = [each.size + more for each in LAYOUTS for more in (-1, 0, 1, 2)]
    size = len(raw) if stream.random() < 0.8 else stream.choice((0, 1, 11, 12, 4096, *sizes))
    source.made.append((layout.name, size))
    return bytes(raw[:size]).ljust(size, b"\0")


def region(source: Source) -> str:
    """A damaged file is refused, or gives numbers that can be right, of the holder's cards."""
    raw, file, stream = _damaged(source), _memory(), source.stream
    os.ftruncate(file, 0)
    os.pwrite(file, raw, 0)
    running, noted = (
        frozenset(stream.choices(range(100000, 140000), k=stream.randint(0, 3))) for _ in range(2)
    )
    try:
        uses = tuple(uses_of(HOLDER, RegionFile(file).read(running, noted)))
    except RegionNotReady:
        return "not ready"
    except RegionError as e:
        return f"refused: {e.reason}"
    assert [use.uuid for use in uses] == [item.uuid for item in CARDS]
    for use in uses:
        for used in (use.memory_bytes, use.context_bytes, use.module_bytes, use.data_bytes):
            assert used is None or 0 <= used <= MEMORY_MIB << 20
        assert use.core_percent is None or 0 <= use.core_percent <= 100
        assert use.core_limit_percent is None or 0 < use.core_limit_percent < 100
    return "read"
