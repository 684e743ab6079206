"""What a vendor publishes on the node object: desired annotations, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hami_node.engine.usage import DeviceUsage
from hami_node.model import Device, Node, PairScores, Uuid
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
        """What is written once per interval even if nothing changed: mostly nothing."""
        del node, now
        return {}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """What is written when the daemon ends: mostly nothing."""
        del node
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """What can't be given of a card, though its own plugin offers it.

    Attributes:
        cores: the mask of the cores, where they are numbered.
        reason: why, for people.
    """

    cores: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSources:
    """Where a publication reads this node's cards.

    Attributes:
        cards: the cards as offered.
        pair_scores: links between them.
        backend_error: why no card can be queried; "" while they can.
        on_unanswered: called with whether a handshake has waited too long.
        closed: what the vendor's auditor has found that can't be given.
        used: what is taken of each card, for people; slots are what nobody gets any more.
        records: opens the vendor's records on this node; None: nothing outlives the daemon.
    """

    cards: Callable[[], tuple[Device, ...]] = tuple
    pair_scores: Callable[[], PairScores] = dict
    backend_error: Callable[[], str] = str
    used: Callable[[], Mapping[Uuid, DeviceUsage]] = dict
    on_unanswered: Callable[[bool], None] = lambda _: None
    closed: Callable[[], Mapping[Uuid, Closed]] = dict
    records: OpenRecord | None = None
