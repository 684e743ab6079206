"""What pods are called whose uid is on record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from hami_node.model import Pod
from hami_node.record.ledger import Ledger

PodName = tuple[str, str]
"""Namespace and name."""
NOBODY: Final[PodName] = ("", "")


class PodNames:
    """By the ledger, and by the pods that the API server shows."""

    def __init__(self, ledger: Ledger, pods: Callable[[], Iterable[Pod]]) -> None:
        """`pods`: those of this node."""
        self._ledger, self._pods = ledger, pods

    def by_uid(self) -> Mapping[str, PodName]:
        """Every pod that is known."""
        recorded = {each.pod_uid: (each.namespace, each.pod) for each in self._ledger.entries()}
        return recorded | {pod.uid: (pod.namespace, pod.name) for pod in self._pods()}
