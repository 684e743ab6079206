from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hami_node.errors import RegionError, RegionNotReady
from hami_node.vendors.nvidia.node.regions.region_file import RegionFile, open_region
from hami_node.vendors.nvidia.regions.region import Region
from hami_node.vendors.nvidia.regions.region_layouts import layout_of
from tests.fakes.made_region import MadeRegion
from tests.fakes.regions import RecordedRegion, lay_region, recorded_region
from tests.reliability import shows

FOLDER = "u-1_main"
MIB = 1 << 20
TWO = recorded_region("v1.2-8f3a89c-two-devices")
ONE_OF_EACH = [
    recorded_region(name)
    for name in (
        "v0a-8b7cd78-two-devices",
        "v0-fb11ec3-two-devices",
        "v1.1-8be6d90-two-devices",
        "v1.1x-94fff56-two-devices",
        "v1.2-8f3a89c-two-devices",
    )
]


@pytest.fixture
def hook_path(tmp_path: Path) -> Path:
    return tmp_path / "hook"


@pytest.fixture
def cache(hook_path: Path) -> Path:
    return lay_region(hook_path, FOLDER, TWO.content)


def read(hook_path: Path, folder: str = FOLDER) -> Region:
    with open_region(hook_path, folder) as region:
        return region.read()


def reason(hook_path: Path) -> str:
    with pytest.raises(RegionError) as caught:
        read(hook_path)
    return caught.value.reason


@pytest.mark.parametrize("recorded", ONE_OF_EACH, ids=lambda recorded: recorded.name)
def test_writes_one_field_and_nothing_else(hook_path: Path, recorded: RecordedRegion) -> None:
    path = lay_region(hook_path, FOLDER, recorded.content)
    with open_region(hook_path, FOLDER) as file:
        before = file.read()
        file.write_memory_limit(1, 700 * MIB)
        file.write_core_limit(1, 45)
        file.write_feedback(recent_kernel=-1, utilization_switch=0)
        after = file.read()
    assert after.limit_bytes == (before.limit_bytes[0], 700 * MIB, *before.limit_bytes[2:])
    assert after.core_percent == (before.core_percent[0], 45, *before.core_percent[2:])
    assert (after.recent_kernel, after.utilization_switch) == (-1, 0)
    assert after.processes == before.processes
    changed = sum(a != b for a, b in zip(path.read_bytes(), recorded.content, strict=True))
    assert 0 < changed <= 8 + 8 + 4 + 4


def test_writes_one_of_the_two_signals(hook_path: Path, cache: Path) -> None:
    with open_region(hook_path, FOLDER) as file:
        file.write_feedback(recent_kernel=1)
        assert (file.read().recent_kernel, file.read().utilization_switch) == (1, 1)
        file.write_feedback(utilization_switch=0)
        assert (file.read().recent_kernel, file.read().utilization_switch) == (1, 0)


@pytest.mark.parametrize("limit", [0, -1, 1 << 63])
def test_limit_that_would_mean_none_is_refused(hook_path: Path, cache: Path, limit: int) -> None:
    with open_region(hook_path, FOLDER) as file, pytest.raises(ValueError, match=str(limit)):
        file.write_memory_limit(0, limit)
    assert cache.read_bytes() == TWO.content


def test_file_is_another_one_when_it_is_written(hook_path: Path, cache: Path) -> None:
    with open_region(hook_path, FOLDER) as file:
        with cache.open("r+b") as other:
            other.write(bytes(4096))
        with pytest.raises(RegionError):
            file.write_memory_limit(0, MIB)
        with pytest.raises(RegionError):
            file.write_feedback(recent_kernel=0)
    assert cache.read_bytes()[:4096] == bytes(4096)


def test_file_of_another_plugin_has_a_name_of_its_own(hook_path: Path, cache: Path) -> None:
    cache.rename(cache.with_name("0c5cd2d5-2d9a-4d0e-8c1c-4d7f0b0a5a5c.cache"))
    (cache.parent / "libvgpu.so").touch()
    assert read(hook_path).used[0].total_bytes == 1256 * MIB


def test_names_that_a_container_chose_are_shown_in_plain_letters(
    hook_path: Path, cache: Path
) -> None:
    cache.unlink()
    for name in (b"\xff\n\x1b[2J.cache", b"b.cache"):
        (cache.parent / os.fsdecode(name)).write_bytes(b"")
    with pytest.raises(RegionError) as found:
        read(hook_path)
    assert str(found.value).isascii()
    assert str(found.value).isprintable()


def test_several_files_are_ambiguous(hook_path: Path, cache: Path) -> None:
    cache.rename(cache.with_name("a.cache"))
    cache.with_name("b.cache").write_bytes(TWO.content)
    assert reason(hook_path) == "ambiguous"


@pytest.mark.parametrize("missing", ["file", "folder", "containers", "vgpu"])
def test_no_file_yet_is_no_fault(hook_path: Path, cache: Path, missing: str) -> None:
    cache.unlink()
    path = cache.parent
    for name in ("folder", "containers", "vgpu"):
        if missing == "file":
            break
        path.rmdir()
        path = path.parent
        if missing == name:
            break
    with pytest.raises(RegionNotReady):
        read(hook_path)


