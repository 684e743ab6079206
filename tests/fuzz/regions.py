"""What is fuzzed of region files: recorded ones, damaged, through the reader of real files.

As in `targets`: a target returns the outcome in a word; here `RegionError` is an answer.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from hami_node.errors import RegionError, RegionNotReady
from hami_node.vendors.nvidia.node.regions.region_file import RegionFile
from hami_node.vendors.nvidia.node.regions.usage_reader import uses_of
from hami_node.vendors.nvidia.regions.region import slot_count
from hami_node.vendors.nvidia.regions.region_layouts import LAYOUTS, MAGIC, Layout, layout_of
from hami_node.vendors.on_node.usage import Holder
from tests.fakes.cards import card
from tests.fakes.regions import recorded_regions
from tests.fuzz.mutate import Source

MEMORY_MIB: Final = 81920
CARDS: Final = (card(4, memory_mib=MEMORY_MIB), card(6, memory_mib=MEMORY_MIB))
HOLDER: Final = Holder(pod_uid="u", namespace="ns", pod="p", container="c", cards=CARDS)
WORDS: Final = (0, 1, 2, 3, 101, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
COUNTS: Final = (-1, 0, 1, 2, 5, 60, 1023, 1024, 1025, 2**31 - 1, -(2**31))
SPARE: Final = 12
"""Slots behind the counted ones that are kept of a recording."""


@dataclass(slots=True)
class Damaged:
    """A region file in the making: its size, and the parts that are not zero."""

    layout: Layout
    size: int
    head: bytearray
    slots: bytearray
    tail: bytearray


@cache
def samples() -> tuple[tuple[Layout, int, bytes, bytes, bytes], ...]:
    """The recordings, by parts."""
    found = []
    for recorded in recorded_regions():
        raw = recorded.content
        layout = layout_of(len(raw), raw[:12])
        end = layout.slots + (slot_count(raw[layout.tail :]) + SPARE) * layout.slot_bytes
        slots, tail = raw[layout.slots : end], raw[layout.tail : layout.tail + layout.tail_bytes]
        found.append((layout, len(raw), raw[: layout.slots], slots, tail))
    return tuple(found)


def _part(made: Damaged, stream: random.Random) -> bytearray:
    return stream.choice((made.head, made.slots, made.slots, made.slots, made.tail))


def _byte(made: Damaged, stream: random.Random) -> None:
    part = _part(made, stream)
    part[stream.randrange(len(part))] = stream.randrange(256)


def _word(made: Damaged, stream: random.Random) -> None:
    part = _part(made, stream)
    at = stream.randrange(len(part) // 8) * 8
    struct.pack_into("<Q", part, at, stream.choice(WORDS))


def _field(made: Damaged, stream: random.Random) -> None:
    """A word that is read of some slot."""
    layout = made.layout
    words = (0, layout.used, layout.used + 4, layout.monitored, layout.util, layout.status)
    slot = stream.randrange(len(made.slots) // layout.slot_bytes)
    at = (slot * layout.slot_words + stream.choice((*words, layout.seqlock))) * 8
    struct.pack_into("<Q", made.slots, at, stream.choice(WORDS))


def _copy(made: Damaged, stream: random.Random) -> None:
    size = made.layout.slot_bytes
    count = len(made.slots) // size
    here, there = stream.randrange(count) * size, stream.randrange(count) * size
    made.slots[there : there + size] = made.slots[here : here + size]


def _count(made: Damaged, stream: random.Random) -> None:
    struct.pack_into("<i", made.tail, 0, stream.choice(COUNTS))


def _cards(made: Damaged, stream: random.Random) -> None:
    struct.pack_into("<Q", made.head, made.layout.num, stream.choice((*WORDS, 15, 16, 17)))


def _size(made: Damaged, stream: random.Random) -> None:
    sizes = [layout.size + more for layout in LAYOUTS for more in (-1, 0, 1, 2)]
    made.size = stream.choice((0, 1, 11, 12, 4096, made.layout.slots + 100, *sizes))


def _kind(made: Damaged, stream: random.Random) -> None:
    magic = stream.choice((MAGIC, MAGIC, 0, -1))
    struct.pack_into("<iII", made.head, 0, magic, stream.randrange(3), stream.randrange(4))


def _noise(made: Damaged, stream: random.Random) -> None:
    for part, start in ((made.head, 12), (made.slots, 0), (made.tail, 0)):
        part[start:] = stream.randbytes(len(part) - start)


DAMAGES: Final[tuple[Callable[[Damaged, random.Random], None], ...]] = (
    *(_byte, _word, _word, _field, _field, _field, _copy, _copy, _count, _cards),
    *(_size, _kind, _noise),
)


@cache
def _memory() -> int:
    return os.memfd_create("region")


def region(source: Source) -> str:
    """A damaged file is refused, or gives numbers that can be right, of the holder's cards."""
    stream = source.stream
    layout, size, *parts = stream.choice(samples())
    made = Damaged(layout, size, *map(bytearray, parts))
    damages = [stream.choice(DAMAGES) for _ in range(stream.randint(0, 6))]
    for damage in damages:
        damage(made, stream)
    source.made.append((layout.name, made.size, [damage.__name__ for damage in damages]))
    file = _memory()
    os.ftruncate(file, 0)
    os.pwrite(file, made.head, 0)
    os.pwrite(file, made.slots, layout.slots)
    os.pwrite(file, made.tail, layout.tail)
    os.ftruncate(file, made.size)
    try:
        running, noted = (
            frozenset(stream.choices(range(100000, 140000), k=stream.randint(0, 3)))
            for _ in range(2)
        )
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
