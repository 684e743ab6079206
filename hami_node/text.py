"""Text cut to a length that a line, a label or the API server accepts, and lists of names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_ELLIPSIS: Final = "..."
LONGEST_SHOWN: Final = 80
"""Characters of a user's text that a sentence repeats."""


def cut(text: str, max_chars: int) -> str:
    """The text, or its beginning and `...`: at most `max_chars` characters."""
    return text if len(text) <= max_chars else text[: max_chars - len(_ELLIPSIS)] + _ELLIPSIS


def cut_to_bytes(text: str, max_bytes: int) -> str:
    """The same by the length in UTF-8; no character is split."""
    raw = text.encode()
    if len(raw) <= max_bytes:
        return text
    return raw[: max_bytes - len(_ELLIPSIS)].decode(errors="ignore") + _ELLIPSIS


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of these names, and how many there are beside them: `a, b, c and 4997 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def shown(text: str) -> str:
    """A user's text as a sentence may repeat it: short, and in quotes unless it is a plain word."""
    short = cut(text, LONGEST_SHOWN)
    is_plain = short.isascii() and short.isprintable() and " " not in short and short != ""
    return short if is_plain else repr(short)
