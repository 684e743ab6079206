"""Whether the hook folder is the node's: mounted where the hook path says, and writable.

What the daemon puts there is mounted into containers by the host's paths. A folder of the daemon's
own container would have these files for nobody else.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_node.logs import kv

log = logging.getLogger(__name__)

HINT: Final = (
    "--hook-path (HOOK_PATH) and the daemon's mount of the node's folder have to agree, see "
    "daemonset/overlays/read-only-usr-local"
)
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _MountPoint:
    path: Path
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What this process sees of its mounts.

    Attributes:
        mountinfo: the kernel's list of them.
        is_container: this process is the first of a container, whose root is not the node's.
    """

    mountinfo: Path = Path("/proc/self/mountinfo")
    is_container: bool = field(default_factory=lambda: os.getpid() == 1)


def folder_problem(folder: Path, around: Surroundings | None = None) -> str:
    """Why containers can't get files from that folder; "" if nothing is known against it."""
    around = around or Surroundings()
    mount = _mount_of(folder, around.mountinfo) if around.is_container else None
    if mount is not None and mount.path == Path("/"):
        return f"{folder} is in the daemon's own container, not on the node"
    if mount is not None and not _may_be_same(mount):
        log.warning(
            "hook_folder_from_elsewhere",
            extra=kv(folder=str(folder), mounted_from=mount.root, hint=HINT),
        )
    return _writing_problem(folder)


def _writing_problem(folder: Path) -> str:
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if os.access(there, os.W_OK | os.X_OK):
        return ""
    return f"{folder} can't be written" if there == folder else f"{folder} can't be made"


def _may_be_same(mount: _MountPoint) -> bool:
    """A bind mount's source ends as its target does; a file system of its own says nothing."""
    return mount.root == "/" or mount.root.rsplit("/", 1)[-1] == mount.path.name


def _mount_of(folder: Path, mountinfo: Path) -> _MountPoint | None:
    """The mount that the folder is in; None where that can't be read."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = None
    for line in lines:
        words = line.split(" ")
        if len(words) < 10 or "-" not in words[6:-1]:
            continue
        point = Path(_plain(words[4]))
        is_longer = found is None or len(point.parts) >= len(found.path.parts)
        if is_longer and folder.is_relative_to(point):
            found = _MountPoint(path=point, root=_plain(words[3]))
    return found


def _plain(text: str) -> str:
    """A path of mountinfo, in which spaces and the like are octal numbers."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
