"""What every decoder promises: a value or a WireError, whatever comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hami_node.errors import WireError

V = TypeVar("V")


def is_total(decode: Callable[[V], object], value: V) -> bool:
    """True when the decoder gives a value or a WireError that stays short; others get through."""
    try:
        return decode(value) is not None
    except WireError as error:
        return len(error.excerpt) <= 80
