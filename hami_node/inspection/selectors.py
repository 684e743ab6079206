"""Label selectors, as kubectl's -l has them, for objects that are here already. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

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
    tests = [_test_of(term.strip()) for term in _terms(text)] if text.strip() else []
    return lambda labels: all(test(labels) for test in tests)


def _terms(text: str) -> list[str]:
    """The parts between commas that are not in parentheses."""
    return re.split(r",(?![^()]*\))", text)


def _test_of(term: str) -> Selects:
    if found := _EXISTS.fullmatch(term):
        is_absent, key = bool(found[1]), found[2]
        return lambda labels: (key in labels) != is_absent
    if found := _EQUALS.fullmatch(term):
        return _one_of(found[1], frozenset({found[3]}), is_not=found[2] == "!=")
    if found := _IN.fullmatch(term):
        values = [value.strip() for value in found[3].split(",")]
        if all(re.fullmatch(_VALUE, value) for value in values):
            return _one_of(found[1], frozenset(values), is_not=found[2] == "notin")
    hint = "use KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY, with commas"
    raise HamiError(f"-l: {shown(term)} is no selector; {hint}")


def _one_of(key: str, values: frozenset[str], *, is_not: bool) -> Selects:
    """As in Kubernetes, an object without the label is not equal to anything."""

    def test(labels: Mapping[str, str]) -> bool:
        value = labels.get(key)
        return is_not if value is None else (value in values) != is_not

    return test
