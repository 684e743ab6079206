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
        self._sizes: dict[Plan, int] = {}
        self._size = 0
        self._lost_kinds = 0

    def of(self, ready: Plan) -> Explainer:
        """What is known of this request; it becomes the latest."""
        if self._lost_kinds != self._catalogue.lost_kinds:
            # a number of a kind may mean another kind now
            self._explainers.clear()
            self._sizes.clear()
            self._size, self._lost_kinds = 0, self._catalogue.lost_kinds
        explainer = self._explainers.pop(ready, None) or Explainer(ready, self._catalogue)
        self._explainers[ready] = explainer
        return explainer

    def shrink(self, latest: Plan) -> None:
        """Forget the oldest requests, where too much is remembered since `latest` was asked for."""
        explainer = self._explainers[latest]
        explainer.tidy()
        self._size += explainer.size - self._sizes.get(latest, 0)
        self._sizes[latest] = explainer.size
        while len(self._explainers) > 1 and (
            len(self._explainers) > MOST_REQUESTS or self._size > MOST_ANSWERS
        ):
            oldest = next(iter(self._explainers))
            del self._explainers[oldest]
            self._size -= self._sizes.pop(oldest, 0)
