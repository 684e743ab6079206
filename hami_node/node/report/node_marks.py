"""What this daemon publishes on the node object, whatever the cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hami_node.model import Node, Uuid
from hami_node.vendors.on_node.publication import Publication
from hami_node.wire import names
from hami_node.wire.closed import encode_closed


class NodeMarks(Publication):
    """Whether a scheduler needs the node lock, and what people should know of the cards."""

    def __init__(
        self,
        *,
        is_readable: Callable[[], bool],
        limiters: Callable[[], str] = str,
        simulated: bool = False,
        closed: Callable[[], Mapping[Uuid, str]] = dict,
        hand_over: Callable[[], str] = str,
    ) -> None:
        """Wire the sources.

        `is_readable`: Allocate finds its pod through kubelet; `simulated` marks a node whose cards
        are not real; `limiters`: the version that new containers get; `closed`: why cards are
        unhealthy or closed; `hand_over`: how containers get their cards.
        """
        self._is_readable, self._limiters = is_readable, limiters
        self._simulated, self._closed, self._hand_over = simulated, closed, hand_over

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The identity mark while the pod-resources socket answers; the other marks."""
        del node, now
        identity = names.IDENTITY_POD_RESOURCES if self._is_readable() else None
        return {
            names.NODE_IDENTITY: identity,
            names.NODE_LIMITER: self._limiters() or None,
            names.NODE_SIMULATED: "true" if self._simulated else None,
            names.NODE_HAND_OVER: self._hand_over() or None,
            names.NODE_CLOSED_CARDS: encode_closed(self._closed()),
        }

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """Allocate is no longer answered, nor is it known who holds what: these marks go."""
        del node
        gone = (names.NODE_IDENTITY, names.NODE_CLOSED_CARDS, names.NODE_HAND_OVER)
        return dict.fromkeys(gone)
