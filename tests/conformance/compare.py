"""When an answer differs from the recorded one."""

from __future__ import annotations

import json
import math
from typing import Any

from tests.conformance.filter_op import choices, plain
from tests.conformance.objects import Json

TOLERANCE = 1e-5
"""Relative, for scores: the recorded ones were computed in 32-bit floats."""

INFORMATIVE = frozenset({"reason_counts", "node_scores"})
"""Parts of a recorded answer that repeat others or only inform."""

JSON_TEXTS = frozenset({"node_json_encode", "mig_allocations_encode"})
"""Codecs whose text is compared as JSON."""


def differences(case: Json, given: Json) -> list[str]:
    """Sentences about every difference; none when the answer is right."""
    wanted = case["out"]
    if case["op"] == "filter":
        tried = [_compare("", plain(choice), plain(given)) for choice in choices(wanted)]
        return min(tried, key=len)
    if case["op"] == "requests" and "error" in given:
        # A request that ours refuses with a name is no request at all for the original.
        given = {"request": None}
    if case["op"] == "codec":
        kind = case["in"]["kind"]
        if kind in JSON_TEXTS:
            wanted, given = _parsed(wanted), _parsed(given)
        if kind == "pod_decode":
            wanted = _without_last_empty(wanted)
    return _compare("", wanted, given)


def _parsed(answer: Json) -> Json:
    """The text as JSON, without the empty pair scores that 2.8 adds to a card."""
    text = answer.get("text")
    if text is None:
        return answer
    rows = json.loads(text)
    for row in rows:
        if row.get("devicepairscore") == {}:
            del row["devicepairscore"]
    return {"text": rows}


def _without_last_empty(answer: Json) -> Json:
    """Ours drops the empty entry that the final `;` yields (v2.10)."""
    containers = answer.get("containers")
    return {"containers": containers[:-1]} if containers and not containers[-1] else answer


def _compare(path: str, wanted: Any, given: Any) -> list[str]:
    if isinstance(wanted, dict) and isinstance(given, dict):
        found: list[str] = []
        for key in sorted((wanted.keys() | given.keys()) - INFORMATIVE):
            if key not in given or key not in wanted:
                found.append(f"{path}.{key}: wanted {wanted.get(key)!r}, got {given.get(key)!r}")
            else:
                found += _compare(f"{path}.{key}", wanted[key], given[key])
        return found
    if isinstance(wanted, list) and isinstance(given, list) and len(wanted) == len(given):
        return [
            line
            for place, (expected, answered) in enumerate(zip(wanted, given, strict=True))
            for line in _compare(f"{path}[{place}]", expected, answered)
        ]
    if _is_number(wanted) and _is_number(given):
        is_same = math.isclose(wanted, given, rel_tol=TOLERANCE, abs_tol=1e-9)
    else:
        is_same = wanted == given
    return [] if is_same else [f"{path}: wanted {wanted!r}, got {given!r}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_stricter(case: Json) -> bool:
    """True where a named error is as right as the recorded answer, by the input alone.

    The two kinds are in vectors/README.md: pod annotations whose entries are short or hold a
    memory or cores field that is no whole decimal number, and negative quantities.
    """
    given = case["in"]
    if case["op"] == "codec" and given["kind"] == "pod_decode":
        return any(
            _is_bad_entry(entry)
            for container in given["text"].split(";")
            for entry in container.split(":")
            if "," in entry
        )
    if case["op"] == "requests":
        quantities = [*given["limits"].values(), *given["requests"].values()]
        return any(str(quantity).strip().startswith("-") for quantity in quantities)
    return False


def _is_bad_entry(entry: str) -> bool:
    fields = entry.split(",")
    return len(fields) < 4 or not all(
        field.isascii() and field.removeprefix("-").isdigit() for field in fields[2:4]
    )
