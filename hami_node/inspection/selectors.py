"""Label selectors, as kubectl's -l has them, for objects that are here already. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from hami_node.cluster.objects import LabelSelector, Requirement
from hami_node.errors import HamiError
from hami_node.text import shown

Selects = Callable[[Mapping[str, str]], bool]
"""Whether these labels are selected."""

_MAX_CHARS: Final = 10_000
_KEY: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_./-]*[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_EXISTS: Final = re.compile(rf"(!?)\s*({_KEY})")
_EQUALS: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_IN: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")


def selector_of(text: str) -> Selects:
    """A test for labels: `a=b,c!=d,e in (f,g),h notin (i),j,!k`; "" selects everything.

    Raises:
        HamiError: not such a selector.
    """
    if len(text) > _MAX_CHARS:
        raise HamiError(f"-l: the selector has more than {_MAX_CHARS} characters")
    terms = [_requirement(term.strip()) for term in _terms(text)] if text.strip() else []
    return LabelSelector(match_expressions=terms).selects


def _terms(text: str) -> list[str]:
    """The parts between commas that are not in parentheses."""
    return re.split(r",(?![^()]*\))", text)


def _requirement(term: str) -> Requirement:
    if found := _EXISTS.fullmatch(term):
        return Requirement(key=found[2], operator="DoesNotExist" if found[1] else "Exists")
    if found := _EQUALS.fullmatch(term):
        operator = "NotIn" if found[2] == "!=" else "In"
        return Requirement(key=found[1], operator=operator, values=[found[3]])
    if found := _IN.fullmatch(term):
        values = [value.strip() for value in found[3].split(",")]
        if all(re.fullmatch(_VALUE, value) for value in values):
            operator = "In" if found[2] == "in" else "NotIn"
            return Requirement(key=found[1], operator=operator, values=values)
    hint = "use KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY, with commas"
    raise HamiError(f"-l: {shown(term)} is no selector; {hint}")
