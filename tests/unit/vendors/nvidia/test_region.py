from __future__ import annotations

import struct
from collections.abc import Collection

import pytest

from hami_node.errors import RegionError, RegionNotReady
from hami_node.vendors.nvidia.regions.region import (
    DeviceUse,
    Region,
    decode,
    numbers_of,
    slot_count,
)
from hami_node.vendors.nvidia.regions.region_layouts import LAYOUTS, MAGIC, Layout, layout_of
from tests.fakes.made_region import MadeRegion
from tests.fakes.regions import RecordedRegion, recorded_region, recorded_regions

MIB = 1 << 20
BY_NAME = {layout.name: layout for layout in LAYOUTS}
UNTOLD = {"v0a-8b7cd78-killed", "v0-fb11ec3-killed", "v1.1-a9ab3b1-killed"}
"""Nothing in these files tells that the first process is dead: only the driver's list does."""


def decoded(
    content: bytes, running: Collection[int] = (), behind: int = 8, noted: Collection[int] = ()
) -> Region:
    layout = layout_of(len(content), content[:12])
    tail = content[layout.tail : layout.tail + layout.tail_bytes]
    end = layout.slots + (slot_count(tail) + behind) * layout.slot_bytes
    slots = content[layout.slots : min(end, layout.tail)]
    return decode(layout, content[: layout.slots], slots, tail, running, noted)


def used(region: Region) -> dict[int, int]:
    return {card: region.used[card].total_bytes for card in (0, 1)}


@pytest.mark.parametrize("recorded", recorded_regions(), ids=lambda recorded: recorded.name)
def test_recording_decodes_to_the_truth_beside_it(recorded: RecordedRegion) -> None:
    truth = recorded.truth
    region = decoded(recorded.content, recorded.running)
    assert region.layout == truth["layout"]
    assert used(region) == recorded.used_bytes
    processes = {found.pid: found for found in region.processes}
    assert processes.keys() == {living["pid"] for living in recorded.living}
    for living in recorded.living:
        for card, use in living["used"].items():
            assert processes[living["pid"]].used_bytes[int(card)] == use["total"]
    assert list(region.limit_bytes) == truth["limit_bytes"]
    assert list(region.core_percent) == truth["core_percent"]
    assert list(region.device_uuids) == truth["uuids"]
    assert (region.priority, region.recent_kernel, region.utilization_switch) == (
        truth["priority"],
        truth["recent_kernel"],
        truth["utilization_switch"],
    )
    assert region.last_kernel_s == truth["last_kernel_s"]
    is_told = used(decoded(recorded.content)) == recorded.used_bytes
    assert is_told is (recorded.name not in UNTOLD), "what the file alone tells"


def test_recordings_cover_every_layout() -> None:
    assert len(recorded_regions()) == 113
    assert {recorded.truth["layout"] for recorded in recorded_regions()} == set(BY_NAME)


def test_core_use_is_what_others_noted_for_the_process() -> None:
    use = decoded(recorded_region("v1.2-8f3a89c-busy").content).used[0]
    assert use == DeviceUse(
        total_bytes=1256 * MIB,
        context_bytes=256 * MIB,
        data_bytes=1000 * MIB,
        core_percent=31,
    )


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        (["{}0"], (0,)),
        (["{}0", "{}1"], (0, 1)),
        (["{}1"], (1,)),
        (["{}1", "{}0"], (1, 0)),
        (["GPU-another"], (0,)),
        (["{}1", "GPU-another"], (0, 1)),
        (["GPU-another"] * 17, tuple(range(16))),
    ],
)
def test_number_of_a_card_in_the_container(given: list[str], numbers: tuple[int, ...]) -> None:
    """By the order of the response, or by name where it sees cards that it was not given."""
    region = decoded(recorded_region("v1.2-8f3a89c-busy").content)
    uuids = [text.format("GPU-12345678-1234-1234-1234-12345678000") for text in given]
    assert numbers_of(region, uuids) == numbers


# -- made-up moments ------------------------------------------------------------------------------
class Made(MadeRegion):
    """Decoded at once."""

    def mib(self, running: Collection[int] = (), card: int = 0) -> int:
        return decoded(bytes(self.raw), running, behind=64).used[card].total_bytes // MIB


