"""One vendor's cards on this node: found by one backend, offered by all resources of the vendor."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from hami_node.config.settings import Settings
from hami_node.errors import BackendError, DriverChanged, RecordError
from hami_node.logs import kv
from hami_node.model import Device, united
from hami_node.node.cards.inventory import Inventory, InventoryChange
from hami_node.node.resource import NodeResource
from hami_node.ports import Clock
from hami_node.record.file import RecordFile
from hami_node.record.writer import RecordWriter
from hami_node.vendors.divided import NOTHING_DIVIDED, DividedCards
from hami_node.vendors.on_node.answer import Responder
from hami_node.vendors.on_node.limits import LimitWriter
from hami_node.vendors.on_node.parts import CardParts, PartSources, PartsState
from hami_node.vendors.on_node.upkeep import Upkeep
from hami_node.vendors.on_node.usage import UsageReader
from hami_node.vendors.spec import AnyVendor, ServedCards

log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
"""Between two scans without an event; backends check their cards more often and report changes."""
RETRY_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
SETTLE_S: Final = 10.0
"""Whoever divides cards does so step by step: one restart has to do for all of it."""

Cards = tuple[Device, ...]


class CardRecord:
    """The port `Record` in a file that survives kill -9 and a power loss.

    Vendors' drivers know neither folders nor checksums.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Nothing is read or made yet."""
        self._name = name
        self._writer = RecordWriter(RecordFile(folder, name))

    def load(self) -> bytes | None:
        """What was saved last; a record that can't be read is reported, and set aside.

        Raises:
            RecordError: its disk does not answer.
        """
        found = self._writer.load()
        if found.problem and "missing" not in found.problem:
            log.error("record_lost", extra=kv(record=self._name, problem=found.problem))
        return found.payload

    def save(self, payload: bytes) -> None:
        """Replace it. Raises RecordError: it can't be written, or not in time."""
        self._writer.save(payload)

    def put(self, payload: bytes) -> None:
        """Have it replaced."""
        self._writer.put(payload)


