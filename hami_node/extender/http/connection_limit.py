"""The limit of connections, from accept on, and which makes way for a new one.

It is the longest idle one of the address with the most: so nobody who connects often shuts others
out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Final

from hami_node.logs import kv

log: Final = logging.getLogger(__name__)


class Stage(Enum):
    """What a connection is doing."""

    HANDSHAKE = auto()
    WAITING = auto()
    """For a request, or for the rest of one."""
    WORKING = auto()
    """A request is being worked on."""


class AcceptedConnection:
    """One connection. For one event loop.

    Attributes:
        since_s: when it was accepted, or was last answered; time of the event loop.
        stage: what it is doing.
        address: where it comes from.
        is_known: it has shown the certificate of an accepted caller.
        leave: ends it at once.
    """

    __slots__ = ("address", "is_known", "leave", "since_s", "stage")

    def __init__(
        self, since_s: float, stage: Stage, leave: Callable[[], None], address: str = ""
    ) -> None:
        """A connection that was just accepted."""
        self.since_s, self.stage, self.leave, self.address = since_s, stage, leave, address
        self.is_known = False


class ConnectionLimit:
    """Counts connections. For one event loop."""

    def __init__(self, most: int) -> None:
        """Admit so many at a time; half of them may be in their handshake."""
        self._most, self._most_unproven = most, max(1, most // 2)
        self._admitted: set[AcceptedConnection] = set()
        self._is_full = False

    def admit(self, accepted: AcceptedConnection) -> bool:
        """Admit it, in the place of another if needed; False where none makes way for it."""
        admitted = self._admitted
        unproven = [other for other in admitted if other.stage is Stage.HANDSHAKE]
        if len(unproven) >= self._most_unproven:
            has_place = self._make_way(unproven, accepted)
        elif len(admitted) >= self._most:
            has_place = self._make_way(admitted, accepted)
        else:
            self._note(is_full=len(admitted) > self._most // 2 and self._is_full)
            has_place = True
        if has_place:
            admitted.add(accepted)
        return has_place

    def release(self, accepted: AcceptedConnection) -> None:
        """It has gone."""
        self._admitted.discard(accepted)

    def _make_way(
        self, crowd: Collection[AcceptedConnection], accepted: AcceptedConnection
    ) -> bool:
        """End the connection that has the least claim to its place; False where none has less.

        Callers that are known stay before strangers. Then those stay whose address has fewer
        connections; of one address, who is at work, and who came or was answered last. Who is at
        work goes only for an address that has fewer.
        """
        self._note(is_full=True)
        counts = Counter(other.address for other in crowd)
        own = counts[accepted.address]

        def has_less(other: AcceptedConnection) -> bool:
            count = counts[other.address]
            is_at_work = other.stage is Stage.WORKING
            return not other.is_known and count > own + 1 if is_at_work else count >= own

        def claim(other: AcceptedConnection) -> tuple[bool, int, bool, float]:
            is_at_work = other.stage is Stage.WORKING
            return other.is_known, -counts[other.address], is_at_work, other.since_s

        least = min(filter(has_less, crowd), key=claim, default=None)
        if least is None:
            return False
        self._admitted.discard(least)
        least.leave()
        return True

    def _note(self, *, is_full: bool) -> None:
        """Log the first of many."""
        if is_full and not self._is_full:
            hint = "the longest idle ones are closed; see who connects so often"
            log.warning("extender_connections_full", extra=kv(limit=self._most, hint=hint))
        self._is_full = is_full