@shows(
    "U1",
    fault="a container's usage file is a link, a pipe, a device, a socket or a folder",
    happens="it is not opened, a metric counts it as unreadable, and the others are read",
)
@pytest.mark.parametrize("kind", ["link", "hard link to another size", "pipe", "folder", "socket"])
def test_anything_but_a_regular_file_is_not_opened(
    hook_path: Path, cache: Path, kind: str, tmp_path: Path
) -> None:
    cache.unlink()
    secret = tmp_path / "secret"
    secret.write_bytes(TWO.content)
    if kind == "link":
        cache.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(cache)
    elif kind == "folder":
        cache.mkdir()
    elif kind == "socket":
        short = Path(tempfile.mkdtemp(prefix="s"), "s")  # such a path has 107 characters at most
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(short))
        shutil.move(short, cache)
        short.parent.rmdir()
    else:
        secret.write_bytes(b"root:x:0:0")
        cache.hardlink_to(secret)
        assert reason(hook_path) == "size"
        return
    assert reason(hook_path) == "kind"


@pytest.mark.parametrize("part", ["own", "containers"])
def test_folder_that_is_a_link_is_not_followed(
    hook_path: Path, cache: Path, part: str, tmp_path: Path
) -> None:
    folder = cache.parent if part == "own" else cache.parent.parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert reason(hook_path) == "unreadable"


@shows(
    "U2",
    fault="a container truncates, grows or overwrites its usage file, also while it is read",
    happens="a metric counts it as unreadable until it is whole again; nothing stale is shown",
)
@pytest.mark.parametrize("size", [1, 11, 4096, 2008951, 2008954, 1 << 30])
def test_other_size_is_no_region(hook_path: Path, cache: Path, size: int) -> None:
    os.truncate(cache, size)
    assert reason(hook_path) == "size"


def test_truncated_and_restored_while_it_is_read(hook_path: Path, cache: Path) -> None:
    """Whatever is raced against, the answer is the truth or a RegionError."""
    stop = threading.Event()

    def damage() -> None:
        with cache.open("r+b") as file:
            while not stop.is_set():
                file.truncate(3000)
                file.seek(0)
                file.write(TWO.content)
                file.flush()

    thread = threading.Thread(target=damage)
    thread.start()
    try:
        outcomes = set()
        for _ in range(300):
            try:
                outcomes.add(read(hook_path).used[0].total_bytes in (0, 1256 * MIB))
            except RegionError:
                outcomes.add(True)
        assert outcomes == {True}
    finally:
        stop.set()
        thread.join()
    assert read(hook_path).used[0].total_bytes == 1256 * MIB


class Overtaken(RegionFile):
    """A writer goes on right after the slots were read for the first time."""

    def __init__(self, handle: int, slots: int, go_on: Callable[[], None]) -> None:
        super().__init__(handle)
        self._first, self._go_on, self.reads = slots, go_on, 0

    def _bytes(self, at: int, size: int) -> bytes:
        found = super()._bytes(at, size)
        if at == self._first:
            self.reads += 1
            if self.reads == 1:
                self._go_on()
        return found


@pytest.mark.parametrize("processes", [3, 60])
@pytest.mark.parametrize("count", [2, 3], ids=["torn", "in-the-middle"])
def test_slot_that_is_written_meanwhile_is_read_again(
    hook_path: Path, processes: int, count: int
) -> None:
    """A writer counts up before and after each change, of which the parts have to fit."""
    layout = layout_of(len(TWO.content), TWO.content[:12])
    made = MadeRegion(layout, processes)
    for index in range(processes):
        made.put(index, 100 + index, 1)
    cache = lay_region(hook_path, FOLDER, bytes(made.raw))
    count_at = layout.slots + layout.seqlock * 8
    data_at = layout.slots + layout.used * 8 + 16
    with cache.open("r+b", buffering=0) as file:
        handle = file.fileno()

        def write(at: int, number: int) -> None:
            os.pwrite(handle, struct.pack("<Q", number), at)

        def go_on() -> None:
            write(data_at + 16, 300 * MIB)
            write(count_at, 4)

        write(count_at, count)
        write(data_at, 300 * MIB)
        region = Overtaken(handle, layout.slots, go_on)
        used = region.read().used[0]
        assert used.total_bytes == used.data_bytes == (300 + processes - 1) * MIB
        assert region.reads > 1
        write(count_at, 5)  # a writer that was killed in the middle
        assert region.read().used[0].total_bytes == used.total_bytes


def test_no_handle_is_left_open(hook_path: Path, cache: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read(hook_path)
    os.truncate(cache, 5)
    for _ in range(5):
        reason(hook_path)
    cache.unlink()
    for _ in range(5):
        assert reason(hook_path) == "missing"
    assert len(os.listdir("/proc/self/fd")) == before
