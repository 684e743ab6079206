"""The limiter's files on the node: running containers keep theirs, half a set serves nobody."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

from tests.integration.rig import Rig
from tests.reliability import shows


def facts(path: Path) -> tuple[int, str]:
    return path.stat().st_ino, hashlib.sha256(path.read_bytes()).hexdigest()


@shows(
    "P10",
    fault="the daemon restarts and its settings change while a container has the limiter mapped",
    happens="the mapped file keeps its inode and its bytes; what the container was given stays",
)
def test_mapped_library_is_never_written(rig: Rig) -> None:
    rig.place_one("running")
    answer = rig.admit("running")
    paths = [Path(mount.host_path) for mount in answer.responses["main"].mounts]
    (library,) = (path for path in paths if path.name.startswith("libvgpu.so"))
    before = facts(library)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        held = bytes(mapped)
        for scaling in ("1.0", "1.5"):
            rig.restart(memory_scaling=scaling)
        assert bytes(mapped) == held
    assert facts(library) == before
    assert all(path.exists() for path in paths), "each mounted path is there"
