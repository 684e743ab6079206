"""Whether NVIDIA's CDI hook can set the driver's memory limit, by what is in its program."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hami_node.vendors.nvidia.driver.location import HOST, HOST_MOUNT, DriverRoot
from hami_node.vendors.nvidia.driver.rooted import resolve_in
from hami_node.vendors.nvidia.node.handover.cdi_spec import LIMIT_TASK

_WORD: Final = LIMIT_TASK.encode()

_FileState = tuple[int, int, int, int]


class LimitHook:
    """Looks into the hook's program, and again when it is another one."""

    def __init__(self) -> None:
        self._seen: tuple[str, _FileState] | None = None
        self._knows = False

    def can_limit(self, hook: str, root: DriverRoot) -> bool | None:
        """True if it has the task, which came with 1.20.1; None if it can't be seen from here.

        A hook that does not know the task keeps every container that names it from being made.
        """
        for path in _seen_at(hook, root):
            try:
                return self._look(path)
            except (OSError, ValueError):  # not there, or empty
                continue
        return None

    def _look(self, path: Path) -> bool:
        status = path.stat()
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen != (str(path), state):
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program,
            ):
                self._knows = program.find(_WORD) >= 0
            self._seen = str(path), state
        return self._knows


def _seen_at(hook: str, root: DriverRoot) -> Iterator[Path]:
    """Where the host's file may be seen in this container."""
    for host, inside in ((HOST, HOST), (HOST, HOST_MOUNT), (root.host, root.inside)):
        try:
            yield resolve_in(inside, str(Path(hook).relative_to(host)))
        except (ValueError, OSError):
            continue  # it is not below that folder, or not there
