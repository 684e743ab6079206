from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.node.regions.region_file import MAX_CACHE_BYTES, TURNS
from hami_node.vendors.nvidia.node.regions.usage_reader import NvidiaUsageReader, ReadRegion
from hami_node.vendors.nvidia.regions.region_layouts import SLOTS, Layout, layout_of
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.usage import Holder, UseFindings
from tests.fakes.cards import card
from tests.fakes.made_region import MadeRegion
from tests.fakes.regions import fill_behind_the_end, lay_region, on_the_disk, recorded_region
from tests.reliability import shows

MIB = 1 << 20
TWO = recorded_region("v1.2-8f3a89c-two-devices")


def big(index: int, **changes: object) -> Device:
    """A card as large as those of the recordings."""
    return card(index, **({"memory_mib": 81920} | changes))


def holder(pod: str = "p", *cards: Device) -> Holder:
    return Holder(
        pod_uid=f"u-{pod}",
        namespace="default",
        pod=pod,
        container="main",
        cards=cards or (big(0), big(1)),
    )


class Visitor:
    """Notes what it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], bool]] = []

    def visit(self, regions: Sequence[ReadRegion], *, is_last: bool) -> None:
        self.seen.append(([read.holder.pod for read in regions], is_last))


class Node:
    """A hook path with region files, and its reader."""

    def __init__(self, hook_path: Path) -> None:
        self.hook_path, self.visitor = hook_path, Visitor()
        settings = NvidiaSettings(hook_path=hook_path)
        self.reader = NvidiaUsageReader(lambda: settings, self.visitor)

    def lay(self, pod: str = "p", content: bytes = TWO.content) -> Path:
        return lay_region(self.hook_path, f"u-{pod}_main", content)

    def read(self, *holders: Holder) -> UseFindings:
        return self.reader.read(holders or (holder(),), {})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "hook")


def edited(content: bytes, *fields: tuple[int, str, int]) -> bytes:
    raw = bytearray(content)
    for at, form, value in fields:
        struct.pack_into(form, raw, at, value)
    return bytes(raw)


def of(content: bytes) -> Layout:
    return layout_of(len(content), content[:12])


def total_at(layout: Layout, card: int = 0) -> int:
    return layout.slots + (layout.used + card * layout.used_words + 4) * 8


@shows(
    "U4",
    fault="a container's usage file names a neighbour's card, or holds numbers above its card",
    happens="its numbers count for its own cards only; impossible ones are shown as unreadable",
)
def test_neighbour_is_not_touched_by_what_a_container_writes(node: Node) -> None:
    layout = of(TWO.content)
    neighbour = big(3)
    uuid_at = layout.num + 8
    raw = bytearray(edited(TWO.content, (total_at(layout), "<Q", 900_000 * MIB)))
    raw[uuid_at : uuid_at + 96] = str(neighbour.uuid).encode().ljust(96, b"\0")
    node.lay("liar", bytes(raw))
    node.lay("good")
    found = node.read(holder("liar", big(0)), holder("good", neighbour))
    assert [(use.pod, use.uuid, use.memory_bytes) for use in found.uses] == [
        ("good", neighbour.uuid, 1256 * MIB)
    ]
    assert [(lost.pod, lost.reason) for lost in found.unread] == [("liar", "impossible")]


def test_memory_above_the_card_is_possible_where_it_is_oversubscribed(node: Node) -> None:
    node.lay()
    scaled = card(0, memory_mib=2000, physical_memory_mib=1000)
    assert node.read(holder("p", scaled)).uses[0].memory_bytes == 1256 * MIB
    tight = card(0, memory_mib=1000, physical_memory_mib=1000)
    assert node.read(holder("p", tight)).unread[0].reason == "impossible"


def test_container_without_a_file_is_left_out(node: Node) -> None:
    node.lay("empty", b"")
    node.lay("made", bytes(2008953))
    assert node.read(holder("none"), holder("empty"), holder("made")) == UseFindings()


def test_no_limit_is_none(node: Node) -> None:
    node.lay("p", recorded_region("v1.2-8f3a89c-no-env").content)
    (use,) = node.read(holder("p", big(0))).uses
    assert (use.limit_bytes, use.core_limit_percent) == (None, None)


@shows(
    "U5",
    fault="a usage file becomes unreadable, and is whole again later",
    happens="its container has a series that says why, in place of its numbers, until it is whole",
)
def test_unreadable_file_is_told_and_read_again(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    path = node.lay()
    node.lay("other")
    both = holder(), holder("other")
    assert len(node.read(*both).uses) == 4
    os.truncate(path, 5000)
    for _ in range(3):
        found = node.read(*both)
        assert [(lost.pod, lost.reason) for lost in found.unread] == [("p", "size")]
        assert {use.pod for use in found.uses} == {"other"}
    assert [record.message for record in caplog.records].count("usage_unreadable") == 1
    path.write_bytes(TWO.content)
    found = node.read(*both)
    assert (len(found.uses), found.unread) == (4, ())


def test_process_without_a_note_counts_for_one_more_pass(node: Node) -> None:
    """It may be short of processor time; after that it is dead."""
    node.lay("p", recorded_region("v1.2-8f3a89c-two-processes").content)
    used = [node.read(holder("p", big(0))).uses[0].memory_bytes]
    node.lay("p", recorded_region("v1.2-8f3a89c-killed").content)
    used += [node.read(holder("p", big(0))).uses[0].memory_bytes for _ in range(2)]
    assert used == [2012 * MIB, 2012 * MIB, 756 * MIB]


def test_container_whose_cards_are_not_known_takes_part_without_numbers(node: Node) -> None:
    node.lay()
    found = node.reader.read((replace(holder(), cards=()),), {})
    assert (found.uses, found.unread) == ((), ())
    assert node.visitor.seen[-1] == (["p"], False)


@shows(
    "U9",
    fault="a container blows up its usage file, which no limit of its pod counts",
    happens="the next reading of the file shortens it, before the node's disk is full",
)
def test_file_that_grows_without_end_is_cut(node: Node) -> None:
    path = node.lay()
    with path.open("r+b") as file:
        file.truncate(MAX_CACHE_BYTES)
        file.seek(MAX_CACHE_BYTES)
        file.write(bytes(MIB))
    assert [lost.reason for lost in node.read().unread] == ["size"]
    assert path.stat().st_size == MAX_CACHE_BYTES
    other = path.with_name("other")
    other.hardlink_to(path)
    with path.open("r+b") as file:
        file.truncate(MAX_CACHE_BYTES + 1)
    node.read()
    assert other.stat().st_size == MAX_CACHE_BYTES + 1, "somebody else's, too"


@shows(
    "U9",
    fault="a container lets its usage file take disk behind its end, with its length as it was",
    happens="the next reading of the file frees that and leaves the region as it is",
)
def test_disk_behind_the_end_of_a_file_is_freed(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    path = node.lay()
    fill_behind_the_end(path, MAX_CACHE_BYTES)
    assert on_the_disk(path) > MAX_CACHE_BYTES
    for _ in range(2):
        assert len(node.read().uses) == 2
    assert on_the_disk(path) < 2 * len(TWO.content)
    assert path.read_bytes() == TWO.content
    assert [record.message for record in caplog.records].count("cache_file_cut") == 1


class CountedReads(dict[Uuid, Collection[int]]):
    """The processes on each card, asked for at each reading of a file of its containers."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[Uuid] = Counter()

    def get(self, key: Uuid, default: Any = None, /) -> Any:
        self.of[key] += 1
        return default


