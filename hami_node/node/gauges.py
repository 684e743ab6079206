"""Keep the metrics of cards and holders true, a moment after every change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from hami_node.engine.usage import PodGrants
from hami_node.logs import kv
from hami_node.metrics import AllocationReading, CardReading, Metrics
from hami_node.model import Device, Pod
from hami_node.node.inventory import Inventory
from hami_node.node.reservations import LiveUse

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
SETTLE_S: Final = 0.5


class Gauges:
    """Copies the state into `Metrics`. `run` is the thread's body."""

    def __init__(
        self,
        *,
        metrics: Metrics,
        inventory: Inventory,
        live: LiveUse,
        is_limiter_missing: Callable[[], bool],
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """Wire the sources. `also` is called on every pass, for other things to look at."""
        self._metrics = metrics
        self._inventory = inventory
        self._live = live
        self._is_limiter_missing = is_limiter_missing
        self._also = also
        self._wake = threading.Event()

    def wake(self) -> None:
        """Something changed."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Copy after changes and now and then until stopped."""
        while not stop.is_set():
            self.copy()
            self._also()
            if self._wake.wait(INTERVAL_S):
                stop.wait(SETTLE_S)
                self._wake.clear()

    def copy(self) -> None:
        """One copy of everything."""
        cards = self._inventory.cards
        usage = self._live.cards(cards)
        self._metrics.set_cards(
            tuple(
                CardReading(
                    card=card,
                    physical_memory_mib=card.physical_memory_mib,
                    slots_used=usage[card.uuid].slots_used,
                    memory_granted_mib=usage[card.uuid].memory_used_mib,
                    cores_granted=usage[card.uuid].cores_used,
                )
                for card in cards
            )
        )
        holders = self._live.holders()
        pods = {pod.uid: pod for pod in self._live.pods()}
        readings = [
            reading
            for uid, grants in holders.items()
            if uid in pods
            for reading in _readings(pods[uid], grants, cards)
        ]
        self._metrics.set_allocations(tuple(readings))
        self._metrics.set_limiter_missing(self._is_limiter_missing())
        log.debug("gauges_copied", extra=kv(cards=len(cards), holders=len(holders)))


def _readings(pod: Pod, grants: PodGrants, cards: tuple[Device, ...]) -> list[AllocationReading]:
    sizes = {card.uuid: card.memory_mib for card in cards}
    return [
        AllocationReading(
            namespace=pod.namespace,
            pod=pod.name,
            container=container.name,
            uuid=str(grant.uuid),
            memory_mib=grant.memory_mib or sizes.get(grant.uuid, 0),
            cores=grant.cores,
        )
        for container, held in zip(pod.containers, grants.containers, strict=False)
        for grant in held
    ]
