"""The limiter's files on this node: which library is served, and what is wrong with the rest."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from hami_node.errors import InstallError
from hami_node.logs import kv
from hami_node.text import cut
from hami_node.vendors.nvidia.node.handles import open_handle
from hami_node.vendors.nvidia.node.limiter.versions import (
    DIGITS,
    LIBRARY,
    MAX_BYTES,
    MAX_POINTER_BYTES,
    POINTER,
    SHRINKS,
    LimiterVersion,
    Pointer,
    Read,
    decode_pointer,
    digest_in,
    library_problem,
    version_of,
    wanted_digest,
)

log = logging.getLogger(__name__)

PRELOAD: Final = "ld.so.preload"
_MAX_PRELOAD_BYTES: Final = 4096
_AGAIN: Final = (
    "install it again, written under another name such as .new and then renamed, readable for all"
)
_PINNED: Final = (
    "install it with hami-node install-limiter, or change --limiter-sha256 if another one is wanted"
)
_DELIVER: Final = "run hami-node install-limiter on this node again, with the image that has it"

FileIdentity = tuple[int, int]
"""Device and inode."""
Content = tuple[int, int, int, int]
"""Which file it is, its size and when it was last written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiter:
    """The files of the in-container limiter on this node; None for a missing or unusable file.

    Attributes:
        sha256: of the library.
        identity: of the library that was checked.
        problem: why a container can't be limited; "" if it can.
        hint: what to do about the problem.
    """

    library: Path | None = None
    preload: Path | None = None
    license: Path | None = None
    validator: Path | None = None
    version: LimiterVersion = field(default_factory=LimiterVersion)
    sha256: str = ""
    identity: FileIdentity | None = None
    problem: str = ""
    hint: str = ""

    @property
    def is_complete(self) -> bool:
        """True when a container can be limited."""
        return self.library is not None and self.preload is not None

    @property
    def uses_lock(self) -> bool:
        """True if a container needs the lock folder."""
        return self.library is not None and self.version.uses_lock

    @property
    def defect(self) -> str:
        """What it is known not to limit; "" for nothing."""
        return self.version.defect if self.library is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What was found in a file, for as long as it stays the same.

    Attributes:
        content: size and time of the last write, and which file it is.
        changed_ns: when anything of it changed, its number of names included; -1 to read it again.
        problem: "" for a file that serves.
        sha256: of one that serves.
    """

    content: Content
    changed_ns: int
    problem: str
    sha256: str = ""

    @property
    def identity(self) -> FileIdentity:
        return self.content[:2]

    def is_of(self, status: os.stat_result) -> bool:
        return (self.content, self.changed_ns) == (_content_of(status), status.st_ctime_ns)


Check = Callable[[Read, int], str]
"""Says what is wrong with a file's content, by its size; "" for nothing."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A library that may be served, by name; `sha256` is what its checksum must begin with."""

    name: str
    version: LimiterVersion
    sha256: str