V1_2, V1_1, V1_1X = BY_NAME["v1.2"], BY_NAME["v1.1"], BY_NAME["v1.1x"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_size_of_the_struct_is_taken_with_and_without_the_last_byte(layout: Layout) -> None:
    content = bytes(Made(layout, 0).raw)
    for size in (layout.size, layout.size + 1):
        assert layout_of(size, content[:12]) is layout
    for size in (layout.size - 1, layout.size + 2):
        with pytest.raises(RegionError):
            layout_of(size, content[:12])


@pytest.mark.parametrize("version", [(1, 0), (1, 3), (2, 1), (0, 0)])
def test_unknown_version_is_no_known_layout(version: tuple[int, int]) -> None:
    with pytest.raises(RegionError, match="version"):
        layout_of(V1_2.size + 1, struct.pack("<iII", MAGIC, *version))


@pytest.mark.parametrize(("size", "magic"), [(0, 0), (V1_2.size + 1, 0)])
def test_file_that_is_being_made_is_no_fault(size: int, magic: int) -> None:
    with pytest.raises(RegionNotReady):
        layout_of(size, struct.pack("<iII", magic, 0, 0))


def test_several_killed_processes_are_left_out() -> None:
    made = Made(V1_2, 4).put(0, 10, 100, monitored=0).put(1, 11, 200, monitored=0)
    assert made.put(2, 12, 300).put(3, 13, 400).mib() == 700


def test_process_that_has_just_begun_counts_where_the_driver_lists_it() -> None:
    made = Made(V1_2, 2).put(0, 10, 100).put(1, 11, 200, monitored=0)
    assert made.mib(running={1010, 1011}) == 300


def test_process_of_unknown_host_pid_counts() -> None:
    made = Made(V1_1, 2).put(0, 10, 100).put(1, 11, 200, host_pid=0, monitored=0)
    assert made.mib() == 300


def test_nobody_is_dead_where_the_driver_lists_none_of_them() -> None:
    made = Made(BY_NAME["v0"], 2).put(0, 10, 100, monitored=0).put(1, 11, 200, monitored=0)
    assert made.mib(running={5, 6}) == 300


def test_process_on_another_card_is_not_dead() -> None:
    made = Made(V1_2, 2).put(0, 10, 100).put(1, 11, 200, card=1)
    assert (made.mib(), made.mib(card=1)) == (100, 200)


def test_killed_after_it_was_moved() -> None:
    made = Made(V1_2, 2).put(0, 10, 100, monitored=0, seqlock=4).put(1, 11, 50)
    assert made.put(2, 10, 900, monitored=0, seqlock=8).mib() == 50


def test_ended_after_it_was_moved() -> None:
    """It frees the first slot that has its PID."""
    made = Made(V1_2, 1).put(0, 0, 100, host_pid=1010, seqlock=4, status=0)
    assert made.put(1, 10, 900, seqlock=8).mib() == 0


def test_leftover_without_a_host_pid_is_not_of_a_later_namesake() -> None:
    made = Made(V1_1X, 1).put(0, 7, 100, host_pid=5000, seqlock=4)
    assert made.put(1, 7, 900, host_pid=0, seqlock=400).mib() == 100


def test_note_that_was_there_a_moment_ago_counts() -> None:
    """Processes set all notes to 0 before they ask the driver, which takes its time."""
    made = Made(V1_2, 2).put(0, 10, 100).put(1, 11, 200, monitored=0)
    region = decoded(bytes(made.raw))
    assert (region.noted, region.misses_notes) == (frozenset({1010}), True)
    assert region.used[0].total_bytes == 100 * MIB
    later = decoded(bytes(made.raw), noted={1011})
    assert (later.noted, later.misses_notes) == (frozenset({1010, 1011}), False)
    assert later.used[0].total_bytes == 300 * MIB


def test_nothing_is_missed_of_processes_without_memory_or_host_pid() -> None:
    made = Made(V1_2, 2).put(0, 10, 0).put(1, 11, 200, host_pid=0, monitored=0)
    assert not decoded(bytes(made.raw)).misses_notes
    assert not decoded(bytes(Made(BY_NAME["v0"], 1).put(0, 1, 5, monitored=0).raw)).misses_notes


def test_namesake_behind_the_counted_slots_is_another_process() -> None:
    made = Made(V1_2, 1).put(0, 7, 100, host_pid=5000)
    assert made.put(1, 7, 900, host_pid=4000, seqlock=400).mib() == 100


def test_memory_freed_in_a_slot_that_was_given_away_is_taken_off() -> None:
    """The moved process (10) frees what is counted in its first slot from another's."""
    made = Made(V1_2, 2).put(0, 10, 300, monitored=100)
    assert made.put(1, 11, -150, monitored=50).mib() == 150


def test_memory_freed_that_is_in_no_slot_any_more() -> None:
    made = Made(V1_2, 2).put(0, 10, 100, monitored=50)
    assert made.put(1, 11, -400, monitored=60).mib() == 110


def test_memory_that_is_in_no_slot_is_what_the_driver_says() -> None:
    made = Made(V1_2, 2).put(0, 10, 300, monitored=2300)
    assert made.put(1, 11, 100).mib() == 2400


def test_driver_counts_a_little_more_than_the_limiter() -> None:
    assert Made(V1_2, 1).put(0, 10, 300, monitored=420).mib() == 300


@pytest.mark.parametrize("core", [101, 2**32 - 1, 2**64 - 1])
def test_impossible_core_use_is_left_out(core: int) -> None:
    made = Made(V1_2, 2).put(0, 10, 1, core=core).put(1, 11, 1, core=40)
    assert decoded(bytes(made.raw)).used[0].core_percent == 40


@pytest.mark.parametrize(
    "text", [b"GPU-\xff\xfe", b"../../etc", b'GPU-1"} 1\n', b"GPU-" + b"x" * 92]
)
def test_uuid_that_is_none_is_empty(text: bytes) -> None:
    made = Made(V1_2, 0)
    made.raw[V1_2.num + 8 : V1_2.num + 8 + len(text)] = text
    assert decoded(bytes(made.raw)).device_uuids == ("", "")


@pytest.mark.parametrize("counted", [-1, -(2**31), 1025, 2**31 - 1])
def test_impossible_number_of_slots_is_clamped(counted: int) -> None:
    made = Made(V1_2, counted).put(0, 10, 100)
    assert made.mib() == (0 if counted < 0 else 100)


def test_missing_part_is_an_error() -> None:
    content = bytes(Made(V1_2, 3).raw)
    tail = content[V1_2.tail : V1_2.tail + 24]
    with pytest.raises(RegionError, match="shorter"):
        decode(V1_2, content[: V1_2.slots], content[V1_2.slots : V1_2.slots + 1960], tail)
    with pytest.raises(RegionError, match="shorter"):
        decode(V1_2, content[:100], content[V1_2.slots : V1_2.slots + 5880], tail)
    with pytest.raises(RegionError, match="shorter"):
        decode(V1_2, content[: V1_2.slots], b"", b"")