@shows(
    "U8",
    fault="containers fill the tables of their usage files with processes that never end",
    happens="such files are read once a pass, the others as often as it takes",
)
def test_full_tables_are_not_read_again_and_again(node: Node) -> None:
    layout = of(TWO.content)
    full = MadeRegion(layout, SLOTS)
    for index in range(SLOTS):
        full.put(index, 100 + index, 1, monitored=int(index == 0))
    for pod in ("x", "y", "z"):
        node.lay(pod, bytes(full.raw))
    node.lay("p", recorded_region("v1.2-8f3a89c-killed").content)
    reads, pods = CountedReads(), ("x", "y", "z", "p")
    holders = [holder(pod, big(index)) for index, pod in enumerate(pods)]
    found = node.reader.read(holders, reads)
    assert [use.memory_bytes for use in found.uses] == [MIB, MIB, MIB, 756 * MIB]
    assert [reads.of[big(index).uuid] for index in range(4)] == [1, 1, 1, TURNS]


def test_who_takes_part_sees_all_regions_after_they_were_read(node: Node) -> None:
    node.lay("a")
    node.lay("b", b"no region")
    node.lay("c")
    holders = tuple(holder(pod, big(0)) for pod in "abcd")
    node.reader.read(holders, {})
    node.reader.read(holders, {}, is_last=True)
    assert node.visitor.seen == [(["a", "c"], False), (["a", "c"], True)]
