"""Small numbers for equal values, so that equality costs one comparison."""

from __future__ import annotations

from collections.abc import Hashable


class Interner:
    """Gives equal values the same number for as long as it is held.

    Numbers start at 0. With `reuses` a number that is not held is given to the next new value, so
    that numbers stay small; else no number ever means a second value.
    """

    def __init__(self, *, reuses: bool) -> None:
        """Start empty."""
        self._reuses = reuses
        self._numbers: dict[Hashable, int] = {}
        self._held: dict[int, tuple[Hashable, int]] = {}
        self._free: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        """How many values are held."""
        return len(self._numbers)

    def acquire(self, value: Hashable) -> int:
        """The value's number; it is held until `release`."""
        number = self._numbers.get(value)
        if number is None:
            number = self._new_number()
            self._numbers[value] = number
            self._held[number] = (value, 1)
        else:
            self._held[number] = (value, self._held[number][1] + 1)
        return number

    def release(self, number: int) -> bool:
        """Release a number once; True when it is no longer held."""
        value, holders = self._held[number]
        if holders > 1:
            self._held[number] = (value, holders - 1)
            return False
        del self._numbers[value]
        del self._held[number]
        if self._reuses:
            self._free.append(number)
        return True

    def _new_number(self) -> int:
        if self._free:
            return self._free.pop()
        self._next += 1
        return self._next - 1
