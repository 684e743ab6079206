"""What a check says: that something is right, wrong, or could not be checked, and the cure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hami_node.text import cut, some

MAX_WORDS: Final = 600
"""Characters that are shown of what others have written: events, annotations, messages."""


class State(StrEnum):
    """The result of a check, in a word of at most five letters."""

    OK = "ok"
    WARNING = "warn"
    WRONG = "wrong"
    SKIPPED = "skip"
    """Not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check.

    Attributes:
        check: what was looked at, in a few words.
        state: how it is.
        what: what was found, in a sentence.
        remedy: what to do about it; "" for nothing.
        is_outage: it was not checked because the API server failed.
    """

    check: str
    state: State
    what: str
    remedy: str = ""
    is_outage: bool = False


def ok(check: str, what: str) -> Finding:
    """It is as it should be."""
    return Finding(check=check, state=State.OK, what=what)


def wrong(check: str, what: str, remedy: str) -> Finding:
    """Something does not work."""
    return Finding(check=check, state=State.WRONG, what=what, remedy=remedy)


def warning(check: str, what: str, remedy: str = "") -> Finding:
    """It works, but a person should know."""
    return Finding(check=check, state=State.WARNING, what=what, remedy=remedy)


def unknown(check: str, what: str, *, is_outage: bool = False) -> Finding:
    """It could not be checked."""
    return Finding(
        check=check, state=State.SKIPPED, what=f"not checked: {what}", is_outage=is_outage
    )


def several(names: Iterable[str]) -> str:
    """The first of many names, sorted, and how many more."""
    return some(sorted(set(names)))


def words(text: str) -> str:
    """Somebody's sentence, on one line and not too long."""
    return cut(" ".join(text.split()), MAX_WORDS)
