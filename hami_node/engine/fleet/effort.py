"""How much work one answer may cost: counted in steps, so that it is the same on every machine.

A step is about a microsecond of one core.
"""

from __future__ import annotations

from typing import Final

from hami_node.engine.fleet.node_state import NodeState
from hami_node.engine.place import Plan

LOOK_STEPS: Final = 6
"""To compare a node with a request in numbers."""
CARD_STEPS: Final = 6
"""To try one ask on one card exactly."""


class Effort:
    """What is left of the steps of one answer, over all of its slices.

    `tried` counts the nodes that were tried exactly.
    """

    __slots__ = ("_left", "tried")

    def __init__(self, steps: float = float("inf")) -> None:
        """Start with so many steps; without an end if none are given."""
        self._left = steps
        self.tried = 0

    @property
    def is_spent(self) -> bool:
        """No step is left."""
        return self._left <= 0

    def take(self, steps: int) -> None:
        """Count work that was done."""
        self._left -= steps

    def took(self, node: NodeState, ready: Plan) -> None:
        """Count that a request was tried exactly on a node."""
        asks = sum(len(container.asks) for container in ready.request.containers)
        self.tried += 1
        self._left -= CARD_STEPS * len(node.kinds) * asks
