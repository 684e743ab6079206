"""The series that a query names, without Prometheus. It knows as much of PromQL as we use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING: Final = re.compile(
    r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)", re.IGNORECASE
)
_RANGE: Final = re.compile(r"\[[^\]]*\]")
_OFFSET: Final = re.compile(r"\boffset\s+\S+?(?=[\s)]|$)")
_MATCHERS: Final = re.compile(r"\{([^{}]*)\}")
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_WORDS: Final = frozenset({"and", "or", "unless", "bool", "by", "without", "on", "ignoring", "inf"})
FUNCTIONS: Final = frozenset(
    (
        *("sum", "max", "min", "count", "avg", "topk", "absent", "vector", "floor", "clamp_min"),
        *("rate", "increase", "histogram_quantile", "max_over_time"),
    )
)
"""Those that rules and dashboards use. A new one is added here: a name before a bracket that is
none is a misspelt one."""


class BadQueryError(Exception):
    """A query that can't be right."""


def selectors(query: str) -> Iterator[tuple[str, frozenset[str]]]:
    """(name, labels that it is selected by) of all series of a query.

    Raises:
        BadQueryError: it has an unknown function, or brackets without an end.
    """
    text = _STRING.sub('""', query)
    for opening, closing in ("()", "[]", "{}"):
        if text.count(opening) != text.count(closing):
            raise BadQueryError(f"{opening} without {closing}: {query}")
    text = _OFFSET.sub(" ", _RANGE.sub(" ", _GROUPING.sub(" ", text)))
    for match in _NAME.finditer(_outside(text)):
        name, rest = match[0], text[match.end() :].lstrip()
        if match.start() and text[match.start() - 1].isdigit():
            continue  # the exponent of a number
        if rest.startswith("("):
            if name not in FUNCTIONS and name not in _WORDS:
                raise BadQueryError(f"unknown function {name}: {query}")
        elif name not in _WORDS:
            found = _MATCHERS.match(rest)
            yield name, frozenset(_NAME.findall(found[1])) if found else frozenset()


def groupings(query: str) -> Iterator[str]:
    """Every label by which a query groups or joins."""
    for match in _GROUPING.finditer(_STRING.sub('""', query)):
        yield from _NAME.findall(match[1])


def _outside(text: str) -> str:
    """The text with what is between braces blanked out."""
    return _MATCHERS.sub(lambda match: " " * len(match[0]), text)
