"""Paths inside another root: a driver's folder has links that were made for the host."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LIBRARY: Final = "libnvidia-ml.so.1"
FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "lib",
    "usr/local/lib",
    "usr/local/nvidia/lib64",
    "nvidia/lib64",
)
"""Where distributions and driver containers keep the library, below the root."""
_MAX_LINKS: Final = 40
"""As many as the kernel follows."""


def resolve_in(root: Path, path: str) -> Path:
    """The real path of `path` inside `root`; links, absolute ones too, stay inside.

    Raises:
        OSError: a part is missing, or there are too many links.
    """
    parts = _parts(path)
    found: list[str] = []
    links = 0
    while parts:
        part = parts.pop()
        if part == "..":
            del found[-1:]  # above the root there is nothing, as for the kernel
            continue
        here = root.joinpath(*found, part)
        if not stat.S_ISLNK(here.lstat().st_mode):
            found.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(here))
        target = here.readlink()
        if target.is_absolute():
            found.clear()
        parts += _parts(str(target))
    return root.joinpath(*found)


def libraries_below(root: Path) -> Iterator[Path]:
    """The files that could be the driver's library, in the order of the folders, each once."""
    seen: set[Path] = set()
    for folder in FOLDERS:
        try:
            path = resolve_in(root, f"{folder}/{LIBRARY}")
            is_new = path not in seen and path.is_file()
        except OSError:
            continue
        if is_new:
            seen.add(path)
            yield path


def _parts(path: str) -> list[str]:
    """The names of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
