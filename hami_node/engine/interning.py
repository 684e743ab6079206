"""Small numbers for equal values, so that sameness costs one comparison."""

from __future__ import annotations

from collections.abc import Hashable


class Interner:
    """Gives equal values the same small number for as long as somebody holds it."""

    def __init__(self) -> None:
        """Start empty."""
        self._numbers: dict[Hashable, int] = {}
        self._holders: list[int] = []
        self._values: list[Hashable] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        """How many values are held."""
        return len(self._numbers)

    def acquire(self, value: Hashable) -> int:
        """The value's number; it is held until `release`."""
        number = self._numbers.get(value)
        if number is not None:
            self._holders[number] += 1
            return number
        if self._free:
            number = self._free.pop()
            self._holders[number], self._values[number] = 1, value
        else:
            number = len(self._holders)
            self._holders.append(1)
            self._values.append(value)
        self._numbers[value] = number
        return number

    def release(self, number: int) -> bool:
        """Give a number back once; True when nobody holds it any more."""
        self._holders[number] -= 1
        if self._holders[number]:
            return False
        del self._numbers[self._values[number]]
        self._values[number] = None
        self._free.append(number)
        return True
