"""Whether kubelet is told the NUMA nodes of the cards.

kubelet aligns a container's CPUs with the NUMA nodes of free device IDs, before it asks anybody
which card is meant: the card is the reservation's, the ID only a token. Under the policies
`restricted` and `single-numa-node` a NUMA node without enough free IDs is ruled out, so a pod whose
reserved card is there would be rejected, for good. Therefore the nodes are shown only while that
can't happen: every card's node is known, and every node with cards has more free IDs than any two
containers can ask for.

A container that was admitted without them may have its CPUs elsewhere, and kubelet, when it
restarts, would end it for that. So they are not shown again before such containers have ended.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from hami_node.logs import kv
from hami_node.model import Device, uuid_of
from hami_node.ports import Clock

if TYPE_CHECKING:  # loaded after the registration
    from hami_node.record.ledger import Entry

log = logging.getLogger(__name__)

CONTAINERS_AHEAD: Final = 2
"""kubelet may admit one container more before it has read the list without NUMA nodes."""
SURE_S: Final = 15.0
"""Longer than kubelet takes from its hints to the end of Allocate."""


def why_hidden(
    cards: Sequence[Device], resource: str, entries: Iterable[Entry], closed: Collection[str] = ()
) -> str:
    """Why kubelet must not be told the NUMA nodes now; "" when it may.

    Args:
        cards: all that are offered.
        resource: the name under which they are.
        entries: the record of grants.
        closed: device IDs that kubelet must not hand out although their cards are healthy.
    """
    own = [entry for entry in entries if entry.resource == resource]
    unknown = [card.index for card in cards if card.numa is None]
    if unknown:
        return f"the NUMA node of card {unknown[0]} is unknown"
    for entry in own:
        if not entry.is_aligned:
            return f"{entry.name} was admitted without NUMA nodes and has not ended"
    held = {name for entry in own for name in entry.device_ids}
    taken = Counter(map(uuid_of, held.union(closed)))
    free: Counter[int] = Counter()
    for card in cards:
        if card.healthy and card.numa is not None:
            free[card.numa] += max(card.slots - taken[card.uuid], 0)
    least = CONTAINERS_AHEAD * len(cards)
    short = sorted(numa for numa, count in free.items() if count < least)
    if short:
        return (
            f"NUMA node {short[0]} has {free[short[0]]} free device IDs, and {least} have to be "
            "free so that no container is rejected"
        )
    return ""


class NumaHints:
    """Whether they are shown now, for one resource. Thread-safe."""

    def __init__(self, clock: Clock, on_change: Callable[[], None]) -> None:
        """Hidden until the first update. `on_change`: kubelet needs a new list."""
        self._clock, self._on_change = clock, on_change
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._why = ""

    @property
    def are_shown(self) -> bool:
        """Whether a list for kubelet has them now."""
        return self._since_s is not None

    def are_sure(self) -> bool:
        """Whether kubelet knew them when it admitted the container that is served now."""
        since_s = self._since_s
        return since_s is not None and self._clock.monotonic() - since_s >= SURE_S

    def hide(self) -> None:
        """They are switched off; whoever is admitted now does not know them."""
        with self._lock:
            self._since_s = None

    def update(
        self,
        cards: Sequence[Device],
        resource: str,
        entries: Iterable[Entry],
        closed: Collection[str] = (),
    ) -> None:
        """Decide again, after a change of cards or record; the arguments are `why_hidden`'s."""
        with self._lock:
            why = why_hidden(cards, resource, entries, closed)
            was_shown = self.are_shown
            if why:
                self._since_s = None
            elif not was_shown:
                self._since_s = self._clock.monotonic()
            has_news, self._why = why != self._why, why
            is_changed = was_shown != self.are_shown
        if has_news and why:
            log.warning("numa_nodes_hidden", extra=kv(resource=resource, why=why))
        if is_changed:
            if not why:
                log.info("numa_nodes_shown", extra=kv(resource=resource))
            self._on_change()
