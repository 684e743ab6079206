"""A backend whose next answers a test decides."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from hami_node.model import Device, PairScores, Uuid
from hami_node.ports import HostUse, PartError


class FakeBackend:
    """`ports.Backend`. `wait_for_event` returns at the end alone."""

    name = "fake"
    is_simulated = True

    def __init__(self, *cards: Device) -> None:
        self.cards = cards
        self.error: Exception | None = None
        self.cleared: list[Collection[Uuid] | None] = []
        self.pass_age_s = 0.0
        self.used: dict[Uuid, HostUse] = {}
        self.errors: dict[tuple[Uuid, int], int] = {}
        self.of_parts: tuple[PartError, ...] = ()
        self._event = threading.Event()

    def scan(self) -> tuple[Device, ...]:
        if self.error is not None:
            raise self.error
        return self.cards

    def wait_for_event(self, timeout_s: float) -> bool:
        return self._event.wait(timeout_s)

    def pair_scores(self) -> PairScores:
        return {}

    def host_use(self, with_processes: Collection[Uuid] = ()) -> Mapping[Uuid, HostUse]:
        del with_processes
        return self.used

    def error_counts(self) -> Mapping[tuple[Uuid, int], int]:
        return self.errors

    def part_errors(self) -> tuple[PartError, ...]:
        found, self.of_parts = self.of_parts, ()
        return found

    def clear_errors(self, uuids: Collection[Uuid] | None) -> tuple[Uuid, ...]:
        self.cleared.append(uuids)
        return tuple(card.uuid for card in self.cards if uuids is None or card.uuid in uuids)

    def last_pass_age_s(self) -> float:
        return self.pass_age_s

    def close(self) -> None:
        self._event.set()
