from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.vendors.nvidia.node.handover.node_hand_over import (
    has_injected_driver,
    own_visible_devices,
)

MOUNT = "2500 2300 8:1 /drv/lib.so {} ro,nosuid,nodev,relatime - ext4 /dev/sda1 rw\n"
LIB = "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("environ", "values"),
    [
        (b"A=1\0NVIDIA_VISIBLE_DEVICES=all\0B=2\0", ("all",)),
        (b"NVIDIA_VISIBLE_DEVICES=all\0A=1\0NVIDIA_VISIBLE_DEVICES=void\0", ("all", "void")),
        (b"XNVIDIA_VISIBLE_DEVICES=all\0NVIDIA_VISIBLE_DEVICES2=all\0", ()),
        (b"NVIDIA_VISIBLE_DEVICES=\xff\0", ("\ufffd",)),
        (b"", ()),
    ],
)
def test_every_entry_of_the_variable_is_seen(
    tmp_path: Path, environ: bytes, values: tuple[str, ...]
) -> None:
    (tmp_path / "environ").write_bytes(environ)
    assert own_visible_devices(tmp_path) == values


@pytest.mark.parametrize(
    ("points", "is_injected"),
    [
        ([f"{LIB}/libnvidia-ml.so.550.54.15"], True),
        (["/usr/lib64/libcuda.so.550.54.15"], True),
        (["/usr/lib/wsl/lib/libcuda.so.1"], True),
        ([LIB, "/driver-root", "/dev/nvidiactl"], False),
        ([f"{LIB}/libcuda.so.conf", "/x/libnvidia-ml.so"], False),
        ([], False),
    ],
)
def test_driver_is_injected_where_its_library_is_a_mount_of_its_own(
    tmp_path: Path, points: list[str], is_injected: bool
) -> None:
    (tmp_path / "mountinfo").write_text("".join(map(MOUNT.format, points)) + "short line\n")
    assert has_injected_driver(tmp_path) is is_injected


@pytest.mark.parametrize(
    ("point", "is_injected"),
    [
        (f"/host{LIB}/libcuda.so.550.54.15", False),
        (f"/drv{LIB}/libcuda.so.550.54.15", False),
        (f"/hosts{LIB}/libcuda.so.550.54.15", True),
    ],
)
def test_mounts_of_a_node_that_is_itself_a_container_are_not_the_daemons(
    tmp_path: Path, point: str, is_injected: bool
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNT.format(point))
    outside = (Path("/host"), Path("/drv"))
    assert has_injected_driver(tmp_path, outside) is is_injected


def test_nothing_can_be_seen_where_proc_is_missing(tmp_path: Path) -> None:
    assert (own_visible_devices(tmp_path), has_injected_driver(tmp_path)) == ((), False)
