"""MIG mode is switched on once, as the daemon starts, on cards that nobody uses; never else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.model import Grant, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.driver import MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import DriverCard
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import MadePart
from tests.fakes.mig_cards import MIG
from tests.fakes.mig_driver import FakeCard
from tests.fakes.mig_node import MigNode, Served, row
from tests.reliability import shows

BUSY = "processes 4711 still use the card: end them"
WAITS = "MigModeWaits"


def node_of(folder: Path, *cards: FakeCard) -> MigNode:
    made = cards or (FakeCard(is_enabled=False),)
    node = MigNode(folder, {f"GPU-{number}": card for number, card in enumerate(made)})
    node.settings = MIG
    return node


def switched(node: MigNode) -> list[str]:
    return [call.split()[0] for call in node.driver.calls if "set_mode" in call]


def share(card: str) -> Served:
    grant = Grant(uuid=Uuid(card), vendor=NVIDIA, memory_mib=1, cores=0)
    return Served(grants=(grant,), parts=())


def waits_for(node: MigNode) -> str:
    """Why the first card has not the mode, as the next scan carries it on."""
    (card,) = node.keeper.marked(node.driver.devices()[:1])
    assert isinstance(card.detail, DriverCard)
    return card.detail.waits_for


def test_mode_is_switched_on_where_it_is_asked_for_and_nobody_is_there(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    node.keep()
    node.keep()
    assert switched(node) == ["GPU-0"]
    assert node.reasons() == ["MigModeOn"]
    assert node.driver.cards["GPU-0"].is_enabled
    assert waits_for(node) == ""


@pytest.mark.parametrize(
    ("settings", "is_enabled"),
    [
        (NvidiaSettings(), False),
        (NvidiaSettings(operating_mode=Mode.MIG, filter_indexes=(0,)), False),
        (NvidiaSettings(operating_mode=Mode.MIG, filter_uuids=("GPU-0",)), False),
        (NvidiaSettings(), True),
        (MIG, True),
    ],
    ids=["not-asked", "filtered", "filtered-uuid", "on-unasked", "on"],
)
def test_mode_of_all_other_cards_is_left_alone(
    tmp_path: Path, settings: NvidiaSettings, *, is_enabled: bool
) -> None:
    node = node_of(tmp_path, FakeCard(is_enabled=is_enabled))
    node.settings = settings
    node.keep()
    assert (switched(node), node.notes) == ([], [])


def test_mode_that_is_switched_off_while_the_daemon_runs_stays_off(tmp_path: Path) -> None:
    node = node_of(tmp_path, FakeCard())
    node.keep()
    node.driver.cards["GPU-0"].is_enabled = False
    node.settle()
    assert (switched(node), node.notes) == ([], [])
    node.restart()
    node.keep()
    assert switched(node) == ["GPU-0"]


def test_nothing_is_switched_before_it_is_known_who_uses_the_cards(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    unknown = type(node.situation())()
    assert node.keep(unknown) == ()
    node.keep()
    assert switched(node) == ["GPU-0"]


@pytest.mark.parametrize(
    ("pids", "said"),
    [
        (frozenset(range(100, 112)), "processes 100, 101, 102, 103, 104, 105, 106, 107 and 4 more"),
        (None, "hostPID"),
        (MigError(MigFailure.FAILED, "lost"), "lost"),
    ],
    ids=["processes", "unseen", "unread"],
)
def test_card_that_somebody_uses_is_left_as_it_is(
    tmp_path: Path, pids: frozenset[int] | MigError | None, said: str
) -> None:
    node = node_of(tmp_path)
    node.driver.pids = pids
    for _ in range(3):
        node.keep()
    assert switched(node) == []
    assert node.reasons() == [WAITS]
    assert said in node.notes[0].message
    assert said in waits_for(node)


def test_container_with_a_share_keeps_the_mode_off_and_one_with_an_instance_does_not(
    tmp_path: Path,
) -> None:
    """On Hopper the mode is off after a reboot, which has taken the instance along."""
    node = node_of(tmp_path, FakeCard(is_enabled=False), FakeCard(is_enabled=False))
    part = MadePart(uuid="MIG-1", numbers=(7, 0))
    node.held["a"] = {"main": share("GPU-0")}
    node.held["b"] = {"main": Served(grants=(row("1g.5gb", 0, card="GPU-1"),), parts=(part,))}
    node.keep()
    assert switched(node) == ["GPU-1"]
    assert "container main of pod work/a-name uses the card" in waits_for(node)


@shows(
    "G20",
    fault="the driver says IN_USE where MIG mode is switched on, and leaves the change pending",
    happens="the card is unhealthy and says who holds it; it is not tried again by this daemon",
    lost="the card, until it is reset or the mode is switched on by hand",
)
def test_refused_change_is_not_tried_again(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    node.driver.mode_answers = [BUSY]
    for _ in range(3):
        node.keep()
        node.clock.advance(3600)
    assert switched(node) == ["GPU-0"]
    assert node.reasons() == [WAITS]
    assert waits_for(node) == BUSY
    assert node.keeper.state().waits == {"GPU-0": BUSY}
    node.driver.cards["GPU-0"].is_enabled = True  # by hand
    node.keep()
    assert waits_for(node) == ""


@shows(
    "G21",
    fault="the daemon has no rights to change MIG mode",
    happens="the card's reason and one Event name the overlay that gives them",
    lost="the card, until the rights or the mode are there",
)
def test_missing_rights_are_said_once(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    node.driver.mode_answers = [MigError(MigFailure.NO_RIGHTS, "apply the overlay for MIG")]
    for _ in range(3):
        node.keep()
    assert node.reasons() == [WAITS]
    assert "overlay" in node.notes[0].message
    assert "overlay" in waits_for(node)


@shows(
    "G22",
    fault="one card's mode can't be changed",
    happens="the other cards of the node are changed and served",
)
def test_one_card_in_use_costs_only_itself(tmp_path: Path) -> None:
    node = node_of(tmp_path, FakeCard(is_enabled=False), FakeCard(is_enabled=False), FakeCard())
    node.driver.mode_answers = [BUSY]
    node.keep()
    assert switched(node) == ["GPU-0", "GPU-1"]
    assert node.reasons() == [WAITS, "MigModeOn"]
    node.serve("a", row("1g.5gb", 0, card="GPU-1"))
    node.serve("b", row("1g.5gb", 0, card="GPU-2"))


def test_mode_that_is_asked_for_by_a_later_reload_is_not_switched(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    node.settings = NvidiaSettings()
    node.settle()
    node.settings = MIG
    node.settle()
    assert switched(node) == []
    node.may_switch = False  # made only then: nothing was to be divided as the daemon started
    node.restart()
    node.settle()
    assert switched(node) == []
    node.may_switch = True
    node.restart()
    node.settle()
    assert switched(node) == ["GPU-0"]
