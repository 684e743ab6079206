"""How much work one answer may cost: counted in steps, so that it is the same on every machine.

A step is about a microsecond of one core.
"""

from __future__ import annotations

from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.engine.fleet.node_state import NodeState
from hami_node.engine.place import Plan
from hami_node.engine.ranking import TOPOLOGY, has_word

LOOK_STEPS: Final = 6
"""To compare a node with a request in numbers."""
CARD_STEPS: Final = 8
"""To try one ask on one card exactly."""
LINKED_CARDS: Final = 32
"""To choose the best linked of n cards takes n^4 steps by this number: measured with random links,
128 of 8 cards, 2,048 of 16."""


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

    def try_on(self, node: NodeState, ready: Plan) -> bool:
        """Count that a request is tried exactly on a node; False where that would take too much."""
        steps = steps_to_try(len(node.kinds), ready)
        if steps > self._left:
            return False
        self.tried += 1
        self._left -= steps
        return True


def steps_to_try(cards: int, ready: Plan) -> int:
    """What it takes to find out why a request does not fit on so many cards."""
    asks = [ask for container in ready.request.containers for ask in container.asks]
    steps = CARD_STEPS * cards * len(asks)
    if not has_word(ready.policy, TOPOLOGY):
        return steps
    linked = sum(rules_of(ask.vendor).chooses_by_links and ask.count > 1 for ask in asks)
    # nothing is chosen for the ask that is refused
    return steps + min(linked, len(asks) - 1) * (cards**4 // LINKED_CARDS)
