"""A container's cache file never meets a library of another version."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from hami_node.model import Container
from hami_node.vendors.nvidia.node.limiter.hook_folder import HookFolder
from hami_node.vendors.nvidia.node.limiter.versions import LimiterVersion
from hami_node.vendors.nvidia.regions.region_layouts import LAYOUTS, MAGIC
from hami_node.vendors.on_node.answer import Slice
from tests.fakes.limiter import lay_limiter, take_limiter
from tests.reliability import shows

SLICE = Slice(pod_uid="u-1", container=Container(name="main"), grants=())
BY_NAME = {layout.name: layout for layout in LAYOUTS}


class Served:
    """A container that was served with a version and has run."""

    def __init__(self, hook: Path, version: str, layout: str) -> None:
        self.hook = hook
        self.serve(version)
        self.own = hook / "vgpu" / "containers" / "u-1_main"
        self.cache = self.own / "u-1_main.cache"
        self.run(layout)
        self.inode = self.cache.stat().st_ino

    def serve(self, version: str) -> str:
        take_limiter(self.hook)
        lay_limiter(self.hook, version)
        folder = HookFolder(self.hook)
        return str(folder.prepare(SLICE, folder.limiter()).version)

    def run(self, name: str) -> None:
        """As a program of the container begins its region."""
        layout = BY_NAME[name]
        major, minor = layout.version or (0, 0)
        with self.cache.open("r+b") as file:
            file.write(struct.pack("<iII", MAGIC, major, minor))
            file.truncate(layout.size + 1)

    def lose_library(self) -> None:
        for path in self.own.glob("libvgpu.so*"):
            path.unlink()

    @property
    def is_kept(self) -> bool:
        return self.cache.stat().st_ino == self.inode and self.cache.stat().st_size > 0


@pytest.mark.parametrize(
    ("version", "layout"),
    [
        ("v2.3.13", ""),
        ("v2.4.0", "v0"),
        ("v2.4.1", "v1.1"),
        ("v2.8.0", "v1.1"),
        ("v2.8.1-0123456789ab", "v1.1x"),
        ("v2.8.2", "v1.2"),
        ("v2.10.0", "v1.2"),
        ("dev", ""),
        ("", ""),
    ],
)
def test_layout_is_told_by_the_version(version: str, layout: str) -> None:
    assert LimiterVersion(version).layout == layout
    assert not layout or layout in BY_NAME


@shows(
    "L8",
    fault="the library that a container was served with is gone, and another version is installed",
    happens="the container gets a new cache file with the new library; a file that the new version "
    "would have made itself stays",
)
@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        pytest.param(("v2.8.0", "v1.1"), "v2.10.0", False, id="1.1-to-1.2"),
        pytest.param(("v2.10.0", "v1.2"), "v2.8.0", False, id="1.2-to-1.1"),
        pytest.param(("v2.8.1", "v1.1x"), "v2.8.0", False, id="1.1x-to-1.1"),
        pytest.param(("v2.4.0", "v0"), "v2.10.0", False, id="0-to-1.2"),
        pytest.param(("v2.9.0", "v1.2"), "v2.10.0", True, id="same"),
        pytest.param(("v2.9.0", "v1.2"), "", False, id="to-unknown"),
    ],
)
def test_cache_file_meets_only_a_library_of_its_layout(
    tmp_path: Path, old: tuple[str, str], new: str, is_kept: bool
) -> None:
    served = Served(tmp_path, *old)
    served.lose_library()
    with served.cache.open("rb") as running:
        assert served.serve(new) == (new or "unknown")
        assert os.fstat(running.fileno()).st_size > 1_000_000, "who has it open keeps it"
    assert served.is_kept is is_kept
    if not is_kept:
        assert (served.cache.stat().st_size, served.cache.stat().st_mode & 0o777) == (0, 0o666)


def test_cache_file_that_its_container_has_spoilt_stays_with_its_own_library(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, "v2.10.0", "v1.2")
    served.cache.write_bytes(b"spoilt")
    served.serve("v2.10.0")
    assert served.cache.read_bytes() == b"spoilt"
    served.lose_library()
    served.serve("v2.10.0")
    assert served.cache.stat().st_size == 0


@shows(
    "L8",
    fault="a folder that HAMi left open to all has a cache file of another layout in our name",
    happens="it is not used: the container gets a new one",
)
def test_open_folder_with_another_layout_gets_a_new_cache_file(tmp_path: Path) -> None:
    served = Served(tmp_path, "v2.8.0", "v1.1")
    served.own.chmod(0o777)
    assert served.serve("v2.10.0") == "v2.10.0"
    assert not served.is_kept
