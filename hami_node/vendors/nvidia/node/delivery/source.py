"""Takes the limiter's library from a folder that somebody else has filled: nothing is trusted.

The file is read once, and the bytes that were checked are the bytes that are installed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from hami_node.errors import InstallError
from hami_node.vendors.nvidia.node.delivery.installed_names import (
    LIBRARY,
    UNKNOWN,
    digest_in,
    version_in,
)
from hami_node.vendors.nvidia.node.elf import MAX_BYTES, SHRINKS, library_problem
from hami_node.vendors.nvidia.node.handles import open_handle
from hami_node.vendors.nvidia.node.limiter.limiter_version import version_of

MAX_NAMES: Final = 4096
"""More files than any image of the limiter has."""
_AGAIN: Final = "fetch it again from its publisher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A whole library.

    Attributes:
        version: as its name tells it, or `unknown`.
    """

    path: Path
    content: bytes
    sha256: str
    version: str


def find_library(folder: Path, *, machine: str, sha256: str = "", is_host: bool = False) -> Found:
    """The newest library in the folder, or with `sha256` the one that has it.

    Args:
        folder: where to look; not below it.
        machine: the kernel's name of the processor that it has to be for.
        sha256: that it has to have; "" for any.
        is_host: look at what others have left on the node, not at what was installed before.

    Raises:
        InstallError: there is none, or none that may be installed.
    """
    names = _candidates(folder, is_host=is_host)
    if not names:
        raise InstallError(
            f"{folder} has no {LIBRARY} and no {LIBRARY}.<version>: check the image, and the path "
            "that its files are copied from"
        )
    others = []
    for name in names:
        found = _read(folder / name)
        if sha256 and found.sha256 != sha256:
            others.append(f"{name} has {found.sha256}")
            continue
        problem = library_problem(
            lambda at, size, content=found.content: content[at : at + size],  # type: ignore[misc]
            len(found.content),
            machine,
        )
        if problem:
            raise InstallError(f"{found.path} {problem}: {_AGAIN}")
        return found
    raise InstallError(
        f"nothing in {folder} has the sha256 {sha256}: {'; '.join(others[:3])}: check whether the "
        "image is the wanted one before the sha256 is changed"
    )


def _candidates(folder: Path, *, is_host: bool) -> Sequence[str]:
    """Names of libraries, the newest version first, the one without a version last."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MAX_NAMES + 1)]
    except OSError as e:
        raise InstallError(f"{folder} can't be read: {e.strerror or e}: check the mounts") from e
    if len(names) > MAX_NAMES:
        raise InstallError(f"{folder} has more than {MAX_NAMES} files: it is not the limiter's")
    found = [
        (version.key, name)
        for name in names
        if (version := version_of(name, LIBRARY)) is not None and not (is_host and digest_in(name))
    ]
    plain = [LIBRARY] if LIBRARY in names else []
    return [name for _, name in sorted(found, reverse=True)] + plain


def _read(path: Path) -> Found:
    """Read a regular file of bounded size once.

    Raises:
        InstallError: it can't be read, or is something else.
    """
    try:
        with open_handle(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise InstallError(f"{path} is no regular file: {_AGAIN}")
            if status.st_size > MAX_BYTES:
                raise InstallError(f"{path} has {status.st_size} bytes, which no library has")
            content = _content(handle)
    except OSError as e:
        raise InstallError(f"{path} can't be read: {e.strerror or e}: it may be a link") from e
    if len(content) != status.st_size:
        raise InstallError(f"{path} {SHRINKS}: try again when it is whole")
    digest = hashlib.sha256(content).hexdigest()
    version = version_in(path.name) if digest_in(path.name) in ("", digest[:12]) else ""
    return Found(path=path, content=content, sha256=digest, version=version or UNKNOWN)


def _content(handle: int) -> bytes:
    parts, left = [], MAX_BYTES + 1
    while left > 0 and (part := os.read(handle, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
