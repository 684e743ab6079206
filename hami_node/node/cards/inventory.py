"""The cards that one resource of this node offers: a snapshot that can be watched for changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from hami_node.errors import ConfigError
from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.logs import kv
from hami_node.model import Device, Uuid

log = logging.getLogger(__name__)

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""What kubelet's gRPC client accepts. Source: the device plugin API."""
MAX_DEVICE_ID_CHARS: Final = 63


def kubelet_list(
    cards: tuple[Device, ...],
    *,
    shows_numa: bool = True,
    closed: Collection[str] = (),
    lost: Collection[str] = (),
) -> api.ListAndWatchResponse:
    """The message with every slot of every card for kubelet.

    The closed ones are not healthy, nor are the lost ones, which are held and are on no card.
    """
    devices = []
    for card in cards:
        topology = None
        if shows_numa and card.numa is not None:
            topology = api.TopologyInfo(nodes=[api.NUMANode(ID=card.numa)])
        health = HEALTHY if card.healthy else UNHEALTHY
        devices += [
            api.Device(ID=name, health=UNHEALTHY if name in closed else health, topology=topology)
            for name in card.device_ids
        ]
    devices += [api.Device(ID=name, health=UNHEALTHY) for name in sorted(lost)]
    return api.ListAndWatchResponse(devices=devices)


def refuse_oversize(cards: tuple[Device, ...], count_setting: str) -> None:
    """Check what kubelet would be sent; `count_setting` is the key of the number of slots.

    Raises:
        ConfigError: the message or an ID is larger than kubelet accepts.
    """
    size, slots = kubelet_list(cards).ByteSize(), cards[0].slots if cards else 0
    problem = ""
    if size > MAX_MESSAGE_BYTES:
        problem = (
            f"{len(cards)} cards of {slots} slots make a list of {size} bytes and kubelet accepts "
            f"{MAX_MESSAGE_BYTES}; use at most {slots * MAX_MESSAGE_BYTES // size}"
        )
    for card in cards:
        longest = max(map(len, card.device_ids), default=0)
        if not problem and longest > MAX_DEVICE_ID_CHARS:
            problem = (
                f"device IDs of card {card.index} would have {longest} characters and kubelet "
                f"accepts {MAX_DEVICE_ID_CHARS}; use a smaller count"
            )
    if problem:
        raise ConfigError("device-config.yaml", count_setting, slots, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryChange:
    """What changed in a new pass. All empty: nothing changed."""

    added: tuple[Uuid, ...] = ()
    removed: tuple[Uuid, ...] = ()
    failed: tuple[Uuid, ...] = ()
    recovered: tuple[Uuid, ...] = ()
    altered: tuple[Uuid, ...] = ()

    def __bool__(self) -> bool:
        return any((self.added, self.removed, self.failed, self.recovered, self.altered))


def diff(old: tuple[Device, ...], new: tuple[Device, ...]) -> InventoryChange:
    """Compare two passes card by card."""
    before = {card.uuid: card for card in old}
    after = {card.uuid: card for card in new}
    both = [(before[uuid], card) for uuid, card in after.items() if uuid in before]
    return InventoryChange(
        added=tuple(uuid for uuid in after if uuid not in before),
        removed=tuple(uuid for uuid in before if uuid not in after),
        failed=tuple(new.uuid for old, new in both if old.healthy and not new.healthy),
        recovered=tuple(new.uuid for old, new in both if new.healthy and not old.healthy),
        altered=tuple(new.uuid for old, new in both if old.healthy == new.healthy and old != new),
    )


class Inventory:
    """The cards offered now. One lock; returns frozen snapshots; wakes waiting threads.

    Two sources are put together: what a scan found, and which cards are closed although they are
    healthy. Neither waits for the other: a scan may hang in the driver.

    Attributes:
        closed_ids: the slots that kubelet must not hand out though their cards are healthy.
        lost_ids: the IDs that containers hold and that are on no card any more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._scanned: tuple[Device, ...] = ()
        self._closed: Mapping[Uuid, str] = MappingProxyType({})
        self._cards: tuple[Device, ...] = ()
        self.closed_ids: frozenset[str] = frozenset()
        self.lost_ids: frozenset[str] = frozenset()
        self._version = 0

    def replace(self, cards: tuple[Device, ...]) -> InventoryChange:
        """Store the cards of a new pass; wake all waiters if anything differs."""
        with self._changed:
            self._scanned = cards
            return self._update()

    def close_cards(self, reasons: Mapping[Uuid, str]) -> InventoryChange:
        """These cards, and no others, are offered as unhealthy from now on, with the reason."""
        with self._changed:
            self._closed = reasons
            return self._update()

    def _update(self) -> InventoryChange:
        cards = tuple(
            replace(card, healthy=False, unhealthy_reason=self._closed[card.uuid])
            if card.healthy and card.uuid in self._closed
            else card
            for card in self._scanned
        )
        change = diff(self._cards, cards)
        if change:
            self._cards = cards
            self._renew()
        return change

    def _renew(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def touch(self) -> None:
        """Have the list sent to kubelet again: it is shown otherwise now."""
        with self._changed:
            self._renew()

    def close_ids(self, closed: frozenset[str]) -> None:
        """Of the slots of healthy cards, offer kubelet all but these from now on."""
        with self._changed:
            if closed != self.closed_ids:
                log.info("slots_closed", extra=kv(slots=len(closed), before=len(self.closed_ids)))
                self.closed_ids = closed
                self._renew()

    def lose_ids(self, lost: frozenset[str]) -> None:
        """Show kubelet these IDs too from now on, unhealthy: containers hold what has vanished."""
        with self._changed:
            if lost != self.lost_ids:
                log.warning("held_devices_vanished", extra=kv(devices=sorted(lost)))
                self.lost_ids = lost
                self._renew()

    def snapshot(self) -> tuple[int, tuple[Device, ...]]:
        """(version, cards sorted by index and uuid)."""
        with self._changed:
            return self._version, self._cards

    @property
    def cards(self) -> tuple[Device, ...]:
        """The cards alone."""
        return self.snapshot()[1]

    def wait_newer_or(self, version: int, is_over: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the snapshot is newer than `version`, `is_over()` or the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or is_over(), timeout_s)

    def wake(self) -> None:
        """Wake all waiters without a change: their stream ended."""
        with self._changed:
            self._changed.notify_all()
