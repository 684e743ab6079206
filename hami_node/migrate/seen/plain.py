"""Reading plain values that others wrote and that may have any shape.

What is missing or of another type is empty, and never an error.
"""

from __future__ import annotations

from collections.abc import Mapping

Json = Mapping[str, object]


def inside(value: object, *path: str) -> object:
    """The value at a path of keys; None where there is none."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def text(value: object, *path: str) -> str:
    """The text at a path; "" where there is none."""
    found = inside(value, *path)
    return found if isinstance(found, str) else ""


def items(value: object, *path: str) -> tuple[Json, ...]:
    """The objects in a list at a path."""
    found = inside(value, *path)
    if not isinstance(found, list):
        return ()
    return tuple(item for item in found if isinstance(item, Mapping))


def number(value: object, *path: str) -> int:
    """The whole number at a path; 0 where there is none."""
    found = inside(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
