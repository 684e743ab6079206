"""What earlier attempts have found out: a pod that fits nowhere is tried again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from hami_node.engine.fleet.explain import Explainer
from hami_node.engine.fleet.node_state import Catalogue
from hami_node.engine.place import Plan

MOST_REQUESTS: Final = 256
"""Requests that are remembered, over all namespaces."""

MOST_ANSWERS: Final = 1_000_000
"""Answers about groups of nodes and states of cards that are remembered, over all requests. Each
takes about 80 bytes."""


class Memory:
    """An explainer for each of the latest requests. Not thread-safe: its owner holds a lock."""

    def __init__(self, catalogue: Catalogue, nodes: Collection[str]) -> None:
        """Start empty, with the groups and states of `catalogue`, and the names of all nodes."""
        self._catalogue, self._nodes = catalogue, nodes
        self._explainers: dict[Plan, Explainer] = {}
        self._latest: Explainer | None = None
        self._size = 0
        self._lost_kinds = 0

    def of(self, ready: Plan, namespace: str) -> Explainer:
        """What is known of this request, which a pod of this namespace makes; it is the latest."""
        if self._lost_kinds != self._catalogue.lost_kinds:
            # a number of a kind may mean another kind now
            self._explainers.clear()
            self._latest = None
            self._size, self._lost_kinds = 0, self._catalogue.lost_kinds
        explainer = self._explainers.get(ready)
        if explainer is None:
            explainer = self._explainers[ready] = Explainer(ready, self._catalogue, namespace)
        elif explainer is not self._latest:
            self._explainers[ready] = self._explainers.pop(ready)
        self._latest = explainer
        return explainer

    def shrink(self, latest: Explainer) -> None:
        """Forget requests, where too much is remembered since `latest` was asked for.

        The namespace that has most loses its oldest, so that none pushes out what others have.
        """
        latest.tidy(self._nodes)
        size = latest.size
        self._size += size - latest.counted_size
        latest.counted_size = size
        while len(self._explainers) > 1 and (
            len(self._explainers) > MOST_REQUESTS or self._size > MOST_ANSWERS
        ):
            self._size -= self._explainers.pop(self._least_worth()).counted_size

    def _least_worth(self) -> Plan:
        """The oldest request of the namespace that has most, but not the latest of all."""
        is_full = self._size > MOST_ANSWERS
        former = list(self._explainers.items())[:-1]
        taken: Counter[str] = Counter()
        for _, explainer in former:
            taken[explainer.namespace] += explainer.counted_size if is_full else 1
        latest = self._latest
        if latest is not None and taken[latest.namespace]:
            taken[latest.namespace] += latest.counted_size if is_full else 1
        most = max(taken, key=lambda namespace: taken[namespace])
        return next(ready for ready, explainer in former if explainer.namespace == most)
