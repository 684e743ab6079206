"""The end of the cluster's containers: killed together with the shims that hold them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_LIMIT_S: Final = 20.0
_CGROUPS: Final = Path("/sys/fs/cgroup")
_SHIM: Final = "containerd-shim-runc-v2"


def end_containers() -> None:
    """Kill every container of kubelet's, without containerd: one call for each takes a minute.

    kubelet must not run any more.
    """
    _kill("containers", _contained)


def end_shims(socket: Path) -> None:
    """Kill the shims of the containerd at that socket; it must not run any more.

    They outlive it, and also their containers: a pod's shim ends only with kubelet's own call.
    """
    _kill("shims", lambda: _shims(socket))


def pod_cgroups() -> Iterator[Path]:
    """The top folders of kubelet's cgroups, one for each hierarchy."""
    yield from (*_CGROUPS.glob("kubepods"), *_CGROUPS.glob("*/kubepods"))


def _kill(what: str, find: Callable[[], set[int]]) -> None:
    """Kill all that are found until none is; one may start another meanwhile."""
    deadline = time.monotonic() + _LIMIT_S
    while left := find():
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            print(f"left behind: {what} {sorted(left)}")
            return
        time.sleep(0.02)


def _contained() -> set[int]:
    """Processes in the cgroups of pods."""
    found: set[int] = set()
    for top in pod_cgroups():
        for file in top.rglob("cgroup.procs"):
            with suppress(OSError):  # the cgroup is gone, or holds none on its own
                found |= {int(word) for word in file.read_text().split()}
    return {pid for pid in found if _lives(pid)}


def _shims(socket: Path) -> set[int]:
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = file.read_text(errors="replace").split("\0")
            pid = int(file.parent.name)
            if words[0].endswith(_SHIM) and str(socket) in words and _lives(pid):
                found.add(pid)
    return found


def _lives(pid: int) -> bool:
    """Whether it is there, and not only its exit status."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