class LimiterFiles:
    """Looks for the limiter's files in a folder. A file is read again only when it has changed.

    Any thread may look: what one has found is replaced as a whole, and at worst read twice.
    """

    def __init__(
        self,
        folder: Path,
        inside: Path,
        check_library: Check | None = None,
        pins: Callable[[], tuple[str, ...]] = tuple,
        *,
        is_silent: bool = False,
    ) -> None:
        """Look in `folder`; in a container the library is at `inside`.

        `pins` returns the sha256 that the library must have, as the settings have them; with
        `is_silent` nothing is logged, because somebody else looks there too.
        """
        self._is_silent = is_silent
        self._folder, self._pins = folder, pins
        machine = os.uname().machine
        self._checks: dict[str, Check] = {
            LIBRARY: check_library or partial(_library_problem, machine),
            PRELOAD: partial(_preload_problem, str(inside)),
        }
        self._preload_hint = f"write exactly the line {inside} to it, readable for all"
        self._verdicts: dict[str, _Verdict] = {}
        self._warned = ""

    def find(self) -> Limiter:
        """The library with the wanted sha256, else the one installed last, else the best there is.

        That is the plain library before versions, and the newest version before others; never a
        link, and never a file whose content is not what its name or the installer says.
        """
        verdicts: dict[str, _Verdict] = {}
        problems: list[tuple[str, str]] = []
        library = self._library(verdicts, problems)
        preload = self._look(PRELOAD, PRELOAD, verdicts)
        self._verdicts = verdicts
        license_file = _regular(self._folder / "license")
        problem, hint = self._trouble(library is not None, preload, problems)
        limiter = Limiter(
            library=self._folder / library.name if library else None,
            preload=None if preload is None or preload.problem else self._folder / PRELOAD,
            license=license_file,
            validator=_regular(self._folder / "vgpuvalidator") if license_file else None,
            version=library.version if library else LimiterVersion(),
            sha256=library.sha256 if library else "",
            identity=verdicts[library.name].identity if library else None,
            problem=problem,
            hint=hint,
        )
        self._warn_of_defect(limiter.defect)
        return limiter

    def was_linked(self, name: str) -> None:
        """The library `name` has got one more name: that changed its status, not its content."""
        known = self._verdicts.get(name)
        status = _status(self._folder / name)
        if known is not None and status is not None and _content_of(status) == known.content:
            self._verdicts[name] = replace(known, changed_ns=status.st_ctime_ns)

    def library_problem(self, path: Path) -> str:
        """What is wrong with another library, read again; "" for nothing."""
        status = _status(path)
        return _checked(path, status, self._checks[LIBRARY]).problem if status else "is gone"

    def _library(
        self, verdicts: dict[str, _Verdict], problems: list[tuple[str, str]]
    ) -> _Candidate | None:
        """The library to serve; what is wrong with better ones goes to `problems`, with hints."""
        try:
            pin = wanted_digest(self._pins(), os.uname().machine)
        except InstallError as e:
            problems.append((str(e), "correct --limiter-sha256"))
            return None
        for candidate in self._candidates(pin, problems):
            path, wanted = self._folder / candidate.name, candidate.sha256
            found = self._look(candidate.name, LIBRARY, verdicts)
            if found is None or found.problem:
                if found is not None:
                    problems.append((f"{path} {found.problem}", _AGAIN))
                elif wanted and not pin:
                    problems.append((f"{path}, which was installed last, is gone", _DELIVER))
                continue
            if found.sha256.startswith(wanted):
                return replace(candidate, sha256=found.sha256)
            if not pin:
                has = f"has the sha256 {found.sha256} instead of {wanted}"
                problems.append((f"{path} {has}", _DELIVER))
        if pin:
            problems.insert(0, (f"no limiter with the sha256 {pin} is in {self._folder}", _PINNED))
        return None

    def _candidates(self, pin: str, problems: list[tuple[str, str]]) -> list[_Candidate]:
        """What may be served, the best first, each with the sha256 that it must begin with."""
        names = [(LIBRARY, LimiterVersion()), *self._versions()]
        if pin:  # by its name first: what has another name is read to be told
            names.sort(key=lambda item: digest_in(item[0]) != pin[:DIGITS])
            return [_Candidate(name, version, pin) for name, version in names]
        path = self._folder / POINTER
        if _status(path) is None:
            return [_Candidate(name, version, digest_in(name)) for name, version in names]
        last = _pointer(path)
        if last is None:
            problems.append((f"{path} is damaged", _DELIVER))
            return []
        version = version_of(last.name, LIBRARY) or LimiterVersion()
        return [_Candidate(last.name, version, last.sha256)]

    def _versions(self) -> list[tuple[str, LimiterVersion]]:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        found = [(name, version_of(name, LIBRARY)) for name in names]
        versions = [(name, version) for name, version in found if version is not None]
        return sorted(versions, key=lambda item: item[1].key, reverse=True)

    def _look(self, name: str, kind: str, verdicts: dict[str, _Verdict]) -> _Verdict | None:
        """What is known of a file, checked again if it has changed; None if it is missing."""
        path = self._folder / name
        status = _status(path)
        if status is None:
            return None
        known = self._verdicts.get(name)
        if known is None or not known.is_of(status):
            before = known.problem if known is not None else ""
            known = _checked(path, status, self._checks[kind])
            if known.problem and known.problem != before and not self._is_silent:
                log.warning("limiter_file_refused", extra=kv(file=str(path), problem=known.problem))
        verdicts[name] = known
        return known

    def _trouble(
        self, has_library: bool, preload: _Verdict | None, problems: list[tuple[str, str]]
    ) -> tuple[str, str]:
        """The first reason why containers can't be limited, and its hint."""
        missing = "install the limiter's files there"
        if not has_library:
            if problems:
                return problems[0]
            return f"{self._folder / LIBRARY} is not on this node", missing
        if preload is None:
            return f"{self._folder / PRELOAD} is not on this node", missing
        if preload.problem:
            return f"{self._folder / PRELOAD} {preload.problem}", self._preload_hint
        return "", ""

    def _warn_of_defect(self, defect: str) -> None:
        if defect and defect != self._warned and not self._is_silent:
            log.warning("limiter_defective", extra=kv(defect=defect))
        self._warned = defect


