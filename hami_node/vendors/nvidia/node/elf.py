"""Whether a file is a whole shared library for this machine, by its headers alone. Pure.

A copy in progress, an empty file or a library for another processor is ignored by the dynamic
linker without an error that anybody sees, so a container would run without limits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

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
