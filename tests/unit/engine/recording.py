"""Values that note which of their fields are read."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

T = TypeVar("T")
Note = Callable[[type, str], None]


class _Recording:
    """Stands for a value; its properties and methods read through it too."""

    def __init__(self, value: Any, note: Note, inside: dict[str, Any]) -> None:
        self.__dict__ |= {"_value": value, "_note": note, "_inside": inside}

    def __getattr__(self, name: str) -> Any:
        kind = type(self._value)
        found = getattr(kind, name, None)
        if isinstance(found, property) and found.fget is not None:
            return found.fget(self)
        if isinstance(found, FunctionType):
            return MethodType(found, self)
        self._note(kind, name)
        return self._inside.get(name, getattr(self._value, name))


def recording(value: T, note: Note, **inside: Any) -> T:
    """The value, noting each field that is read; `inside` replaces fields by their recorders."""
    return cast("T", _Recording(value, note, inside))
