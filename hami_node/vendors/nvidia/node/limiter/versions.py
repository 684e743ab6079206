"""What a limiter's library is: by its file's name, and by its headers. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from hami_node.errors import InstallError

_NUMBERS: Final = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?![0-9])(.*)", re.S)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_DIGITS: Final = re.compile(r"([0-9]+)")
_TEMPORARY: Final = frozenset(
    {"bak", "copy", "new", "old", "orig", "part", "partial", "swp", "temp", "tmp"}
)
_EARLY: Final = re.compile(r"[-.](alpha|beta|dev|pre|rc)", re.I)
_LAST_WITH_LOCK: Final = (2, 8, 0)
_LEAKY: Final = (2, 8, 1)

_LAYOUTS: Final = (
    ((2, 8, 2), "v1.2"),
    ((2, 8, 1), "v1.1x"),
    ((2, 4, 1), "v1.1"),
    ((2, 4, 0), "v0"),
)
"""The first version with each layout of `region_layouts`, the newest first."""

_Key = tuple[tuple[int, int, int], bool, tuple[tuple[int, str], ...]]


@dataclass(frozen=True, slots=True)
class LimiterVersion:
    """A version by its text, such as `v2.10.0` or `v2.9.0-0f3a`; "" where it is unknown."""

    text: str = ""

    def __str__(self) -> str:
        """The text, for people."""
        return self.text or "unknown"

    @property
    def numbers(self) -> tuple[int, int, int] | None:
        """Its numbers; None where the text has none."""
        found = _NUMBERS.fullmatch(self.text)
        return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None

    @property
    def key(self) -> _Key:
        """What versions are sorted by: numbers as numbers, early builds first, then the text."""
        parts = tuple(
            (int(part[:18]), part) if part.isdigit() else (-1, part)
            for part in _DIGITS.split(self.text)
        )
        return self.numbers or (-1, -1, -1), not _EARLY.search(self.text), parts

    @property
    def uses_lock(self) -> bool:
        """True if it takes a lock in /tmp/vgpulock, as up to 2.8.0; an unknown version may."""
        return self.numbers is None or self.numbers <= _LAST_WITH_LOCK

    @property
    def layout(self) -> str:
        """The name of the region layout that it makes; "" where that is not known."""
        numbers = self.numbers
        if numbers is None or numbers < _LAYOUTS[-1][0]:
            return ""
        return next(name for first, name in _LAYOUTS if numbers >= first)

    @property
    def defect(self) -> str:
        """What it is known not to limit; "" for nothing."""
        if self.numbers != _LEAKY:
            return ""
        return f"limiter {self} does not limit a container's second program: install 2.8.2 or later"


def version_of(file_name: str, library: str) -> LimiterVersion | None:
    """The version in `<library>.<version>`; None for other names and for temporary ones."""
    text = file_name.removeprefix(f"{library}.")
    if text == file_name or not _NAME.fullmatch(text):
        return None
    words = re.split(r"[._+-]", text.lower())
    return None if _TEMPORARY.intersection(words) else LimiterVersion(text)


# -- names of installed libraries, which tell their content, and checksums that were asked for -----
# An installed library is `libvgpu.so.<version>-<first 12 digits of its sha256>`: another content
# has another name, so no file is written twice, and one that a container has mapped never changes.
LIBRARY: Final = "libvgpu.so"
POINTER: Final = "limiter.installed"
"""The file that says which library was installed last."""
MAX_POINTER_BYTES: Final = 300
DIGITS: Final = 12
UNKNOWN: Final = "unknown"
IMAGE_MACHINES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's names of processors, and those of container images."""
MAX_VERSION_CHARS: Final = 64