class VendorCards:
    """The backend, its scans, and the resources under which the cards are offered.

    Resources are made once, at the start: what follows each of them (sockets, allocators, watchers)
    is built then. A new one takes a new process, which costs no running pod anything.

    Attributes:
        physical: the cards as the backend has found them last.
        error: why the last scan failed; "" if it didn't, and before the first.
        needs_new_process: True once the driver can only be used by another process.
        resources: none before the cards were found once.
        on_change: called from the scanning thread when offered cards have changed.
    """

    def __init__(
        self,
        vendor: AnyVendor,
        served: ServedCards[object],
        settings: Callable[[], Settings],
        *,
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        """Build the parts; the backend is not queried yet. `settings` returns those in force.

        Raises:
            ConfigError: a setting of the backend is wrong.
        """
        self.vendor, self._clock = vendor, clock
        self._served, self._settings, self._stop = served, settings, stop
        self.foreign_cards = served.foreign_cards
        self._records: dict[str, CardRecord] = {}
        self._parts: CardParts | None = None
        self._asked_for_parts: Settings | None = None
        self._making_parts = threading.Lock()
        self.backend = served.make_backend(settings(), clock, self.record)
        self.physical: Cards = ()
        self.error, self._failures = "", 0
        self.needs_new_process = False
        self.resources: tuple[NodeResource, ...] = ()
        self.on_change: Callable[[], None] = lambda: None
        self._pass = threading.Lock()
        self._given: object = None
        self._first: Cards = ()
        self._looked: Cards = ()
        self._added: frozenset[str] = frozenset()
        self._added_s = 0.0

    # -- the vendor's own parts, loaded after the registration -------------------------------------
    def record(self, name: str) -> CardRecord:
        """A record of this vendor on this node; always the same object."""
        made = CardRecord(self._settings().record_dir, name)
        return self._records.setdefault(name, made)

    @property
    def names(self) -> str:
        """The names of the resources, for people."""
        return ", ".join(each.name for each in self.resources)

    def _own(self) -> object:
        """The vendor's settings in force."""
        return self._settings().of(self.vendor.settings.kind)

    @cached_property
    def responder(self) -> Responder:
        """Makes the answers."""
        return self._served.make_responder(self._own)

    @cached_property
    def limit_writer(self) -> LimitWriter | None:
        """Changes the limits of containers that run; None where that can't be."""
        make = self._served.make_limit_writer
        return None if make is None else make(self._own)

    @cached_property
    def upkeep(self) -> Upkeep | None:
        """Removes the files of ended containers; None where there are none."""
        make = self._served.make_upkeep
        return None if make is None else make(self._own)

    @cached_property
    def usage_reader(self) -> UsageReader | None:
        """Reads what containers use; None if nobody can tell."""
        make = self._served.make_usage_reader
        return None if make is None else make(self._own, self._clock)

    @property
    def harmless_errors(self) -> frozenset[int]:
        """Codes of driver errors that leave a card healthy."""
        return self._served.harmless_errors(self._own())

    @property
    def parts(self) -> CardParts | None:
        """Makes and removes parts of the cards.

        None while nothing is to be divided, or the record of the parts can't be read.
        """
        make, now = self._served.make_parts, self._settings()
        if self._parts is None and make is not None and self._asked_for_parts is not now:
            with self._making_parts:  # two of them on one record would undo each other's work
                if self._parts is None and self._asked_for_parts is not now:
                    sources = PartSources(
                        backend=self.backend,
                        cards=lambda: self.physical,
                        records=self.record,
                        clock=self._clock,
                        started_with=self._given,
                    )
                    with contextlib.suppress(RecordError):  # the next look tries again
                        self._parts = make(sources, self._own)
                        self._asked_for_parts = now
        return self._parts

    def divided(self) -> DividedCards:
        """The cards that are divided, for people. Never waits."""
        show = self._served.divided
        if show is None:
            return NOTHING_DIVIDED
        state = PartsState() if self._parts is None else self._parts.state()
        offered = {card.uuid: card for card in self.cards()}
        cards = [offered.get(card.uuid, card) for card in self.physical]
        return show(cards, state, self._own())

    # -- the start, and changes of the settings ----------------------------------------------------
    def cards(self) -> Cards:
        """The cards that any of the resources offers, each once."""
        return united(card for each in self.resources for card in each.inventory.cards)

    def find_cards(self) -> None:
        """Scan the cards for the first time. Nothing is offered before `offer`."""
        self._given = self._own()
        self.scan()
        self._first = self._looked = self.physical

    def settled(self, settings: Settings) -> Settings:
        """Settings as they apply to the cards that were found first."""
        own = settings.of(self.vendor.settings.kind)
        return settings.with_block(self._served.settled(own, self._first))

    def offer(self) -> None:
        """Make the resources of the cards that were found, under the settings in force.

        Raises:
            ConfigError: a device list is larger than kubelet accepts.
        """
        self.resources = tuple(
            NodeResource(
                self.vendor,
                each,
                self._settings,
                clock=self._clock,
                stop=self._stop,
                scores=self.backend.pair_scores,
            )
            for each in self._served.resources(self._own(), self.physical)
        )
        self.offer_again()
        for each in self.resources:
            each.refuse_oversize()

    def apply(self, before: Settings) -> None:
        """Apply the settings in force; `before` are the previous settings."""
        self._served.apply(self.backend, self._settings())
        self.offer_again()
        for each in self.resources:
            each.apply(before)

    def why_restart(self) -> str:
        """Why only another process can serve the cards as they are now; "" where this one can.

        Or while the cards may still change. Used by one thread at a time.
        """
        if self.needs_new_process:
            return self.error
        if self.physical is not self._looked:
            self._looked = self.physical
            added = self._missing()
            if added != self._added:
                self._added, self._added_s = added, self._clock.monotonic()
        if not self._added or self._clock.monotonic() - self._added_s < SETTLE_S:
            return ""
        shown = ", ".join(sorted(self._added))
        return f"the cards are to be offered as {shown} now, which takes another process"

    def _missing(self) -> frozenset[str]:
        """Resources that this process does not have, or has under other rules."""
        served, given = self._served, self._given
        settled = served.settled(given, self.physical)
        wanted = frozenset(each.name for each in served.resources(settled, self.physical))
        if settled != served.settled(given, self._first):
            return wanted
        return wanted.difference(each.name for each in self.resources)

    # -- scans -------------------------------------------------------------------------------------
    def scan(self) -> None:
        """One pass. A backend that fails leaves its last cards, unhealthy, with the reason."""
        with self._pass:
            try:
                self.physical = self.backend.scan()
            except BackendError as e:
                self.needs_new_process = isinstance(e, DriverChanged)
                self._fail(str(e))
            except Exception as e:  # whatever a driver's reading does, the daemon lives
                log.debug("scan_failed", exc_info=True)
                self._fail(f"the cards can't be read: {type(e).__name__}")
            else:
                if self.error:
                    log.info("backend_recovered", extra=kv(backend=self.backend.name))
                self.error, self._failures = "", 0
            self._offer()

    def _fail(self, error: str) -> None:
        self._failures += 1
        if self.error != error:
            log.error("backend_failed", extra=kv(backend=self.backend.name, error=error))
        self.error = error

    def offer_again(self) -> None:
        """Offer the cards again: settings, or what is on record of them, have changed."""
        with self._pass:
            self._offer()

    def _offer(self) -> None:
        cards = self.physical
        if self.error:
            cards = tuple(
                replace(card, healthy=False, unhealthy_reason=self.error) for card in cards
            )
        for resource in self.resources:
            change = resource.renew(cards, self._marked)
            if change:
                _log_change(change, resource.inventory)
                self.on_change()

    def _marked(self, cards: Cards) -> Cards:
        """Cards with what is on record of their parts."""
        parts = self.parts
        return cards if parts is None else parts.marked(cards)

    def keep_scanning(self) -> None:
        """Scan on every event and at least every INTERVAL_S until stopped; close the backend."""
        while not self._stop.is_set():
            wait_s = INTERVAL_S
            if self.error:
                wait_s = RETRY_S[min(self._failures, len(RETRY_S)) - 1]
            began_s = self._clock.monotonic()
            try:
                self.backend.wait_for_event(wait_s)
            except Exception:
                log.warning("wait_for_cards_failed", exc_info=True)
                self._clock.wait(self._stop, RETRY_S[0])
            if self.error:
                # A backend that fails at once must not be queried in a busy loop.
                passed_s = self._clock.monotonic() - began_s
                self._clock.wait(self._stop, max(RETRY_S[0] - passed_s, 0.0))
            if not self._stop.is_set():
                self.scan()
        self.backend.close()

    def close(self) -> None:
        """After stop is set: end every wait."""
        for each in self.resources:
            each.close()
        self.backend.close()


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
