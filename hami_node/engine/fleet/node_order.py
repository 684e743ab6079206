"""Nodes in the order in which they are tried, on short shelves that can be skipped as a whole."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hami_node.engine.fleet.needs import Needs
from hami_node.engine.fleet.summaries import Bounds, Key, NodeSummary

SHELF_SIZE = 64
"""Nodes per shelf: skipping a shelf costs as much as looking at one node of it."""

LOT_SIZE = 16
"""Nodes that are looked at between two looks at the time."""

IsAllowed = Callable[[str], bool]
"""Whether a node may be chosen."""


@dataclass(slots=True)
class _Shelf:
    """Neighbouring nodes; `bounds` is None after a change until somebody needs it."""

    keys: list[Key] = field(default_factory=list)
    summaries: list[NodeSummary] = field(default_factory=list)
    bounds: Bounds | None = None

    def join(self) -> None:
        if self.bounds is None:
            self.bounds = Bounds.joined([summary.bounds for summary in self.summaries])


class NodeOrder:
    """A sorted list of nodes that finds the first that may fit without looking at all of them."""

    def __init__(self, *, is_fullest_first: bool) -> None:
        """`is_fullest_first` is binpack; else the emptiest node comes first. Ties: by name."""
        self._sign = -1.0 if is_fullest_first else 1.0
        self._shelves: list[_Shelf] = []
        self._lasts: list[Key] = []

    def key(self, name: str, score: float) -> Key:
        """The key by which a node is sorted."""
        return (self._sign * score, name)

    def insert(self, name: str, summary: NodeSummary) -> None:
        """Add a node that is not there."""
        key = self.key(name, summary.score)
        if not self._shelves:
            self._shelves.append(_Shelf())
            self._lasts.append(key)
        index = min(bisect_left(self._lasts, key), len(self._shelves) - 1)
        shelf = self._shelves[index]
        position = bisect_left(shelf.keys, key)
        shelf.keys.insert(position, key)
        shelf.summaries.insert(position, summary)
        shelf.bounds = None
        self._lasts[index] = shelf.keys[-1]
        if len(shelf.keys) > 2 * SHELF_SIZE:
            self._split(index)

    def remove(self, name: str, summary: NodeSummary) -> None:
        """Remove a node that was inserted with this summary."""
        key = self.key(name, summary.score)
        index = bisect_left(self._lasts, key)
        shelf = self._shelves[index]
        position = bisect_left(shelf.keys, key)
        del shelf.keys[position]
        del shelf.summaries[position]
        shelf.bounds = None
        if shelf.keys:
            self._lasts[index] = shelf.keys[-1]
        else:
            del self._shelves[index]
            del self._lasts[index]

    def walk(
        self,
        needs: Needs,
        refused: set[int] | None = None,
        after: Key | None = None,
        is_allowed: IsAllowed | None = None,
    ) -> Iterator[tuple[Key, Iterator[str]]]:
        """Names of the nodes that may fit, in the order in which they are tried, lot by lot.

        Each lot comes with its last key. Nodes up to the key `after` come last. Of those that are
        not allowed only the bounds are compared.

        Nodes of a group in `refused` are passed over; the groups of all others that can't fit are
        added to it. A shelf that has changed is joined only once it was looked through in vain:
        where the pods of the hour go, it would be joined for each of them. The groups of a shelf
        that is passed over as a whole are added once no node was taken.
        """
        refused = set() if refused is None else refused
        passed: list[_Shelf] = []
        for shelf, part in self._from(after):
            if shelf.bounds is not None and not needs.may_fit(shelf.bounds):
                passed.append(shelf)
                continue
            keys, summaries = shelf.keys[part], shelf.summaries[part]
            yield from in_lots(keys, summaries, needs, refused, is_allowed)
            shelf.join()
        for shelf in passed:
            refused.update([summary.group for summary in shelf.summaries])

    def _from(self, after: Key | None) -> list[tuple[_Shelf, slice]]:
        """Each shelf as a whole; that with the key `after` in two parts, the first of them last."""
        every = [(shelf, slice(None)) for shelf in self._shelves]
        if after is None or not every:
            return every
        at = min(bisect_left(self._lasts, after), len(every) - 1)
        shelf = self._shelves[at]
        position = bisect_right(shelf.keys, after)
        head, tail = (shelf, slice(position)), (shelf, slice(position, None))
        return [tail, *every[at + 1 :], *every[:at], head]

    def _split(self, index: int) -> None:
        shelf = self._shelves[index]
        upper = _Shelf(keys=shelf.keys[SHELF_SIZE:], summaries=shelf.summaries[SHELF_SIZE:])
        del shelf.keys[SHELF_SIZE:]
        del shelf.summaries[SHELF_SIZE:]
        self._shelves.insert(index + 1, upper)
        self._lasts[index : index + 1] = [shelf.keys[-1], upper.keys[-1]]


def in_lots(
    keys: Sequence[Key],
    summaries: Sequence[NodeSummary],
    needs: Needs,
    refused: set[int],
    is_allowed: IsAllowed | None = None,
) -> Iterator[tuple[Key, Iterator[str]]]:
    """These nodes in lots, as `NodeOrder.walk` yields them."""
    for first in range(0, len(keys), LOT_SIZE):
        lot = slice(first, first + LOT_SIZE)
        yield keys[lot][-1], _fitting(keys[lot], summaries[lot], needs, refused, is_allowed)


def _fitting(
    keys: Sequence[Key],
    summaries: Sequence[NodeSummary],
    needs: Needs,
    refused: set[int],
    is_allowed: IsAllowed | None,
) -> Iterator[str]:
    for (_, name), summary in zip(keys, summaries, strict=True):
        if summary.group in refused:
            continue
        if needs.may_fit(summary.bounds):
            if is_allowed is not None and not is_allowed(name):
                continue
            if needs.has_rooms(summary):
                yield name
                continue
        refused.add(summary.group)
