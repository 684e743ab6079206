"""The parameters of a request, each with its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hami_node.errors import WireError

MAX_WINDOW: Final = 100
MAX_OFFSET: Final = 10_000_000
MAX_WORD: Final = 100
MAX_WORDS: Final = 5
MAX_NAME: Final = 600
"""A namespace, a slash and a pod's name are at most 317 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a list."""

    offset: int
    limit: int

    @property
    def end(self) -> int:
        """Where the next part begins."""
        return self.offset + self.limit


class Query:
    """What follows the question mark."""

    def __init__(self, params: Mapping[str, str]) -> None:
        """Read these parameters; unknown ones are ignored."""
        self._params = params

    def words(self, name: str) -> tuple[str, ...]:
        """The words of a search, in lower case."""
        text = self._params.get(name, "")
        if len(text) > MAX_WORD:
            raise WireError(name, text, f"is longer than {MAX_WORD} characters")
        return tuple(text.lower().split()[:MAX_WORDS])

    def name(self, name: str) -> str:
        """The name of an object; "" for none."""
        text = self._params.get(name, "")
        if len(text) > MAX_NAME:
            raise WireError(name, text, f"is longer than {MAX_NAME} characters")
        return text

    def one_of(self, name: str, allowed: Sequence[str]) -> str:
        """One of these words; the first if it is absent."""
        text = self._params.get(name, allowed[0])
        if text not in allowed:
            raise WireError(name, text, f"use one of {', '.join(filter(None, allowed))}")
        return text

    def number(self, name: str, default: int, most: int) -> int:
        """A whole number from 0 on."""
        text = self._params.get(name, "")
        if text == "":
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= most):
            raise WireError(name, text, f"use a whole number from 0 to {most}")
        return int(text)

    def window(self) -> Window:
        """The part of a list that is wanted."""
        limit = max(1, self.number("limit", 50, MAX_WINDOW))
        return Window(offset=self.number("offset", 0, MAX_OFFSET), limit=limit)
