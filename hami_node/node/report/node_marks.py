"""What this daemon publishes about itself on the node object, whatever the cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hami_node.model import Node
from hami_node.wire import names


class NodeMarks:
    """Whether Allocate finds its pod through kubelet, so that a scheduler needs no node lock."""

    def __init__(self, *, is_readable: Callable[[], bool], simulated: bool = False) -> None:
        """Wire the check; `simulated` marks a node whose cards are not real."""
        self._is_readable = is_readable
        self._simulated = simulated

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The identity mark while the pod-resources socket answers; the simulation mark."""
        del node, now
        identity = names.IDENTITY_POD_RESOURCES if self._is_readable() else None
        return {
            names.NODE_IDENTITY: identity,
            names.NODE_SIMULATED: "true" if self._simulated else None,
        }

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """Nothing: the marks are compared, not renewed."""
        del node, now
        return {}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """Allocate is no longer answered: the identity mark is removed."""
        del node
        return {names.NODE_IDENTITY: None}
