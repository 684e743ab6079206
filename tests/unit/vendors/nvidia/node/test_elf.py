from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.vendors.nvidia.demo import empty_library
from hami_node.vendors.nvidia.node.limiter.versions import MAX_BYTES, MIN_BYTES, library_problem

HERE = os.uname().machine
WHOLE = empty_library("x86_64")
SECTIONS_AT, SECTION_COUNT, NAMES_AT = 40, 60, 62
"""Offsets in the header."""


def problem(content: bytes, machine: str = "x86_64") -> str:
    return library_problem(lambda at, size: content[at : at + size], len(content), machine)


def with_sections(content: bytes = WHOLE) -> bytes:
    """The same with a section table at its end, as a linker writes it."""
    head = bytearray(content)
    struct.pack_into("<Q", head, SECTIONS_AT, len(content))
    struct.pack_into("<2H", head, SECTION_COUNT, 2, 1)
    names = struct.pack("<2I4Q2I2Q", 1, 3, 0, 0, 200, 16, 0, 0, 1, 0)
    return bytes(head) + bytes(64) + names


def patched(at: int, form: str, *values: int) -> bytes:
    content = bytearray(with_sections())
    struct.pack_into(form, content, at, *values)
    return bytes(content)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_library_of_this_machine_serves(machine: str) -> None:
    assert problem(empty_library(machine), machine) == ""
    assert problem(with_sections(empty_library(machine)), machine) == ""


def test_library_of_the_running_python_serves() -> None:
    mapped = Path("/proc/self/maps").read_text().split()
    libraries = {Path(path) for path in mapped if path.startswith("/") and ".so" in path}
    assert libraries, sys.version
    for path in libraries:
        assert problem(path.read_bytes(), HERE) == "", path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "has 0 bytes", id="empty"),
        pytest.param(b"stand-in", "has 8 bytes", id="text"),
        pytest.param(bytes(MIN_BYTES), "no ELF file", id="zeros"),
        pytest.param(patched(4, "B", 1), "64-bit", id="32-bit"),
        pytest.param(patched(5, "B", 2), "little-endian", id="big-endian"),
        pytest.param(patched(16, "H", 2), "shared library", id="program"),
        pytest.param(patched(18, "H", 183), "another processor", id="other-processor"),
        pytest.param(patched(56, "H", 0), "no program headers", id="no-programs"),
        pytest.param(patched(56, "H", 65535), "no program headers", id="too-many-programs"),
        pytest.param(patched(32, "Q", 2**63), "cut off", id="programs-outside"),
        pytest.param(patched(64, "I", 6), "nothing that can be loaded", id="no-load"),
        pytest.param(patched(64 + 32, "Q", 2**40), "cut off", id="load-outside"),
        pytest.param(patched(SECTIONS_AT, "Q", 2**64 - 1), "cut off", id="sections-outside"),
        pytest.param(patched(NAMES_AT, "H", 9), "can't be read", id="no-such-names"),
        pytest.param(with_sections()[:-64], "cut off", id="last-section-missing"),
        pytest.param(with_sections()[:-64] + bytes(64), "was not written", id="end-is-zeros"),
    ],
)
def test_other_content_is_refused_with_the_reason(content: bytes, words: str) -> None:
    assert words in problem(content)


def test_size_that_no_library_has_is_refused_unread() -> None:
    assert "bytes" in library_problem(lambda at, size: WHOLE[at : at + size], MAX_BYTES + 1, HERE)


def test_unknown_machine_takes_a_library_of_any_served_processor() -> None:
    assert problem(empty_library("x86_64"), "riscv64") == ""
    assert problem(empty_library("aarch64"), "riscv64") == ""


def test_file_that_shrinks_while_it_is_read_is_no_library() -> None:
    whole = with_sections()
    found = library_problem(lambda at, size: whole[at : at + min(size, 64)], len(whole), "x86_64")
    assert found == "is being written"


@given(at=st.integers(0, 239), value=st.binary(min_size=1, max_size=16))
def test_no_header_breaks_the_check(at: int, value: bytes) -> None:
    content = bytearray(with_sections())
    content[at : at + len(value)] = value
    assert isinstance(problem(bytes(content)), str)
