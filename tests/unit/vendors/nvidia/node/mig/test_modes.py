"""When MIG mode is switched on, and what is said where it can't be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hami_node.clock import Deadline
from hami_node.model import Device, Grant, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.driver import MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import MigInstance, MigPlacement
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.mig.modes import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    NOT_SWITCHED,
    SWITCHED_ON,
    ModeKeeper,
)
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.parts import PartHolder, PartsKept, PartsSituation
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.mig_cards import MIG, divided, instance
from tests.reliability import shows

BUSY = "processes 4711 still use the card: end them"


class FakeModes:
    """Changes modes; `answers` are given in turn, "" after the last."""

    def __init__(self) -> None:
        self.answers: list[str | MigError] = []
        self.asked: list[tuple[Uuid, bool]] = []
        self.pids: frozenset[int] | MigError | None = frozenset()
        self.during: Callable[[], object] = lambda: None

    def set_mode(self, card: Uuid, *, is_enabled: bool, deadline: Deadline) -> str:
        assert deadline.left_s() > 0
        self.asked.append((card, is_enabled))
        self.during()
        answer = self.answers.pop(0) if self.answers else ""
        if isinstance(answer, MigError):
            raise answer
        return answer

    def processes(self, card: Uuid, deadline: Deadline) -> frozenset[int] | None:
        del card, deadline
        if isinstance(self.pids, MigError):
            raise self.pids
        return self.pids


class Desk:
    """A keeper over a driver that a test commands."""

    def __init__(self) -> None:
        self.clock, self.driver, self.settings = FakeClock(), FakeModes(), MIG
        self.keeper = ModeKeeper(self.driver, lambda: self.settings, self.clock)
        self.holders: tuple[PartHolder, ...] | None = ()

    def keep(self, *cards: Device, hands_off: str = "") -> PartsKept:
        return self.keeper.keep(cards, PartsSituation(holders=self.holders), hands_off)

    def waits(self, *cards: Device, hands_off: str = "") -> str:
        self.keep(*cards, hands_off=hands_off)
        return self.keeper.waits().get(cards[0].uuid, "")


@pytest.fixture
def desk() -> Desk:
    return Desk()


OFF = divided(0, is_enabled=False)
PENDING = divided(0, is_enabled=False, is_pending=True)


def holder(part: MigInstance | None = None) -> PartHolder:
    grant = Grant(uuid=uuid(0), vendor=NVIDIA, memory_mib=1, cores=0, part=part)
    return PartHolder(
        pod_uid="u", namespace="ns", pod="p", container="c", grants=(grant,), annotations={}
    )


def test_mode_is_switched_on_where_it_is_asked_for_and_nobody_is_there(desk: Desk) -> None:
    kept = desk.keep(OFF)
    assert desk.driver.asked == [(uuid(0), True)]
    assert [note.reason for note in kept.notes] == [SWITCHED_ON]
    assert kept.next_s is None
    assert desk.keep(divided()) == PartsKept()
    assert desk.driver.asked == [(uuid(0), True)]


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        (NvidiaSettings(), OFF),
        (NvidiaSettings(operating_mode=Mode.MIG, filter_indexes=(0,)), OFF),
        (NvidiaSettings(operating_mode=Mode.MIG, filter_uuids=(uuid(0),)), OFF),
        (NvidiaSettings(), divided()),
        (MIG, divided()),
        (MIG, divided(is_enabled=True, is_pending=False)),
        (MIG, card()),
    ],
    ids=["not-asked", "filtered", "filtered-uuid", "on-unasked", "on", "going-off", "no-mig"],
)
def test_mode_of_all_other_cards_is_left_alone(
    desk: Desk, settings: NvidiaSettings, given: Device
) -> None:
    desk.settings = settings
    assert desk.keep(given) == PartsKept()
    assert desk.driver.asked == []


def test_mode_waits_for_whoever_uses_the_card(desk: Desk) -> None:
    desk.holders = None
    assert "not known yet" in desk.waits(OFF)
    desk.holders = (holder(),)
    assert "container c of pod ns/p uses the card" in desk.waits(OFF)
    desk.holders = ()
    assert desk.waits(OFF, hands_off="MIG Manager changes the cards") == (
        "MIG Manager changes the cards"
    )
    desk.driver.pids = frozenset(range(100, 112))
    assert "(100, 101, 102, 103, 104, 105, 106, 107)" in desk.waits(OFF)
    desk.driver.pids = None
    assert "hostPID" in desk.waits(OFF)
    desk.driver.pids = MigError(MigFailure.FAILED, "lost")
    assert "lost" in desk.waits(OFF)
    desk.driver.pids = frozenset()
    assert "lists instances" in desk.waits(divided(0, instance(3, "2g.10gb", 0), is_enabled=False))
    assert desk.driver.asked == []
    assert desk.keep(OFF).next_s is None
    assert desk.driver.asked == [(uuid(0), True)]


def test_holder_of_an_instance_does_not_keep_the_mode_off_after_a_reboot(desk: Desk) -> None:
    """On Hopper the mode is off then, and its container can't start before it is on again."""
    place = MigInstance(profile="1g.5gb", placement=MigPlacement(start=0, size=1))
    desk.holders = (holder(place),)
    desk.keep(OFF)
    assert desk.driver.asked == [(uuid(0), True)]


