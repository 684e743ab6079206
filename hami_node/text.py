"""Text cut to a length that a line, a label or the API server accepts."""

from __future__ import annotations

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


def shown(text: str) -> str:
    """A user's text as a sentence may repeat it: short, and in quotes unless it is a plain word."""
    short = cut(text, LONGEST_SHOWN)
    is_plain = short.isascii() and short.isprintable() and " " not in short and short != ""
    return short if is_plain else repr(short)
