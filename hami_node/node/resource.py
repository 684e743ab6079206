"""One resource that this daemon serves: its cards, and its registration with kubelet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property

from hami_node.config.settings import Settings
from hami_node.metrics.deferred import DeferredMetrics
from hami_node.model import Device
from hami_node.node.cards.inventory import Inventory, refuse_oversize
from hami_node.node.cards.records import CardRecord
from hami_node.node.cards.scanner import Scanner
from hami_node.node.kubelet.lifecycle import Lifecycle, remove_stale_sockets
from hami_node.node.kubelet.plugin import AllocatorSlot, DevicePlugin
from hami_node.ports import Clock
from hami_node.vendors.answer import Responder
from hami_node.vendors.spec import AnyVendor, ServedResource

Served = ServedResource[object]

LONGEST_WAIT_S = 3600.0
"""How long a wait for the first card lasts before it is repeated."""


class NodeResource:
    """A vendor's resource on this node, with a backend and an inventory of its own."""

    def __init__(
        self,
        vendor: AnyVendor,
        served: Served,
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
        self.vendor, self.served = vendor, served
        self._settings, self._stop, self._metrics = settings, stop, metrics
        self.name = served.name(self._own)
        self.inventory = Inventory()
        self.backend = served.make_backend(settings(), clock, self.record)
        self.scanner = Scanner(
            backend=self.backend, inventory=self.inventory, offer=self._offered, clock=clock
        )
        self.allocator = AllocatorSlot(clock, stop)
        note, name = metrics.note, self.name
        self.lifecycle = Lifecycle(
            plugin_dir=settings().plugin_dir,
            resource=name,
            make_plugin=self._make_plugin,
            clock=clock,
            stop=stop,
            on_registered=lambda _: self._registered(),
            on_failed=lambda _: note(lambda metrics: metrics.set_registered(name, False)),
        )

    def record(self, name: str) -> CardRecord:
        """A record of this vendor on this node."""
        return CardRecord(self._settings().record_dir, name)

    def _registered(self) -> None:
        self.allocator.renew()
        self._metrics.note(lambda metrics: metrics.count_registration(self.name))

    @property
    def _own(self) -> object:
        """The vendor's settings in force."""
        return self._settings().of(self.vendor.settings.kind)

    @cached_property
    def responder(self) -> Responder:
        """Makes the answers; loaded after the registration."""
        return self.served.make_responder(lambda: self._own)

    @property
    def harmless_errors(self) -> frozenset[int]:
        """Codes of driver errors that leave a card healthy."""
        return self.served.harmless_errors(self._own)

    def _offered(self, physical: tuple[Device, ...]) -> tuple[Device, ...]:
        return self.served.offered(physical, self._own)

    def _make_plugin(self) -> DevicePlugin:
        return DevicePlugin(self.inventory, self.allocator, self.served.options(self._own))

    def remove_stale_sockets(self) -> None:
        """Remove the sockets of a killed daemon; to be called before any resource is served."""
        remove_stale_sockets(self._settings().plugin_dir, self.name)

    def find_cards(self) -> None:
        """Scan the cards for the first time.

        Raises:
            ConfigError: the device list is larger than kubelet accepts.
        """
        self.scanner.scan_once()
        refuse_oversize(self.inventory.cards, self.served.count_setting)

    def check(self, settings: Settings) -> None:
        """Check what kubelet would be sent under other settings.

        Raises:
            ConfigError: it is more than kubelet accepts.
        """
        own = settings.of(self.vendor.settings.kind)
        cards = self.served.offered(self.inventory.cards, own)
        refuse_oversize(cards, self.served.count_setting)

    def apply(self, before: Settings) -> None:
        """Apply the settings in force; `before` are the previous settings."""
        kind = self.vendor.settings.kind
        self.served.apply(self.backend, self._settings())
        self.scanner.offer_again()
        if self.served.options(before.of(kind)) != self.served.options(self._own):
            self.lifecycle.restart()

    def live(self) -> None:
        """Register once there is a card to offer: an empty list would look like a broken node."""
        version = -1
        while not self._stop.is_set():
            version, cards = self.inventory.snapshot()
            if cards:
                self.lifecycle.run()
                return
            self.inventory.wait_newer_or(version, self._stop.is_set, LONGEST_WAIT_S)

    def scan(self) -> None:
        """Keep the inventory up to date until stopped."""
        self.scanner.run(self._stop)

    def close(self) -> None:
        """After stop is set: end every wait."""
        self.inventory.wake()
        self.lifecycle.wake()
        self.backend.close()
