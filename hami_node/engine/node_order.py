"""Nodes in the order in which they are tried, on short shelves that can be passed over whole."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from hami_node.engine.outline import Bounds, Needs, Outline

SHELF_SIZE = 64
"""Nodes per shelf: passing over a shelf costs as much as looking at one node of it."""

Key = tuple[float, str]
"""A node's score (negative where the fullest comes first) and its name."""


@dataclass(slots=True)
class _Shelf:
    """Neighbouring nodes; `bounds` is worked out when it is first asked for after a change."""

    keys: list[Key] = field(default_factory=list)
    outlines: list[Outline] = field(default_factory=list)
    bounds: Bounds | None = None

    def joined(self) -> Bounds:
        if self.bounds is None:
            bounds = self.outlines[0].bounds
            for outline in self.outlines[1:]:
                bounds = bounds.joined(outline.bounds)
            self.bounds = bounds
        return self.bounds


class NodeOrder:
    """A sorted list of nodes that finds the first that may fit without looking at all of them."""

    def __init__(self, *, is_fullest_first: bool) -> None:
        """`is_fullest_first` is binpack; else the emptiest node comes first. Ties: by name."""
        self._sign = -1.0 if is_fullest_first else 1.0
        self._shelves: list[_Shelf] = []
        self._lasts: list[Key] = []

    def key(self, name: str, score: float) -> Key:
        """Where a node stands."""
        return (self._sign * score, name)

    def insert(self, name: str, outline: Outline) -> None:
        """Add a node that is not there."""
        key = self.key(name, outline.score)
        if not self._shelves:
            self._shelves.append(_Shelf())
            self._lasts.append(key)
        at = min(bisect_left(self._lasts, key), len(self._shelves) - 1)
        shelf = self._shelves[at]
        place = bisect_left(shelf.keys, key)
        shelf.keys.insert(place, key)
        shelf.outlines.insert(place, outline)
        shelf.bounds = None
        self._lasts[at] = shelf.keys[-1]
        if len(shelf.keys) > 2 * SHELF_SIZE:
            self._split(at)

    def remove(self, name: str, outline: Outline) -> None:
        """Take a node out that was inserted with this outline."""
        key = self.key(name, outline.score)
        at = bisect_left(self._lasts, key)
        shelf = self._shelves[at]
        place = bisect_left(shelf.keys, key)
        del shelf.keys[place]
        del shelf.outlines[place]
        shelf.bounds = None
        if shelf.keys:
            self._lasts[at] = shelf.keys[-1]
        else:
            del self._shelves[at]
            del self._lasts[at]

    def walk(self, needs: Needs) -> Iterator[str]:
        """Names of the nodes that may fit, first tried first."""
        for shelf in self._shelves:
            if not needs.may_fit(shelf.joined()):
                continue
            for (_, name), outline in zip(shelf.keys, shelf.outlines, strict=True):
                if needs.may_fit(outline.bounds) and needs.has_rooms(outline):
                    yield name

    def _split(self, at: int) -> None:
        shelf = self._shelves[at]
        upper = _Shelf(keys=shelf.keys[SHELF_SIZE:], outlines=shelf.outlines[SHELF_SIZE:])
        del shelf.keys[SHELF_SIZE:]
        del shelf.outlines[SHELF_SIZE:]
        self._shelves.insert(at + 1, upper)
        self._lasts[at : at + 1] = [shelf.keys[-1], upper.keys[-1]]
