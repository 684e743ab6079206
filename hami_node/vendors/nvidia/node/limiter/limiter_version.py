"""Versions of the limiter, as its file's name tells them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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
