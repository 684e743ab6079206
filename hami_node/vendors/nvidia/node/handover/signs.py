"""What this process can see of the container runtime that started it."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from hami_node.vendors.nvidia import names

_DRIVER_FILE: Final = re.compile(rb"/lib(?:nvidia-ml|cuda)\.so\.[0-9.]+\Z")


def own_visible_devices(process: Path) -> tuple[str, ...]:
    """Every entry of the variable in this process's first environment, `process`/environ.

    A runtime may have written one of its own beside the one of the pod, and a dictionary of the
    environment would show only one of them.
    """
    prefix = f"{names.ENV_VISIBLE_DEVICES}=".encode()
    try:
        entries = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return ()
    return tuple(
        entry.removeprefix(prefix).decode(errors="replace").strip()
        for entry in entries
        if entry.startswith(prefix)
    )


def has_injected_driver(process: Path, outside: Collection[Path] = ()) -> bool:
    """True where the driver's library is mounted as a file of its own, which only a runtime does.

    A folder with it, which the pod mounts, does not count; nor does what is mounted in the folders
    `outside`, where the pod mounts the node: a node that is a container has such mounts itself.
    """
    try:
        lines = (process / "mountinfo").read_bytes().splitlines()
    except OSError:
        return False
    points = (fields[4] for line in lines if len(fields := line.split(b" ", 5)) > 4)
    nodes = tuple(str(folder).encode() + b"/" for folder in outside)
    return any(_DRIVER_FILE.search(point) and not point.startswith(nodes) for point in points)
