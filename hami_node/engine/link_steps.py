"""How long the best linked cards are looked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_STEPS: Final = 32_000
"""Cards that the searches for one pod on one node may weigh against each other: 10 to 20 ms. No
known machine takes a third of that, and neither do 16 cards with random links."""


@dataclass(slots=True)
class LinkSteps:
    """What is left for a pod on a node; `is_exact` until something was left out because of that."""

    left: int = MOST_STEPS
    is_exact: bool = True

    def take(self, cards: int) -> bool:
        """Weigh so many cards; False when no step is left."""
        if self.left <= 0:
            self.is_exact = False
            return False
        self.left -= cards
        return True
