"""What can't be made, and what people are told: why, by whom, and what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Grant
from hami_node.vendors.divided import PartState
from hami_node.vendors.nvidia.mig.driver import MigFailure
from tests.fakes.mig_driver import FakeCard
from tests.fakes.mig_node import MigNode, row, slot
from tests.reliability import shows


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    return MigNode(tmp_path)


def changes(node: MigNode) -> list[str]:
    return [call for call in node.driver.calls if "make" in call or "destroy" in call]


# -- what is in the way ----------------------------------------------------------------------------
@shows(
    "M3",
    fault="a pod is gone, its process is not, and a new pod is to have the same place at once",
    happens="the new pod is refused and told of the process; with no process left it gets an "
    "instance of its own, under another UUID",
)
def test_busy_instance_of_an_ended_pod_blocks_its_own_place_only(node: MigNode) -> None:
    (part,) = node.serve("a", row("2g.10gb", 0))
    node.keep()
    node.end("a")
    node.driver.run(part.uuid, 41, 42)
    with pytest.raises(
        AllocationError, match=r"work/a-name.*processes 41, 42 are still on it: end"
    ):
        node.serve("b", row("1g.5gb", 1))
    node.serve("c", row("1g.5gb", 2))
    for _ in range(4):
        node.keep()
        node.clock.advance(10)
    assert node.reasons() == ["MigInstanceBusy"]
    assert "41, 42" in node.notes[0].message
    (stale,) = [kept for kept in node.kept() if kept.pod_uid == "a"]
    assert stale.state is PartState.STALE
    assert "41, 42" in stale.why
    node.driver.run(part.uuid)
    (new,) = node.serve("d", row("2g.10gb", 0))
    assert new.uuid != part.uuid
    node.settle()
    node.assert_whole()


@shows(
    "M1",
    fault="a process is left on the instance of a pod that is gone, and the daemon can't see it",
    happens="the driver refuses to destroy it: it stays, with an Event, until the process ends",
)
def test_instance_whose_processes_cannot_be_seen_stays_while_the_driver_says_so(
    node: MigNode,
) -> None:
    (part,) = node.serve("a", row("2g.10gb", 0))
    node.keep()
    node.end("a")
    node.driver.run(part.uuid, 41)
    node.driver.cards["GPU-0"].is_unreadable = True
    for _ in range(4):
        node.keep()
        node.clock.advance(10)
    with pytest.raises(AllocationError, match="still in use"):
        node.serve("b", row("2g.10gb", 0))
    assert node.names() == ["2g.10gb@0"]
    assert node.reasons() == ["MigInstanceBusy"]
    node.driver.run(part.uuid)
    node.clock.advance(300)
    node.settle()
    assert node.names() == []


def test_place_of_a_living_pod_is_refused_and_named(node: MigNode) -> None:
    node.serve("a", row("2g.10gb", 0))
    node.keep()
    with pytest.raises(AllocationError, match="was made for pod work/a-name, which has not ended"):
        node.serve("b", row("1g.5gb", 1))
    node.settle()
    node.assert_whole()


# -- what is asked for -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("grant", "said"),
    [
        (row("1g.5gb", 0, memory_mib=4900), r"4864 MiB with this driver.*says 4900"),
        (row("1g.99gb", 0), "no MIG profile"),
        (row("2g.10gb", 1), "can't be at"),
        (row("2g.10gb", 6), "can't be at"),
        (slot(4, 0, 5120), "no geometry 4"),
        (slot(1, 4, 5120), "no instance of 5120 MiB at slot 4"),
        (slot(0, 0, 5000), "no instance of 5000 MiB at slot 0"),
        (replace(row("1g.5gb", 0), part=None), "names no instance"),
    ],
)
def test_instance_that_the_card_does_not_have_is_refused(
    node: MigNode, grant: Grant, said: str
) -> None:
    with pytest.raises(AllocationError, match=said):
        node.serve("a", grant)
    assert changes(node) == []


@pytest.mark.parametrize(
    ("asked", "is_told"),
    [({"nvidia.com/gpumem": "4864"}, False), ({"nvidia.com/gpumem": "5000"}, True)],
)
def test_pod_that_asks_for_more_than_the_instance_has_is_served_and_told(
    node: MigNode, asked: dict[str, str], *, is_told: bool
) -> None:
    """As HAMi 2.5 to 2.9 do: their scheduler knows only the text's 5120."""
    node.ask("a", slot(0, 0, 5120), limits={"nvidia.com/gpu": "1", **asked})
    node.settle()
    assert node.reasons() == ["MigInstanceSmaller"] * is_told
    assert all("4864 MiB" in note.message for note in node.notes)


def test_container_whose_reservation_has_changed_gets_the_new_place(tmp_path: Path) -> None:
    node = MigNode(tmp_path, {"GPU-0": FakeCard(), "GPU-1": FakeCard()})
    node.serve("a", row("1g.5gb", 0))
    node.serve("a", row("1g.5gb", 1))
    assert node.names() == ["1g.5gb@1"]
    node.serve("a", row("1g.5gb", 1, card="GPU-1"))
    assert (node.names(), node.names("GPU-1")) == ([], ["1g.5gb@1"])
    node.settle()
    node.assert_whole()


@shows(
    "M18",
    fault="the instance of a pod's first container is made, that of the second can't be",
    happens="the pod is refused with the reason; the first one's instance goes once the pod has "
    "failed, and not before",
)
def test_second_container_that_is_refused_leaves_the_first_its_instance_until_the_pod_ends(
    node: MigNode,
) -> None:
    node.ask("a", row("1g.5gb", 0))
    node.driver.add("GPU-0", "1g.5gb", 1)
    with pytest.raises(AllocationError, match="made by somebody else"):
        node.ask("a", row("1g.5gb", 1), container="second")
    node.settle()
    assert node.names() == ["1g.5gb@0", "1g.5gb@1"]
    node.end("a")
    node.settle()
    assert node.names() == ["1g.5gb@1"]


# -- the driver ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "reason", "said"),
    [
        pytest.param(
            "make_gi", MigFailure.NO_RIGHTS, r"overlay for MIG \(docs/mig.md\)", id="no-rights"
        ),
        pytest.param("make_gi", MigFailure.NO_ROOM, "finds no room", id="no-room"),
        pytest.param("make_ci", MigFailure.UNANSWERED, "in time", id="slow"),
    ],
)
def test_reason_of_the_driver_is_told(
    node: MigNode, call: str, reason: MigFailure, said: str
) -> None:
    node.driver.fail_next(call, reason)
    with pytest.raises(AllocationError, match=said):
        node.serve("a", row("1g.5gb", 0))
    node.settle()
    assert node.kept() == ()


def test_card_that_cannot_be_read_is_refused_and_nothing_of_it_is_judged(node: MigNode) -> None:
    node.serve("a", row("1g.5gb", 0))
    node.driver.cards["GPU-0"].problem = "profile 3 is impossible"
    node.end("a")
    node.settle()
    with pytest.raises(AllocationError, match="profile 3 is impossible"):
        node.serve("b", row("1g.5gb", 1))
    assert len(node.kept()) == 1
    node.driver.cards["GPU-0"].problem = ""
    node.clock.advance(300)
    node.settle()
    node.assert_whole()


def test_record_that_cannot_be_written_refuses_before_anything_is_made(node: MigNode) -> None:
    node.record.is_full = True
    with pytest.raises(AllocationError, match=r"without its record.*no space left"):
        node.serve("a", row("1g.5gb", 0))
    assert (changes(node), node.kept()) == ([], ())
