"""One vendor's cards on this node: found by one backend, offered by all resources of the vendor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property

from hami_node.config.settings import Settings
from hami_node.metrics.deferred import DeferredMetrics
from hami_node.model import Device
from hami_node.node.cards.records import CardRecord
from hami_node.node.cards.scanner import Offer, Scanner
from hami_node.node.resource import NodeResource
from hami_node.ports import Clock
from hami_node.vendors.on_node.answer import Responder
from hami_node.vendors.on_node.limits import LimitWriter
from hami_node.vendors.on_node.upkeep import Upkeep
from hami_node.vendors.on_node.usage import UsageReader
from hami_node.vendors.spec import AnyVendor, ServedCards


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
        metrics: DeferredMetrics,
    ) -> None:
        """Build the parts; the backend is not queried yet. `settings` returns those in force.

        Raises:
            ConfigError: a setting of the backend is wrong.
        """
        self.vendor, self._clock = vendor, clock
        self._served, self._settings, self._stop = served, settings, stop
        self.foreign_cards = served.foreign_cards
        self.resources = tuple(
            NodeResource(
                vendor,
                each,
                settings,
                clock=clock,
                stop=stop,
                metrics=metrics,
                scores=lambda: self.backend.pair_scores(),
            )
            for each in served.resources(self._own)
        )
        self.backend = served.make_backend(settings(), clock, self.record)
        self.scanner = Scanner(
            backend=self.backend,
            offers=[Offer(each.inventory, each.offered) for each in self.resources],
            clock=clock,
        )

    def record(self, name: str) -> CardRecord:
        """A record of this vendor on this node."""
        return CardRecord(self._settings().record_dir, name)

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
        """The cards that any of the resources offers, resource by resource."""
        return tuple(card for each in self.resources for card in each.inventory.cards)

    def find_cards(self) -> None:
        """Scan the cards for the first time.

        Raises:
            ConfigError: a device list is larger than kubelet accepts.
        """
        self.scanner.scan_once()
        for each in self.resources:
            each.refuse_oversize()

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