def _library_problem(machine: str, read: Read, size: int) -> str:
    return library_problem(read, size, machine)


def _preload_problem(path: str, read: Read, size: int) -> str:
    found, wanted = read(0, _MAX_PRELOAD_BYTES), path.encode()
    if found in (wanted, wanted + b"\n") and size == len(found):
        return ""
    return f"has the content {cut(found.decode(errors='replace'), 120)!r} instead of {path!r}"


def _checked(path: Path, status: os.stat_result, check: Check) -> _Verdict:
    """Read a file. One that changes meanwhile is one that is being written."""
    if not stat.S_ISREG(status.st_mode):
        return _verdict(status, "is no regular file")
    try:
        with open_handle(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
            before = os.fstat(handle)
            problem = _mode_problem(before) or check(
                lambda at, size: os.pread(handle, size, at), before.st_size
            )
            sha256 = "" if problem else digest_of(handle)
            after = os.fstat(handle)
    except OSError as e:
        return replace(_verdict(status, f"can't be read ({e.strerror or e})"), changed_ns=-1)
    if _content_of(before) != _content_of(after):
        return _verdict(before, SHRINKS)
    return replace(_verdict(before, problem), sha256=sha256)


def _mode_problem(status: os.stat_result) -> str:
    if status.st_mode & stat.S_IROTH:
        return ""
    mode = stat.S_IMODE(status.st_mode)
    return f"has the mode {mode:04o}, so not every user in a container can read it"


def _verdict(status: os.stat_result, problem: str) -> _Verdict:
    return _Verdict(content=_content_of(status), changed_ns=status.st_ctime_ns, problem=problem)


def _content_of(status: os.stat_result) -> Content:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except OSError:
        return None


def _pointer(path: Path) -> Pointer | None:
    """Which library was installed last; None where that can't be read."""
    try:
        with open_handle(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
            is_ours = stat.S_ISREG(os.fstat(handle).st_mode)
            return decode_pointer(os.read(handle, MAX_POINTER_BYTES)) if is_ours else None
    except OSError:
        return None


def _regular(path: Path) -> Path | None:
    status = _status(path)
    return path if status is not None and stat.S_ISREG(status.st_mode) else None


# -- checksums of files on the node ----------------------------------------------------------------
_PART_BYTES: Final = 1 << 20


def digest_of(handle: int) -> str:
    """The sha256 of an open file; nobody reads much more than a library. Raises OSError."""
    digest, at = hashlib.sha256(), 0
    while at <= MAX_BYTES and (part := os.pread(handle, _PART_BYTES, at)):
        digest.update(part)
        at += len(part)
    return digest.hexdigest()
