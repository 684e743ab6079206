"""One vendor's cards on this node: found by one backend, offered by all resources of the vendor."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import cached_property

from hami_node.config.settings import Settings
from hami_node.errors import RecordError
from hami_node.model import Device, united
from hami_node.node.cards.outgrown import Outgrown
from hami_node.node.cards.records import CardRecord
from hami_node.node.cards.scanner import Offer, Scanner
from hami_node.node.resource import NodeResource
from hami_node.ports import Clock
from hami_node.vendors.divided import NOTHING_DIVIDED, DividedCards
from hami_node.vendors.on_node.answer import Responder
from hami_node.vendors.on_node.limits import LimitWriter
from hami_node.vendors.on_node.parts import CardParts, PartSources, PartsState
from hami_node.vendors.on_node.upkeep import Upkeep
from hami_node.vendors.on_node.usage import UsageReader
from hami_node.vendors.spec import AnyVendor, ServedCards

Offered = Callable[[tuple[Device, ...]], tuple[Device, ...]]


class VendorCards:
    """The backend, its scanner, and the resources under which the cards are offered."""

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
        self.scanner = Scanner(backend=self.backend, clock=clock)
        self.resources: tuple[NodeResource, ...] = ()
        """None before the cards were found once."""
        self._outgrown = Outgrown(clock)

    def _offer_of(self, offered: Offered) -> Offered:
        """`offered`, of cards with what is on record of their parts."""

        def of_marked(cards: tuple[Device, ...]) -> tuple[Device, ...]:
            parts = self.parts
            return offered(cards if parts is None else parts.marked(cards))

        return of_marked

    def record(self, name: str) -> CardRecord:
        """A record of this vendor on this node; always the same object."""
        made = CardRecord(self._settings().record_dir, name)
        return self._records.setdefault(name, made)

    @property
    def names(self) -> str:
        """The names of the resources, for people."""
        return ", ".join(each.name for each in self.resources)

    @property
    def _own(self) -> object:
        """The vendor's settings in force."""
        return self._settings().of(self.vendor.settings.kind)

    @cached_property
    def responder(self) -> Responder:
        """Makes the answers; loaded after the registration."""
        return self._served.make_responder(lambda: self._own)

    @cached_property
    def limit_writer(self) -> LimitWriter | None:
        """Changes the limits of containers that run; None where that can't be."""
        make = self._served.make_limit_writer
        return None if make is None else make(lambda: self._own)

    @cached_property
    def upkeep(self) -> Upkeep | None:
        """Removes the files of ended containers; loaded after the registration."""
        make = self._served.make_upkeep
        return make(lambda: self._own) if make is not None else None

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
                        cards=lambda: self.scanner.physical,
                        records=self.record,
                        clock=self._clock,
                    )
                    with contextlib.suppress(RecordError):  # the next look tries again
                        self._parts = make(sources, lambda: self._own)
                        self._asked_for_parts = now
        return self._parts

    def divided(self) -> DividedCards:
        """The cards that are divided, for people. Never waits."""
        show = self._served.divided
        if show is None:
            return NOTHING_DIVIDED
        state = PartsState() if self._parts is None else self._parts.state()
        offered = {card.uuid: card for card in self.cards()}
        cards = [offered.get(card.uuid, card) for card in self.scanner.physical]
        return show(cards, state, self._own)

    @cached_property
    def usage_reader(self) -> UsageReader | None:
        """Reads what containers use; None if nobody can tell."""
        make = self._served.make_usage_reader
        return None if make is None else make(lambda: self._own, self._clock)

    @property
    def harmless_errors(self) -> frozenset[int]:
        """Codes of driver errors that leave a card healthy."""
        return self._served.harmless_errors(self._own)

    def cards(self) -> tuple[Device, ...]:
        """The cards that any of the resources offers, each once."""
        return united(card for each in self.resources for card in each.inventory.cards)

    def find_cards(self) -> None:
        """Scan the cards for the first time. Nothing is offered before `offer`."""
        self.scanner.scan_once()
        self._outgrown.begin(self._own, self.scanner.physical)

    def settled(self, settings: Settings) -> Settings:
        """Settings as they apply to the cards that were found first."""
        own = settings.of(self.vendor.settings.kind)
        return settings.with_block(self._served.settled(own, self._outgrown.first))

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
            for each in self._served.resources(self._own, self.scanner.physical)
        )
        self.scanner.offer_in(
            [Offer(each.inventory, self._offer_of(each.offered)) for each in self.resources]
        )
        for each in self.resources:
            each.refuse_oversize()

    def why_restart(self) -> str:
        """Why only another process can serve the cards as they are now; "" where this one can."""
        if self.scanner.needs_new_process:
            return self.scanner.state.error
        names = {each.name for each in self.resources}
        return self._outgrown.why(self._served, names, self.scanner.physical)

    def apply(self, before: Settings) -> None:
        """Apply the settings in force; `before` are the previous settings."""
        self._served.apply(self.backend, self._settings())
        self.scanner.offer_again()
        for each in self.resources:
            each.apply(before)

    def scan(self) -> None:
        """Keep the inventories up to date until stopped."""
        self.scanner.run(self._stop)

    def close(self) -> None:
        """After stop is set: end every wait."""
        for each in self.resources:
            each.close()
        self.backend.close()
