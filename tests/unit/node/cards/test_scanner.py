from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pytest

from hami_node.errors import DriverChanged, DriverUnavailable
from hami_node.model import Device
from hami_node.node.cards.inventory import Inventory, InventoryChange
from hami_node.node.cards.scanner import Offer, Scanner
from tests.fakes.backend import FakeBackend
from tests.fakes.cards import card, uuid
from tests.fakes.clock import RealClock
from tests.fakes.waiting import eventually
from tests.reliability import shows

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
        offers=[Offer(inventory, (sharing or Sharing()).offer)],
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


UNEXPECTED = [ZeroDivisionError(), ValueError("rubbish"), TypeError(), UnicodeError(), KeyError(1)]


@shows(
    "N11",
    fault="a vendor's reading of the cards ends with an error that nobody expected",
    happens="the cards are unhealthy with the reason, and read again; the daemon runs on",
)
@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
def test_scan_that_fails_in_any_way_is_made_again(error: Exception) -> None:
    backend, stop = FakeBackend(card(0), card(1)), threading.Event()
    scanner, inventory = make(backend)
    scanner.scan_once()
    thread = threading.Thread(target=scanner.run, args=(stop,))
    thread.start()
    try:
        backend.error = error
        backend.signal()
        eventually(lambda: [given.healthy for given in inventory.cards] == [False, False])
        assert type(error).__name__ in inventory.cards[0].unhealthy_reason
        backend.error = None
        eventually(lambda: all(given.healthy for given in inventory.cards))
    finally:
        stop.set()
        backend.signal()
        thread.join(10.0)
    assert not thread.is_alive()


class DeafBackend(FakeBackend):
    """Its wait for an event fails."""

    def wait_for_event(self, timeout_s: float) -> bool:
        super().wait_for_event(0.01)
        raise ArithmeticError


def test_wait_that_fails_is_a_pause() -> None:
    backend, stop = DeafBackend(card(0)), threading.Event()
    scanner, inventory = make(backend)
    thread = threading.Thread(target=scanner.run, args=(stop,))
    thread.start()
    eventually(lambda: inventory.cards)
    assert thread.is_alive()
    stop.set()
    thread.join(10.0)
    assert not thread.is_alive()


def picky(cards: tuple[Device, ...]) -> tuple[Device, ...]:
    """Offers, as a vendor does that divides by a card's memory."""
    return tuple(replace(given, cores=100 * 1024 // given.memory_mib) for given in cards)


@pytest.mark.parametrize("is_known", [True, False])
def test_card_that_cant_be_offered_costs_itself(is_known: bool) -> None:
    bad = replace(card(1), memory_mib=0)
    backend, inventory = FakeBackend(card(0), card(1) if is_known else bad, card(2)), Inventory()
    scanner = Scanner(backend=backend, offers=[Offer(inventory, picky)], clock=RealClock())
    scanner.scan_once()
    backend.cards = (card(0), bad, card(2))
    scanner.scan_once()
    health = {given.uuid: given.healthy for given in inventory.cards}
    assert health == {uuid(0): True, uuid(2): True} | ({uuid(1): False} if is_known else {})
    scanner.offer_again()
    backend.cards = (card(0), card(1), card(2))
    scanner.scan_once()
    assert [given.healthy for given in inventory.cards] == [True] * 3
