"""What a vendor publishes on the node object: desired annotations, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hami_node.model import Device, Node, PairScores
from hami_node.ports import OpenRecord


class Publication(Protocol):
    """The annotations of the node object that one vendor keeps up to date."""

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The annotations as they should be, None for removal; others stay as they are.

        Args:
            node: the node as it is.
            now: Unix seconds.
        """

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """What is written once per interval even if nothing changed."""

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """What is written when the daemon ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSources:
    """Where a publication reads this node's cards.

    Attributes:
        cards: the cards as offered.
        pair_scores: links between them.
        backend_error: why no card can be queried; "" while they can.
        on_unanswered: called with whether a handshake has waited too long.
        records: opens the vendor's records on this node; None: nothing outlives the daemon.
    """

    cards: Callable[[], tuple[Device, ...]] = tuple
    pair_scores: Callable[[], PairScores] = dict
    backend_error: Callable[[], str] = str
    on_unanswered: Callable[[bool], None] = lambda _: None
    records: OpenRecord | None = None
