"""Query the backend for its cards repeatedly, and keep the inventories up to date."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hami_node.errors import BackendError, DriverChanged
from hami_node.logs import kv
from hami_node.model import Device, Uuid
from hami_node.node.cards.inventory import Inventory, InventoryChange
from hami_node.ports import Backend, Clock

log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
"""Between two scans without an event; backends check their cards more often and report changes."""
RETRY_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanState:
    """The result of the last pass; no error before the first."""

    error: str = ""


class Offer:
    """Where the cards of one resource are offered, and how."""

    def __init__(
        self,
        inventory: Inventory,
        shape: Callable[[tuple[Device, ...]], tuple[Device, ...]],
    ) -> None:
        """`shape` turns the physical cards into those to offer in `inventory`."""
        self.inventory, self._shape = inventory, shape
        self._refused: set[Uuid] = set()

    def renew(self, physical: tuple[Device, ...]) -> InventoryChange:
        """Offer these cards."""
        return self.inventory.replace(self._shaped(physical))

    def _shaped(self, physical: tuple[Device, ...]) -> tuple[Device, ...]:
        """The cards to offer; a card with values that can't be offered costs itself alone."""
        try:
            return self._shape(physical)
        except Exception:
            log.debug("offer_failed", exc_info=True)
        before = {card.uuid: card for card in self.inventory.cards}
        offered: list[Device] = []
        for card in physical:
            try:
                offered += self._shape((card,))
            except Exception as e:  # noqa: BLE001  its card pays
                reason = f"the card's values can't be offered: {type(e).__name__}"
                last = before.get(card.uuid)
                if last is not None:
                    offered.append(replace(last, healthy=False, unhealthy_reason=reason))
                elif card.uuid not in self._refused:
                    self._refused.add(card.uuid)
                    log.error("card_not_offered", extra=kv(uuid=card.uuid, reason=reason))  # noqa: TRY400
        return tuple(sorted(offered, key=lambda card: (card.index, card.uuid)))


class Scanner:
    """Owns the backend. `scan_once` for the first list, `run` as the thread's body."""

    def __init__(
        self,
        *,
        backend: Backend,
        offers: Sequence[Offer] = (),
        clock: Clock,
        on_change: Callable[[InventoryChange], None] = lambda _: None,
    ) -> None:
        """Wire the parts; no scan is made yet. `on_change` is called from the scanning thread."""
        self._backend = backend
        self._offers = tuple(offers)
        self._clock = clock
        self._on_change = on_change
        self._physical: tuple[Device, ...] = ()
        self._failures = 0
        self._pass = threading.Lock()
        self.state = ScanState()
        self.needs_new_process = False
        """True once the driver can only be used by another process."""

    @property
    def physical(self) -> tuple[Device, ...]:
        """The cards as they were last found, as the backend has them."""
        return self._physical

    def offer_in(self, offers: Sequence[Offer]) -> None:
        """Offer the cards there, and nowhere else, from now on."""
        with self._pass:
            self._offers = tuple(offers)
            self._offer(self._cards())

    def offer_again(self) -> None:
        """Offer the cards again: the settings for it have changed."""
        with self._pass:
            self._offer(self._cards())

    def listen(self, on_change: Callable[[InventoryChange], None]) -> None:
        """Call `on_change` on changes from now on."""
        self._on_change = on_change

    def scan_once(self) -> None:
        """One pass. A backend that fails leaves its last cards, unhealthy, with the reason."""
        with self._pass:
            try:
                self._physical = self._backend.scan()
            except BackendError as e:
                self.needs_new_process = isinstance(e, DriverChanged)
                self._fail(str(e))
                return
            except Exception as e:  # whatever a driver's reading does, the daemon lives
                log.debug("scan_failed", exc_info=True)
                self._fail(f"the cards can't be read: {type(e).__name__}")
                return
            if self.state.error:
                log.info("backend_recovered", extra=kv(backend=self._backend.name))
            self._failures = 0
            self.state = ScanState()
            self._offer(self._physical)

    def run(self, stop: threading.Event) -> None:
        """Scan on every event and at least every INTERVAL_S until stopped; close the backend."""
        while not stop.is_set():
            wait_s = INTERVAL_S
            if self.state.error:
                wait_s = RETRY_S[min(self._failures, len(RETRY_S)) - 1]
            began_s = self._clock.monotonic()
            self._wait(wait_s, stop)
            if self.state.error:
                # A backend that fails at once must not be queried in a busy loop.
                passed_s = self._clock.monotonic() - began_s
                self._clock.wait(stop, max(RETRY_S[0] - passed_s, 0.0))
            if not stop.is_set():
                self.scan_once()
        self._backend.close()

    def _wait(self, wait_s: float, stop: threading.Event) -> None:
        try:
            self._backend.wait_for_event(wait_s)
        except Exception:
            log.warning("wait_for_cards_failed", exc_info=True)
            self._clock.wait(stop, RETRY_S[0])

    def _fail(self, error: str) -> None:
        self._failures += 1
        if self.state.error != error:
            log.error("backend_failed", extra=kv(backend=self._backend.name, error=error))
        self.state = ScanState(error=error)
        self._offer(self._cards())

    def _cards(self) -> tuple[Device, ...]:
        """The last cards; all of them unhealthy while the backend fails."""
        error = self.state.error
        if not error:
            return self._physical
        return tuple(
            replace(card, healthy=False, unhealthy_reason=error) for card in self._physical
        )

    def _offer(self, physical: tuple[Device, ...]) -> None:
        for offer in self._offers:
            change = offer.renew(physical)
            if change:
                _log_change(change, offer.inventory)
                self._on_change(change)


def _log_change(change: InventoryChange, inventory: Inventory) -> None:
    cards = {card.uuid: card for card in inventory.cards}
    for uuid in (*change.failed, *change.added):
        if uuid in cards and not cards[uuid].healthy:
            reason = cards[uuid].unhealthy_reason
            log.warning("card_unhealthy", extra=kv(uuid=uuid, reason=reason))
    for uuid in change.recovered:
        log.info("card_recovered", extra=kv(uuid=uuid))
    if change.added or change.removed:
        log.info("cards_found", extra=kv(cards=len(cards), removed=len(change.removed)))
