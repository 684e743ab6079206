"""Whether a node may be chosen, where thousands may be and only one or two are asked about."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

FEW_LOOKS: Final = 2
"""So often a list is looked through, which takes less time than to make a set of it."""


def among(names: Collection[str]) -> Callable[[str], bool]:
    """Tells whether a name is one of these; whatever is not a list is asked itself."""
    return _Listed(names).has if isinstance(names, list | tuple) else names.__contains__


class _Listed:
    """Names in a list; a set of them is made once they were asked for more than a few times."""

    __slots__ = ("_looks", "_names")

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._looks = names, 0

    def has(self, name: str) -> bool:
        self._looks += 1
        if self._looks == FEW_LOOKS + 1:
            self._names = frozenset(self._names)
        return name in self._names