@shows(
    "G20",
    fault="the driver says IN_USE where MIG mode is switched on, and leaves the change pending",
    happens="the card says who holds it; it is tried again after a minute, then ever more rarely",
    lost="the card, until nobody uses it",
)
def test_refused_change_is_tried_again_ever_more_rarely(desk: Desk) -> None:
    desk.driver.answers = [BUSY] * 20
    kept = desk.keep(OFF)
    assert [note.reason for note in kept.notes] == [NOT_SWITCHED]
    assert BUSY in kept.notes[0].message
    assert desk.keeper.waits() == {uuid(0): BUSY}
    waits = []
    for _ in range(8):
        kept = desk.keep(PENDING)
        assert kept.next_s is not None
        assert kept.notes == (), "said once"
        waits.append(kept.next_s)
        asked = len(desk.driver.asked)
        desk.clock.advance(kept.next_s - 1)
        desk.keep(PENDING)
        assert len(desk.driver.asked) == asked, "nothing before its time"
        desk.clock.advance(1)
        desk.keep(PENDING)
        assert len(desk.driver.asked) == asked + 1
    assert waits == [FIRST_WAIT_S * 2**tries for tries in range(6)] + [LONGEST_WAIT_S * 1.0] * 2
    desk.driver.answers = []
    desk.clock.advance(LONGEST_WAIT_S)
    assert [note.reason for note in desk.keep(PENDING).notes] == [SWITCHED_ON]
    assert desk.keeper.waits() == {}


@shows(
    "G21",
    fault="the daemon has no rights to change MIG mode",
    happens="the card's reason and one Event name the overlay that gives them",
    lost="the card, until the rights or the mode are there",
)
def test_missing_rights_are_said_once(desk: Desk) -> None:
    desk.driver.answers = [MigError(MigFailure.NO_RIGHTS, "apply the overlay for MIG")] * 9
    assert "overlay" in desk.keep(OFF).notes[0].message
    for _ in range(3):
        desk.clock.advance(LONGEST_WAIT_S)
        assert desk.keep(OFF).notes == ()
    assert len(desk.driver.asked) == 4


@shows(
    "G22",
    fault="one card's mode can't be changed",
    happens="the other cards of the node are changed and served",
)
def test_one_card_in_use_costs_only_itself(desk: Desk) -> None:
    desk.driver.answers = [BUSY]
    kept = desk.keep(OFF, divided(1, is_enabled=False), divided(2))
    assert desk.driver.asked == [(uuid(0), True), (uuid(1), True)]
    assert [note.reason for note in kept.notes] == [NOT_SWITCHED, SWITCHED_ON]
    assert desk.keeper.waits() == {uuid(0): BUSY}
