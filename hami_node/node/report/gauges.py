"""Keep the metrics of cards and holders up to date, shortly after every change."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from hami_node.logs import kv
from hami_node.metrics.cards import LimiterReading
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.model import Uuid
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.report.drift import Drift
from hami_node.node.report.limiters import Limiters
from hami_node.node.report.readings import (
    NodeCards,
    allocation_readings,
    card_reading,
    readings_of_others,
)
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import Backend
from hami_node.record.ledger import Ledger, Source

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
SETTLE_S: Final = 0.5


class Gauges:
    """Copies the state into `DaemonMetrics`. `run` is the thread's body."""

    def __init__(
        self,
        *,
        metrics: DaemonMetrics,
        vendor_cards: Sequence[VendorCards],
        live: LiveUse,
        ledger: Ledger,
        node: NodeCards,
        limiters: Limiters,
        foreign_pods: Callable[[], int] = lambda: 0,
        audit: Callable[[], int] = lambda: 0,
    ) -> None:
        """Wire the sources.

        `foreign_pods`: how many pods hold cards from another plugin; `audit`: checks what other
        plugins serve by right, and returns how many pods hold other cards than were reserved.
        """
        self._foreign_pods, self._clock = foreign_pods, metrics.clock
        self._metrics = metrics
        self._vendor_cards = tuple(vendor_cards)
        self._live, self._node = live, node
        self._ledger, self._drift = ledger, Drift(ledger, node.served)
        self._audit, self._limiters = audit, limiters
        self._wake = threading.Event()
        self._errors: dict[tuple[Uuid, int], int] = {}
        backends = [owner.backend for owner in self._vendor_cards]
        metrics.set_simulated(any(backend.is_simulated for backend in backends))
        for name in {backend.name for backend in backends}:
            alike = [backend for backend in backends if backend.name == name]
            metrics.watch_pass_age(name, partial(_longest_age_s, alike))

    def wake(self) -> None:
        """Something changed."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Copy after changes and periodically until stopped."""
        while not stop.is_set():
            self.copy(self._audit())
            if self._clock.wait(self._wake, INTERVAL_S):
                self._clock.wait(stop, SETTLE_S)
                self._wake.clear()

    def copy(self, drifted: int = 0) -> None:
        """One copy of everything; `drifted`: see `audit`."""
        cards = tuple(card for owner in self._vendor_cards for card in owner.cards())
        pods, usage, registered = (
            self._live.pods(),
            self._live.cards(cards),
            self._node.registered(),
        )
        own = tuple(card_reading(usage[card.uuid], registered) for card in cards)
        others, held = readings_of_others(self._node.of_others(), pods, self._node.others)
        self._metrics.set_cards((*own, *others))
        holders, by_uuid = self._live.holders(), {card.uuid: card for card in cards}
        for pod in pods:
            if pod.uid in holders:
                held += tuple(allocation_readings(pod, holders[pod.uid], by_uuid))
        self._metrics.set_allocations(held)
        recorded = self._ledger.entries()
        limited = {
            LimiterReading(entry.namespace, entry.pod, entry.container, entry.limiter)
            for entry in recorded
            if entry.limiter
        }
        self._metrics.set_container_limiters(sorted(limited))
        sources = Counter(entry.source.value for entry in recorded)
        entries = {source.value: sources[source.value] for source in Source}
        self._metrics.set_record(entries, self._drift.look(pods) + drifted)
        self._limiters.look()
        self._metrics.set_foreign_pods(self._foreign_pods())
        for owner in self._vendor_cards:
            for resource in owner.resources:
                is_registered = resource.lifecycle.registered.is_set()
                self._metrics.set_registered(resource.name, is_registered)
            self._count_errors(owner)
        log.debug("gauges_copied", extra=kv(cards=len(cards) + len(others), holders=len(holders)))

    def _count_errors(self, owner: VendorCards) -> None:
        """Pass the driver's errors, counted since its session began, to the metrics."""
        for (uuid, code), count in owner.backend.error_counts().items():
            is_ignored = code in owner.harmless_errors
            for _ in range(count - self._errors.get((uuid, code), 0)):
                self._metrics.count_xid(uuid, code, is_ignored=is_ignored)
            self._errors[uuid, code] = count


def _longest_age_s(backends: Sequence[Backend]) -> float:
    return max(backend.last_pass_age_s() for backend in backends)
