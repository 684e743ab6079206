"""Installs the limiter's library and its ld.so.preload for new containers.

Every step leaves whole files: whatever kills the installer, running containers keep what they have,
the daemon serves the old library or the new one, and the next run finishes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from hami_node.clock import Deadline, SystemClock
from hami_node.errors import InstallError
from hami_node.vendors.nvidia.node.handles import (
    close_to_strangers,
    open_handle,
    read_whole,
    remove_unfinished,
    write_whole,
)
from hami_node.vendors.nvidia.node.limiter.limiter_files import PRELOAD
from hami_node.vendors.nvidia.node.limiter.versions import (
    LIBRARY,
    MAX_BYTES,
    POINTER,
    SHRINKS,
    UNKNOWN,
    Pointer,
    digest_in,
    installed_name,
    library_problem,
    version_in,
    version_of,
    wanted_digest,
)
from hami_node.vendors.on_node.limiter import LimiterInstalled, LimiterOrder

TURN_S: Final = 30.0
"""How long another installer may take."""
_TRY_S: Final = 0.1


def install(order: LimiterOrder) -> LimiterInstalled:
    """Verify the library and install it, or see that it is there.

    Raises:
        InstallError: it is not what was asked for, or the node does not take it.
    """
    root, machine = order.hook_path / "vgpu", os.uname().machine
    sha256 = wanted_digest(order.pins, machine)
    found = find_library(
        order.source or root, machine=machine, sha256=sha256, is_host=order.source is None
    )
    name = installed_name(order.version or found.version, found.sha256)
    try:
        with _folder(root) as folder, _turn(folder, root):
            remove_unfinished(folder)
            is_new = _put(folder, name, found)
            _put_text(folder, PRELOAD, f"{root / LIBRARY}\n".encode())
            _put_text(folder, POINTER, Pointer(name, found.sha256).encode())
    except OSError as e:
        raise InstallError(f"{name} can't be installed in {root}: {_reason(e)}") from e
    return LimiterInstalled(
        path=root / name,
        version=order.version or found.version,
        sha256=found.sha256,
        is_new=is_new,
        hint="" if sha256 else f"--sha256 {found.sha256} would accept nothing else next time",
    )


@contextmanager
def _folder(root: Path) -> Iterator[int]:
    """Open the folder, made if it is missing; it may be the administrator's own link.

    Raises:
        OSError: it can't be made.
        InstallError: strangers can put files there.
    """
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        close_to_strangers(handle)
        if _is_open_to_others(os.fstat(handle)):
            raise InstallError(
                f"{root} is open to others, who could replace the limiter: take their right to "
                "write (chmod go-w)"
            )
        yield handle
    finally:
        os.close(handle)


def _is_open_to_others(status: os.stat_result) -> bool:
    is_group_trusted = status.st_gid in (0, os.getegid())
    others = stat.S_IWOTH if is_group_trusted else stat.S_IWOTH | stat.S_IWGRP
    return bool(status.st_mode & others)


@contextmanager
def _turn(folder: int, root: Path) -> Iterator[None]:
    """Wait for another installer; the kernel ends the turn of a killed one.

    Raises:
        InstallError: it takes too long.
    """
    deadline = Deadline.after(TURN_S, SystemClock().monotonic)
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not deadline.pause(_TRY_S):
                raise InstallError(f"another installer is still at work in {root}") from None
    try:
        yield
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)


def _put(folder: int, name: str, found: Found) -> bool:
    """Write the library unless it is there, whole; True if it was written. Raises OSError."""
    there = read_whole(folder, name, MAX_BYTES)
    if there is not None and hashlib.sha256(there).hexdigest() == found.sha256:
        return False
    write_whole(folder, name, found.content)
    return True


def _put_text(folder: int, name: str, content: bytes) -> None:
    if read_whole(folder, name, len(content)) != content:
        write_whole(folder, name, content)


def _reason(error: OSError) -> str:
    """What is wrong, and what to do about it."""
    hints = {
        errno.ENOSPC: "free some space on that disk",
        errno.EDQUOT: "free some space on that disk",
        errno.EROFS: "name a writable folder with --hook-path, here and for the daemon",
        errno.EACCES: "run the installer as root, with the folder mounted for writing",
        errno.EPERM: "run the installer as root, with the folder mounted for writing",
        errno.EEXIST: "find out what has the folder's name, and remove it",
        errno.EISDIR: "find out who made a folder of that name, and remove it",
    }
    hint = hints.get(error.errno or 0, "check the disk and the mounts")
    return f"{error.strerror or error}: {hint}"


# -- takes the limiter's library from a folder that somebody else has filled: nothing is trusted ---
# The file is read once, and the bytes that were checked are the bytes that are installed.
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
