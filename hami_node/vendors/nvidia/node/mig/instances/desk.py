"""What everybody who works on this node's MIG cards shares."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from hami_node.model import Uuid
from hami_node.vendors.nvidia.node.mig.instances.counted import CountedCalls
from hami_node.vendors.nvidia.node.mig.instances.holders import Holders, Notes
from hami_node.vendors.nvidia.node.mig.instances.record import InstanceRecord
from hami_node.vendors.nvidia.node.mig.instances.steps import Steps
from hami_node.vendors.nvidia.settings import NvidiaSettings


class CardLocks:
    """One worker on a card at a time, each card for itself."""

    def __init__(self) -> None:
        """Nobody works."""
        self._lock = threading.Lock()
        self._cards: dict[Uuid, threading.Lock] = {}
        self._busy: dict[Uuid, str] = {}
        self._count = 0

    @contextmanager
    def on(self, card: Uuid, what: str, wait_s: float) -> Iterator[bool]:
        """Work on a card, for people `what`; False where others have not ended in time."""
        with self._lock:
            mine = self._cards.setdefault(card, threading.Lock())
            self._count += 1
        try:
            if not mine.acquire(timeout=wait_s):
                yield False
                return
            try:
                with self._lock:
                    self._busy[card] = what
                yield True
            finally:
                with self._lock:
                    self._busy.pop(card, None)
                mine.release()
        finally:
            with self._lock:
                self._count -= 1

    def count(self) -> int:
        """How many work on cards, or wait to. Never waits."""
        with self._lock:
            return self._count

    def busy(self) -> Mapping[Uuid, str]:
        """Cards that are worked on, with what is done. Never waits."""
        with self._lock:
            return dict(self._busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What makers and keepers of instances share.

    Attributes:
        settings: returns those in force.
        hands_off: why nothing may be made or destroyed now, for people; "" where it may.
    """

    driver: CountedCalls
    record: InstanceRecord
    steps: Steps
    holders: Holders
    notes: Notes
    locks: CardLocks
    settings: Callable[[], NvidiaSettings]
    hands_off: Callable[[], str]
