"""Notices cards that would be other resources now than those that this process has registered.

Resources are made once, at the start: what follows each of them (sockets, allocators, watchers) is
built then. A new one takes a new process, which is started at once, and costs no running pod
anything.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from hami_node.model import Device
from hami_node.ports import Clock
from hami_node.vendors.spec import ServedCards

SETTLE_S: Final = 10.0
"""Whoever divides cards does so step by step: one restart has to do for all of it."""

Physical = tuple[Device, ...]


class Outgrown:
    """Compares with what was found first. Used by one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        """Nothing is found yet."""
        self._clock = clock
        self._own: object = None
        self.first: Physical = ()
        """The cards by which the resources were chosen."""
        self._looked: Physical = ()
        self._added: frozenset[str] = frozenset()
        self._since_s = 0.0

    def begin(self, own: object, physical: Physical) -> None:
        """Take the vendor's settings, as they were given, and the cards that were found first."""
        self._own, self.first, self._looked = own, physical, physical

    def why(self, served: ServedCards[object], names: Collection[str], physical: Physical) -> str:
        """Why another process is needed; "" where none is, or the cards may still change.

        Args:
            served: the vendor's cards.
            names: the resources of this process.
            physical: the cards as they were found last.
        """
        if physical is not self._looked:
            self._looked = physical
            added = self._missing(served, names, physical)
            if added != self._added:
                self._added, self._since_s = added, self._clock.monotonic()
        if not self._added or self._clock.monotonic() - self._since_s < SETTLE_S:
            return ""
        shown = ", ".join(sorted(self._added))
        return f"the cards are to be offered as {shown} now, which takes another process"

    def _missing(
        self, served: ServedCards[object], names: Collection[str], physical: Physical
    ) -> frozenset[str]:
        """Resources that this process does not have, or has under other rules."""
        settled = served.settled(self._own, physical)
        wanted = frozenset(each.name for each in served.resources(settled, physical))
        if settled != served.settled(self._own, self.first):
            return wanted
        return wanted.difference(names)
