from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from hami_node.errors import DriverChanged, DriverUnavailable
from hami_node.model import Device
from hami_node.node.cards.inventory import Inventory, InventoryChange
from hami_node.node.cards.scanner import Scanner
from tests.fakes.backend import FakeBackend
from tests.fakes.cards import card, uuid
from tests.fakes.clock import RealClock
from tests.fakes.waiting import eventually

GONE = DriverUnavailable("libnvidia-ml.so.1 is not there")


@dataclass
class Sharing:
    """How many slots each card is offered with."""

    slots: int = 10

    def offer(self, cards: tuple[Device, ...]) -> tuple[Device, ...]:
        return tuple(replace(given, slots=self.slots) for given in cards)


def make(
    backend: FakeBackend,
    changes: list[InventoryChange] | None = None,
    sharing: Sharing | None = None,
) -> tuple[Scanner, Inventory]:
    inventory = Inventory()
    scanner = Scanner(
        backend=backend,
        inventory=inventory,
        offer=(sharing or Sharing()).offer,
        clock=RealClock(),
        on_change=(changes if changes is not None else []).append,
    )
    return scanner, inventory


def test_scan_cards_are_offered_as_the_settings_say() -> None:
    sharing = Sharing()
    scanner, inventory = make(FakeBackend(card(0, slots=1)), sharing=sharing)
    scanner.scan_once()
    assert [given.slots for given in inventory.cards] == [10]
    sharing.slots = 3
    scanner.offer_again()
    assert [given.slots for given in inventory.cards] == [3]


def test_scan_nothing_changed_nobody_is_notified() -> None:
    changes: list[InventoryChange] = []
    scanner, _ = make(FakeBackend(card(0)), changes)
    scanner.scan_once()
    scanner.scan_once()
    assert changes == [InventoryChange(added=(uuid(0),))]


def test_scan_driver_gone_last_cards_are_unhealthy_with_the_reason_and_come_back() -> None:
    backend, changes = FakeBackend(card(0), card(1)), list[InventoryChange]()
    scanner, inventory = make(backend, changes)
    scanner.scan_once()
    backend.error = GONE
    scanner.scan_once()
    assert {(given.healthy, given.unhealthy_reason) for given in inventory.cards} == {
        (False, str(GONE))
    }
    assert scanner.state.error == str(GONE)
    backend.error = None
    scanner.scan_once()
    assert all(given.healthy for given in inventory.cards)
    assert scanner.state.error == ""
    assert changes[1].failed == changes[2].recovered == (uuid(0), uuid(1))


def test_offer_again_while_the_driver_is_gone_makes_no_card_healthy() -> None:
    backend, sharing = FakeBackend(card(0)), Sharing()
    scanner, inventory = make(backend, sharing=sharing)
    scanner.scan_once()
    backend.error = GONE
    scanner.scan_once()
    sharing.slots = 3
    scanner.offer_again()
    assert [(given.slots, given.healthy) for given in inventory.cards] == [(3, False)]


def test_scan_driver_was_replaced_only_another_process_helps() -> None:
    backend = FakeBackend()
    scanner, _ = make(backend)
    backend.error = GONE
    scanner.scan_once()
    assert not scanner.needs_new_process
    backend.error = DriverChanged("library 550, kernel 560")
    scanner.scan_once()
    assert scanner.needs_new_process


def test_run_scans_on_every_event_and_closes_the_backend() -> None:
    backend, stop = FakeBackend(), threading.Event()
    scanner, inventory = make(backend)
    thread = threading.Thread(target=scanner.run, args=(stop,))
    thread.start()
    backend.cards = (card(0),)
    backend.signal()
    eventually(lambda: inventory.cards)
    stop.set()
    backend.signal()
    thread.join(10.0)
    assert not thread.is_alive()
    assert backend.is_closed
