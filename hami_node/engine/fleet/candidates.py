"""Whether a node may be chosen, where thousands may be and only one or two are asked about."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import itemgetter
from typing import Final

from hami_node.engine.fleet.needs import Needs
from hami_node.engine.fleet.node_order import NodeOrder, in_lots
from hami_node.engine.fleet.node_state import NodeState
from hami_node.engine.fleet.summaries import Key

FEW_LOOKS: Final = 2
"""So often a list is looked through, which takes less time than to make a set of it."""


def among(names: Collection[str]) -> Callable[[str], bool]:
    """Tells whether a name is one of these; whatever is not a list is asked itself."""
    return _Listed(names).has if isinstance(names, list | tuple) else names.__contains__


def few(
    states: Iterable[NodeState],
    order: NodeOrder,
    wanted: Needs,
    refused: set[int],
    after: Key | None,
) -> Iterator[tuple[Key, Iterator[str]]]:
    """As `order.walk`, of these nodes only."""
    ordered = sorted(
        (
            (order.key(state.name, state.summary.score), state.summary)
            for state in states
            if state.summary is not None and state.group not in refused
        ),
        key=itemgetter(0),
    )
    at = 0 if after is None else bisect_right(ordered, after, key=itemgetter(0))
    turned = (*ordered[at:], *ordered[:at])
    keys, summaries = [key for key, _ in turned], [summary for _, summary in turned]
    return in_lots(keys, summaries, wanted, refused)


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
