"""What somebody meant who wrote a name that does not exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LIKENESS: Final = 0.8
"""Above it two names are taken for one, misspelt: `difflib`'s ratio of equal letters."""
_LONGEST: Final = 64
"""Longer names are not compared: none of ours is, and comparing takes the square of it."""


def bare(name: str) -> str:
    """A name without case and punctuation: `split-count` and `splitCount` are one."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def same(name: str, known: Mapping[str, str]) -> str:
    """What to write for a name that differs in case and punctuation only; "" for nothing.

    `known` has every known spelling with what is to be written for it.
    """
    wanted = bare(name)
    return next((right for spelling, right in known.items() if bare(spelling) == wanted), "")


def nearest(name: str, known: Mapping[str, str]) -> str:
    """What to write for a name that looks like a known one; "" for nothing."""
    if len(name) > _LONGEST:
        return ""
    from difflib import get_close_matches  # seldom needed, and the daemon starts quickly

    by_letters = {bare(spelling): right for spelling, right in reversed(list(known.items()))}
    found = get_close_matches(bare(name), by_letters, n=1, cutoff=_LIKENESS)
    return by_letters[found[0]] if found else ""


def did_you_mean(right: str) -> str:
    """The question as the end of a hint; "" where nothing is near."""
    return f"; did you mean {right}?" if right else ""