_INSTALLED: Final = re.compile(r"(.+)-([0-9a-f]{12})")
_PIN: Final = re.compile(r"(?:(amd64|arm64)=)?([0-9a-f]{64})")
_POINTER: Final = re.compile(r"([!-~]{1,200}) ([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which library was installed last: the name of its file, and its whole checksum."""

    name: str
    sha256: str

    def encode(self) -> bytes:
        """The content of the pointer's file."""
        return f"{self.name} {self.sha256}\n".encode()


def decode_pointer(content: bytes) -> Pointer | None:
    """What a pointer's file says; None for anything that the installer has not written."""
    found = _POINTER.fullmatch(content.decode("ascii", "replace"))
    if found is None or digest_in(found[1]) != found[2][:DIGITS]:
        return None
    return Pointer(found[1], found[2])


def installed_name(version: str, sha256: str) -> str:
    """The name of an installed library.

    Raises:
        InstallError: the version can't be part of a file's name.
    """
    name = f"{LIBRARY}.{version}-{sha256[:DIGITS]}"
    if len(version) > MAX_VERSION_CHARS or version_of(name, LIBRARY) is None:
        raise InstallError(
            f"{version[:80]!r} is no version: use letters, digits, '.', '-', '_' and '+', at most "
            f"{MAX_VERSION_CHARS} of them, and no word for a temporary file such as 'new'"
        )
    return name


def digest_in(name: str) -> str:
    """The first digits of the sha256 that an installed library's name tells; "" for others."""
    version = version_of(name, LIBRARY)
    found = _INSTALLED.fullmatch(version.text) if version is not None else None
    return found[2] if found is not None else ""


def version_in(name: str) -> str:
    """The version that the name of a library tells, without its checksum; "" for none."""
    version = version_of(name, LIBRARY)
    if version is None:
        return ""
    found = _INSTALLED.fullmatch(version.text)
    return found[1] if found is not None else version.text


def wanted_digest(pins: Iterable[str], machine: str) -> str:
    """The sha256 that a library for this machine has to have; "" where none was asked for.

    Args:
        pins: each a sha256, or `amd64=` or `arm64=` before one.
        machine: the kernel's name of the processor.

    Raises:
        InstallError: there are some, but none for this machine, or one can't be read.
    """
    by_kind: dict[str, str] = {}
    for text in pins:
        found = _PIN.fullmatch(text)
        if found is None:
            raise InstallError(
                f"{text[:80]!r} is no sha256: write 64 hexadecimal digits in lower case, or "
                "amd64=... and arm64=..."
            )
        by_kind[found[1] or ""] = found[2]
    kind = IMAGE_MACHINES.get(machine, machine)
    if by_kind and not by_kind.keys() & {kind, ""}:
        raise InstallError(f"no sha256 is given for {kind}: add {kind}=... to the others")
    return by_kind.get(kind, by_kind.get("", ""))


# -- whether a file is a whole shared library for this machine, by its headers alone ---------------
# A copy in progress, an empty file or a library for another processor is ignored by the dynamic
# linker without an error that anybody sees, so a container would run without limits.
MIN_BYTES: Final = 1024
MAX_BYTES: Final = 64 * 1024 * 1024
MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""Processors by the kernel's name, as the number in the file."""

SHRINKS: Final = "is being written"

_HEADER: Final = struct.Struct("<4s3B9xHHI3QI6H")
_PROGRAM: Final = struct.Struct("<2I6Q")
_SECTION: Final = struct.Struct("<2I4Q2I2Q")
_MAX_PROGRAMS, _MAX_SECTIONS = 128, 1024
_CLASS_64, _LITTLE_ENDIAN, _CURRENT, _SHARED = 2, 1, 1, 3
_LOAD, _DYNAMIC = 1, 2
_NAMES, _NO_BITS = 3, 8

Read = Callable[[int, int], bytes]
"""Reads that many bytes from that offset; fewer at the end of the file."""


def library_problem(read: Read, size: int, machine: str) -> str:
    """Why a file of `size` bytes is no whole shared library for `machine`; "" if it is one."""
    if not MIN_BYTES <= size <= MAX_BYTES:
        return f"has {size} bytes, which no library has"
    head = read(0, _HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(b"\x7fELF"):
        return "is no ELF file"
    fields = _HEADER.unpack(head)
    _, width, order, version, kind, processor = fields[:6]
    if (width, order, version, kind) != (_CLASS_64, _LITTLE_ENDIAN, _CURRENT, _SHARED):
        return "is no 64-bit, little-endian shared library"
    allowed = [MACHINES[machine]] if machine in MACHINES else list(MACHINES.values())
    if processor not in allowed:
        return f"is for another processor (ELF machine {processor}), not for {machine}"
    _, programs_at, sections_at = fields[7:10]
    entry, count, section_entry, section_count, names_at = fields[12:]
    return _programs_problem(read, size, programs_at, (entry, count)) or _sections_problem(
        read, size, sections_at, (section_entry, section_count, names_at)
    )


def _programs_problem(read: Read, size: int, at: int, shape: tuple[int, int]) -> str:
    entry, count = shape
    if entry != _PROGRAM.size or not 0 < count <= _MAX_PROGRAMS:
        return "has no program headers"
    if at + count * entry > size:
        return f"has only {size} bytes and is cut off: its program headers are missing"
    table = read(at, count * entry)
    if len(table) < count * entry:
        return SHRINKS
    kinds = set()
    for kind, _, offset, _, _, length, *_ in _PROGRAM.iter_unpack(table):
        kinds.add(kind)
        if kind in (_LOAD, _DYNAMIC) and offset + length > size:
            return f"has only {size} of {offset + length} bytes: it is cut off"
    if not {_LOAD, _DYNAMIC} <= kinds:
        return "holds nothing that can be loaded"
    return ""


def _sections_problem(read: Read, size: int, at: int, shape: tuple[int, int, int]) -> str:
    """The table stands at the end of a file, so it is what a copy in progress lacks."""
    entry, count, names_at = shape
    if at == 0 and count == 0:
        return ""  # stripped of its sections; the ranges to load were compared with the size
    if entry != _SECTION.size or not names_at < count <= _MAX_SECTIONS:
        return "has a section table that can't be read"
    if at + count * entry > size:
        return f"has only {size} of {at + count * entry} bytes: it is cut off"
    table = read(at, count * entry)
    if len(table) < count * entry:
        return SHRINKS
    sections = list(_SECTION.iter_unpack(table))
    if sections[names_at][1] != _NAMES:
        return "has no section names: the end of the file was not written"
    for section in sections:
        kind, offset, length = section[1], section[4], section[5]
        if kind != _NO_BITS and offset + length > size:
            return f"has only {size} of {offset + length} bytes: it is cut off"
    return ""
