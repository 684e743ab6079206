"""Run a program with just what a response names: a small container of our own.

Call it as `unshare --mount --fork python -m tests.gpu.boxed FILE PROGRAM ARG...`. The file (JSON)
has the device nodes, mounts and variables. The program sees the machine's files, without the
driver's, and what it writes is gone with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PLAIN_NODES = ("/dev/null", "/dev/zero", "/dev/urandom")
LIBRARIES = ("libcuda.so*", "libcudadebugger.so*", "libnvidia-*.so*", "libnvcuvid.so*")
FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")
INSIDE = "/program"


def main(words: Sequence[str]) -> None:
    """Make the root, enter it, become the program."""
    allowed = json.loads(Path(words[0]).read_text())
    mount("--make-rprivate", "/")
    place = Path(tempfile.mkdtemp(prefix="boxed-"))
    mount("-t", "tmpfs", "none", str(place))
    root, upper, work = place / "root", place / "upper", place / "work"
    for own in (root, upper, work):
        own.mkdir()
    layers = f"lowerdir=/,upperdir={upper},workdir={work}"
    mount("-t", "overlay", "none", "-o", layers, str(root))
    for folder in FOLDERS:
        for pattern in LIBRARIES:
            for library in (root / folder).glob(pattern):
                library.unlink()
    for hidden in ("usr/local/nvidia", "dev"):
        (root / hidden).mkdir(parents=True, exist_ok=True)
        # nodev, for the driver's libraries make device nodes themselves where they may
        mount("-t", "tmpfs", "-o", "nodev", "none", str(root / hidden))
    for name in ("proc", "sys"):
        mount("--rbind", f"/{name}", str(root / name))
    for node in PLAIN_NODES:
        bind(node, root / node.lstrip("/"))
    for outside, inside in (*allowed["nodes"], *allowed["mounts"], (words[1], INSIDE)):
        bind(outside, root / inside.lstrip("/"))
    os.chroot(root)
    os.chdir("/")
    os.execve(INSIDE, [INSIDE, *words[2:]], allowed["env"])  # noqa: S606 - no shell is wanted


def bind(outside: str, inside: Path) -> None:
    """Mount a file or folder there; what has no place yet gets one."""
    inside.parent.mkdir(parents=True, exist_ok=True)
    if Path(outside).is_dir():
        inside.mkdir(exist_ok=True)
    elif not inside.exists():
        inside.touch()
    mount("--bind", outside, str(inside))


def mount(*words: str) -> None:
    """Call mount(8)."""
    subprocess.run(["mount", *words], check=True, timeout=20)


if __name__ == "__main__":
    main(sys.argv[1:])
