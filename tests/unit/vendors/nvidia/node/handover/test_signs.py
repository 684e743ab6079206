from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hami_node.vendors.nvidia.node.handover.signs import has_injected_driver, own_visible_devices

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


LOOK = """
import json
from pathlib import Path
from hami_node.vendors.nvidia.node.handover import signs
own = Path("/proc/self")
print(json.dumps([signs.own_visible_devices(own), signs.has_injected_driver(own)]))
"""
INSIDE = """
import os, subprocess, sys
library, point, look = sys.argv[1:]
subprocess.run(["mount", "--bind", library, point], check=True)
name = "NVIDIA_VISIBLE_DEVICES"
twice = {name: "all", name.encode(): b"void", "PYTHONPATH": os.getcwd()}
os.execve(sys.executable, [sys.executable, "-c", look], twice)
"""


def test_signs_are_read_from_a_real_process_with_mounts_and_two_entries(tmp_path: Path) -> None:
    if not shutil.which("unshare") or subprocess.run(("unshare", "-m", "true")).returncode:
        pytest.skip("needs the right to mount in a namespace of its own")
    library, point = tmp_path / "lib", tmp_path / "libnvidia-ml.so.550.54.15"
    library.touch()
    point.touch()
    done = subprocess.run(
        ("unshare", "-m", sys.executable, "-c", INSIDE, str(library), str(point), LOOK),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [["all", "void"], True]
