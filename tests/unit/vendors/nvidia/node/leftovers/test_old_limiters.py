from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_node.vendors.nvidia.demo import empty_library
from hami_node.vendors.nvidia.node.leftovers import LIMITER_GRACE_S, OldLimiters
from hami_node.vendors.nvidia.node.limiter.install import install
from hami_node.vendors.nvidia.node.limiter.limiter_files import LimiterFiles
from hami_node.vendors.on_node.limiter import LimiterOrder
from hami_node.vendors.on_node.upkeep import FilesInUse

NOBODY = FilesInUse(uids=frozenset(), is_held=lambda uid: False)


class Node:
    """The limiter's folder, and a clock."""

    def __init__(self, tmp_path: Path) -> None:
        self.hook, self.source = tmp_path / "hook", tmp_path / "source"
        self.root = self.hook / "vgpu"
        self.pins: tuple[str, ...] = ()
        self.now_s = 0.0
        self.source.mkdir()
        self.install("v2.9.0")
        self.install("v2.10.0")
        self.handle = os.open(self.root, os.O_RDONLY)
        files = LimiterFiles(self.root, self.root / "libvgpu.so", pins=lambda: self.pins)
        self.old = OldLimiters(self.root, files)

    def install(self, version: str) -> Path:
        path = self.source / f"libvgpu.so.{version}"
        path.write_bytes(empty_library(os.uname().machine) + version.encode())
        order = LimiterOrder(source=self.source, hook_path=self.hook)
        done = install(order).path
        path.unlink()
        return done

    def pass_(self, used: FilesInUse | None = NOBODY) -> float | None:
        return self.old.tidy(self.handle, used, self.now_s)

    def versions(self, used: FilesInUse | None = NOBODY) -> list[str]:
        """What is left after long enough."""
        self.pass_(used)
        self.now_s += LIMITER_GRACE_S
        self.pass_(used)
        names = sorted(path.name for path in self.root.glob("libvgpu.so.*"))
        return [name.removeprefix("libvgpu.so.").rpartition("-")[0] for name in names]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    os.close(node.handle)


def test_library_that_an_answer_on_record_mounts_stays(node: Node) -> None:
    (old,) = node.root.glob("libvgpu.so.v2.9.0-*")
    used = FilesInUse(
        uids=frozenset(), is_held=lambda uid: False, answers=(f'{{"host_path":"{old}"}}',)
    )
    assert node.versions(used) == ["v2.10.0", "v2.9.0"]


def test_rolled_back_library_is_the_one_that_stays(node: Node) -> None:
    node.install("v2.9.0")
    assert node.versions() == ["v2.9.0"]


def test_wanted_sha256_keeps_its_library_and_the_installed_one(node: Node) -> None:
    (old,) = node.root.glob("libvgpu.so.v2.9.0-*")
    files = LimiterFiles(node.root, node.root / "libvgpu.so")
    third = node.install("v2.11.0")
    node.pins = (files.find().sha256,)
    node.install("v2.10.0")
    assert node.versions() == ["v2.10.0", "v2.11.0"]
    assert third.exists()
    assert not old.exists()


def test_nothing_goes_while_nothing_can_be_served_or_nobody_can_be_asked(node: Node) -> None:
    assert node.versions(None) == ["v2.10.0", "v2.9.0"]
    node.pins = ("a" * 64,)
    assert node.versions() == ["v2.10.0", "v2.9.0"]


def test_nothing_goes_while_an_installer_is_at_work(node: Node) -> None:
    other = os.open(node.root, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert node.versions() == ["v2.10.0", "v2.9.0"]
    os.close(other)
    assert node.versions() == ["v2.10.0"]


def test_files_that_are_not_what_their_name_says_and_those_of_others_stay(node: Node) -> None:
    (old,) = node.root.glob("libvgpu.so.v2.9.0-*")
    old.chmod(0o644)
    old.write_bytes(b"another content")
    (node.root / "libvgpu.so.v2.5.0").write_bytes(b"HAMi's")
    (node.root / "libvgpu.so.v2.4.0-0123456789ab").symlink_to(old)
    assert len(node.versions()) == 4
