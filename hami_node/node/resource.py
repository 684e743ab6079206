"""One resource that this daemon serves: the cards that it offers, its registration with kubelet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hami_node.config.settings import Settings
from hami_node.logs import kv
from hami_node.model import Device, PairScores, Uuid, own_ids
from hami_node.node.cards.inventory import Inventory, InventoryChange, refuse_oversize
from hami_node.node.cards.numa_hints import NumaHints
from hami_node.node.kubelet.lifecycle import Lifecycle
from hami_node.node.kubelet.plugin import AllocatorSlot, DevicePlugin
from hami_node.ports import Clock
from hami_node.vendors.spec import AnyVendor, ServedResource

if TYPE_CHECKING:  # loaded after the registration
    from hami_node.node.cards.preference import CardChoice
    from hami_node.record.ledger import Entry

log = logging.getLogger(__name__)

Served = ServedResource[object]
Cards = tuple[Device, ...]

LONGEST_WAIT_S: Final = 3600.0
"""How long a wait for the first card lasts before it is repeated."""


class NodeResource:
    """A resource on this node, with an inventory, a socket and an allocator of its own."""

    def __init__(
        self,
        vendor: AnyVendor,
        served: Served,
        settings: Callable[[], Settings],
        *,
        clock: Clock,
        stop: threading.Event,
        scores: Callable[[], PairScores],
    ) -> None:
        """Build the parts; it has no cards yet.

        `settings` returns those in force, `scores` the links between the vendor's cards.
        """
        self._scores = scores
        self.vendor, self.name = vendor, served.name
        self.served, self._settings = served, settings
        self._stop = stop
        self._refused: set[Uuid] = set()
        self.inventory = Inventory()
        self.hints = NumaHints(clock, self.inventory.touch)
        self.allocator = AllocatorSlot(clock, stop)
        self.lifecycle = Lifecycle(
            plugin_dir=settings().plugin_dir,
            resource=self.name,
            make_plugin=self._make_plugin,
            clock=clock,
            stop=stop,
        )

    @property
    def _own(self) -> object:
        """The vendor's settings in force."""
        return self._settings().of(self.vendor.settings.kind)

    def renew(self, physical: Cards, marked: Callable[[Cards], Cards]) -> InventoryChange:
        """Offer those of the vendor's cards that are this resource's, as the settings have them.

        `marked`: with what is on record of their parts.
        """
        return self.inventory.replace(self._offered(physical, marked))

    def _offered(self, physical: Cards, marked: Callable[[Cards], Cards]) -> Cards:
        """The cards to offer; a card with values that can't be offered costs itself alone."""
        try:
            return self.served.offered(marked(physical), self._own)
        except Exception:
            log.debug("offer_failed", exc_info=True)
        before = {card.uuid: card for card in self.inventory.cards}
        offered: list[Device] = []
        for card in physical:
            try:
                offered += self.served.offered(marked((card,)), self._own)
            except Exception as e:  # noqa: BLE001  its card pays
                reason = f"the card's values can't be offered: {type(e).__name__}"
                last = before.get(card.uuid)
                if last is not None:
                    offered.append(replace(last, healthy=False, unhealthy_reason=reason))
                elif card.uuid not in self._refused:
                    self._refused.add(card.uuid)
                    log.error("card_not_offered", extra=kv(uuid=card.uuid, reason=reason))  # noqa: TRY400
        return tuple(sorted(offered, key=lambda card: (card.index, card.uuid)))

    def is_offering(self) -> bool:
        """True once there is something for kubelet to count; some cards people see alone."""
        return any(card.slots for card in self.inventory.cards)

    def uuids(self) -> tuple[str, ...]:
        """The cards that it offers now."""
        return tuple(card.uuid for card in self.inventory.cards)

    def ids(self) -> tuple[str, ...]:
        """The device IDs that it offers now and that are not made from a card's UUID."""
        return tuple(own_ids(self.inventory.cards))

    def _make_plugin(self) -> DevicePlugin:
        return DevicePlugin(
            self.inventory,
            self.allocator,
            self.served.options(self._own),
            choose=self._choose,
            shows_numa=lambda: self.served.has_own_ids or self.hints.are_shown,
        )

    def _choose(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        from hami_node.node.cards.preference import choose_ids

        return choose_ids(available, must, size, choice=self.choice())

    def choice(self) -> CardChoice:
        """What a free choice between the cards depends on."""
        from hami_node.node.cards.preference import CardChoice

        policy = self._settings().gpu_scheduler_policy
        return CardChoice(cards=self.inventory.cards, scores=self._scores(), policy=policy)

    def update_hints(self, entries: Iterable[Entry]) -> None:
        """Decide again whether kubelet is told the cards' NUMA nodes; `entries`: all on record."""
        if self.served.has_own_ids:
            return  # an ID is the device itself, so its node is always the right one
        if self.served.options(self._own).shows_numa:
            closed = self.inventory.closed_ids
            self.hints.update(self.inventory.cards, self.name, entries, closed)
        else:
            self.hints.hide()

    def is_aligned(self) -> bool:
        """Whether kubelet knew the NUMA node when it admitted the container that is served now."""
        return self.served.has_own_ids or self.hints.are_sure()

    def refuse_oversize(self) -> None:
        """Check what kubelet is about to be sent.

        Raises:
            ConfigError: it is more than kubelet accepts.
        """
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
        kind, options = self.vendor.settings.kind, self.served.options
        if not options(self._own).shows_numa:
            self.hints.hide()
        if options(before.of(kind)) != options(self._own):
            self.lifecycle.restart()

    def live(self) -> None:
        """Register once there is a card to offer: an empty list would look like a broken node."""
        while not self._stop.is_set():
            version, _ = self.inventory.snapshot()
            if self.is_offering():
                self.lifecycle.run()
                return
            self.inventory.wait_newer_or(version, self._stop.is_set, LONGEST_WAIT_S)

    def close(self) -> None:
        """After stop is set: end every wait."""
        self.inventory.wake()
        self.lifecycle.wake()
