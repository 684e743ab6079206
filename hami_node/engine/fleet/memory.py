"""What earlier attempts have found out: a pod that fits nowhere is tried again and again."""

from __future__ import annotations

from typing import Final

from hami_node.engine.fleet.explain import Explainer
from hami_node.engine.fleet.node_state import Catalogue
from hami_node.engine.place import Plan

MOST_REQUESTS: Final = 256
"""Requests that are remembered, whoever makes them."""

MOST_ANSWERS: Final = 1_000_000
"""Answers about groups of nodes and states of cards that are remembered, over all requests. Each
takes about 80 bytes."""


class Memory:
    """An explainer for each of the latest requests. Not thread-safe: its owner holds a lock."""

    def __init__(self, catalogue: Catalogue) -> None:
        """Start empty, with the groups and states of `catalogue`."""
        self._catalogue = catalogue
        self._explainers: dict[Plan, Explainer] = {}
        self._latest: Explainer | None = None
        self._size = 0
        self._lost_kinds = 0

    def of(self, ready: Plan) -> Explainer:
        """What is known of this request; it becomes the latest."""
        if self._lost_kinds != self._catalogue.lost_kinds:
            # a number of a kind may mean another kind now
            self._explainers.clear()
            self._latest = None
            self._size, self._lost_kinds = 0, self._catalogue.lost_kinds
        explainer = self._explainers.get(ready)
        if explainer is None:
            explainer = self._explainers[ready] = Explainer(ready, self._catalogue)
        elif explainer is not self._latest:
            self._explainers[ready] = self._explainers.pop(ready)
        self._latest = explainer
        return explainer

    def shrink(self, latest: Explainer) -> None:
        """Forget the oldest requests, where too much is remembered since `latest` was asked for."""
        latest.tidy()
        size = latest.size
        self._size += size - latest.counted_size
        latest.counted_size = size
        while len(self._explainers) > 1 and (
            len(self._explainers) > MOST_REQUESTS or self._size > MOST_ANSWERS
        ):
            oldest = self._explainers.pop(next(iter(self._explainers)))
            self._size -= oldest.counted_size
