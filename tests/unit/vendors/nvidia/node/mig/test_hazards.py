"""Hazards of MIG nodes that concern the record and the states of instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.vendors.divided import PartState
from hami_node.vendors.nvidia.mig.driver import MigFailure
from hami_node.vendors.nvidia.mig.layout import MigPlacement
from tests.fakes.mig_driver import FakeCard
from tests.fakes.mig_node import MigNode, row
from tests.reliability import shows

CHANGES = ("make", "destroy")


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    return MigNode(tmp_path)


def changes(node: MigNode) -> list[str]:
    """What was called that changes a card."""
    return [call for call in node.driver.calls if call.split()[1].startswith(CHANGES)]


@shows(
    "M5",
    fault="the daemon starts beside MIG instances that others have made, on idle cards too, of "
    "every profile, and beside those of pods that ended meanwhile",
    happens="only what is on its record and nobody holds is destroyed; the others stay, and a card "
    "outside filterdevices is not touched at all",
)
def test_hazard_05_start_destroys_only_what_is_on_record_and_held_by_nobody(tmp_path: Path) -> None:
    node = MigNode(tmp_path, {f"GPU-{i}": FakeCard() for i in range(3)})
    node.serve("gone", row("1g.10gb", 0), row("1g.5gb+me", 2))
    node.serve("stays", row("1g.5gb", 3))
    node.serve("filtered", row("1g.5gb", 0, card="GPU-2"))
    node.driver.add("GPU-0", "1g.5gb", 4)
    node.driver.add_gpu_instance("GPU-0", 19, MigPlacement(start=5, size=1))
    node.driver.add("GPU-1", "7g.40gb", 0)
    node.settings = type(node.settings)(filter_indexes=(2,))
    node.end("gone", "filtered")
    node.restart()
    node.driver.calls.clear()
    node.settle()
    assert node.names("GPU-0") == ["1g.5gb@3", "1g.5gb@4", "1g.5gb@5?"]
    assert node.names("GPU-1") == ["7g.40gb@0"]
    assert node.names("GPU-2") == ["1g.5gb@0"]
    assert not [call for call in node.driver.calls if not call.startswith("GPU-0")]


@shows(
    "M16",
    fault="the node reboots under pods with MIG instances, and all instances are gone",
    happens="an Event on each pod names the remedy, and nothing is made in their place, which a "
    "container that runs can't be given; what is there again under its UUID is its container's",
    lost="containers whose instance is gone: their pods have to be made anew",
)
@pytest.mark.parametrize("is_back", [True, False])
def test_hazard_16_reboot_tells_the_pods_and_makes_nothing(node: MigNode, is_back: bool) -> None:
    node.driver.has_stable_uuids = is_back
    parts = node.serve("a", row("1g.5gb", 6), row("2g.10gb", 0))
    node.serve("b", row("1g.5gb", 4))
    node.reboot()
    assert {kept.state for kept in node.kept()} == {PartState.LOST}
    node.end("b")
    if is_back:
        node.driver.add("GPU-0", "1g.5gb", 6)
        node.driver.add("GPU-0", "2g.10gb", 0)
    node.driver.calls.clear()
    node.settle()
    assert changes(node) == []
    if is_back:
        assert {kept.uuid for kept in node.kept()} == {part.uuid for part in parts}
        assert node.notes == []
    else:
        assert [kept.state for kept in node.kept()] == [PartState.LOST] * 2
        told = [(note.reason, note.pod, note.pod_uid) for note in node.notes]
        assert told == [("MigInstanceGone", "a-name", "a")] * 2
        assert all("delete the pod" in note.message for note in node.notes)
    node.end("a")
    node.settle()
    assert (node.names(), node.kept()) == ([], ())


def test_hazard_16_place_taken_after_the_reboot_is_left_to_whoever_has_it(node: MigNode) -> None:
    node.serve("a", row("2g.10gb", 0))
    node.reboot()
    theirs = node.driver.add("GPU-0", "2g.10gb", 0)
    node.settle()
    assert node.names() == ["2g.10gb@0"]
    assert node.driver.cards["GPU-0"].instances[3] == theirs
    (note,) = node.notes
    assert (note.reason, note.pod) == ("MigInstanceGone", "a-name")
    assert [kept.state for kept in node.kept()] == [PartState.LOST]


@shows(
    "M17",
    fault="an instance is half destroyed (its GPU instance still answers in use), or gone, or MIG "
    "mode is switched off from outside",
    happens="each is a state on record: what is left is destroyed later, what is gone counts as "
    "destroyed, and with the mode off all is gone; other instances of the card come and go",
)
def test_hazard_17_half_destroyed_instance_is_finished_later_and_holds_up_nobody(
    node: MigNode,
) -> None:
    node.serve("a", row("1g.5gb", 0))
    node.driver.cards["GPU-0"].stubborn.add(7)
    node.end("a")
    for _ in range(6):
        node.keep()
        node.restart()
        node.clock.advance(300)
    assert node.names() == ["1g.5gb@0?"]
    node.settle(4)
    assert node.reasons() == ["MigInstanceBusy"]
    assert [kept.state for kept in node.kept()] == [PartState.STALE]
    with pytest.raises(AllocationError):
        node.serve("same", row("1g.5gb", 0))
    node.serve("other", row("1g.5gb", 1))
    node.driver.cards["GPU-0"].stubborn.clear()
    node.clock.advance(600)
    node.settle()
    node.assert_whole()


def test_hazard_17_what_somebody_else_has_destroyed_counts_as_destroyed(node: MigNode) -> None:
    node.serve("a", row("1g.5gb", 0))
    node.serve("b", row("1g.5gb", 1))
    node.serve("c", row("1g.5gb", 2))
    node.driver.remove("GPU-0", 7)
    node.driver.remove_compute_instance("GPU-0", 8)
    node.end("a", "b", "c")
    node.settle()
    assert (node.names(), node.kept(), node.notes) == ([], (), [])


def test_hazard_17_mode_off_from_outside_ends_everything_and_no_process(node: MigNode) -> None:
    node.serve("a", row("1g.5gb", 0))
    node.serve("b", row("1g.5gb", 1))
    node.driver.cards["GPU-0"].is_enabled = False
    node.driver.cards["GPU-0"].instances.clear()
    node.end("a")
    node.driver.calls.clear()
    node.settle()
    assert changes(node) == []
    assert [(kept.pod_uid, kept.state) for kept in node.kept()] == [("b", PartState.LOST)]
    assert node.reasons() == ["MigInstanceGone"]
    with pytest.raises(AllocationError, match="not in MIG mode"):
        node.serve("c", row("1g.5gb", 2))
    node.end("b")
    node.settle()
    assert node.kept() == ()


@shows(
    "G12",
    fault="somebody else destroys an instance of ours and makes one at its place, with its numbers",
    happens="the UUID tells them apart: theirs is left alone, and ours counts as gone",
)
def test_number_that_is_used_again_by_somebody_else_is_theirs(node: MigNode) -> None:
    """Our instance is gone, and theirs has its numbers and its place."""
    node.serve("a", row("1g.5gb", 0))
    node.keep()
    node.driver.remove("GPU-0", 7)
    theirs = node.driver.add("GPU-0", "1g.5gb", 0)
    assert theirs.gpu_instance_id == 7
    node.end("a")
    node.settle()
    assert node.driver.cards["GPU-0"].instances == {7: theirs}
    assert node.kept() == ()


@pytest.mark.parametrize(
    ("call", "pids"), [("make_gi", ()), ("make_gi", (41,)), ("make_ci", (41,))]
)
def test_whole_or_busy_instance_found_after_a_kill_is_not_taken_for_ours(
    node: MigNode, call: str, pids: tuple[int, ...]
) -> None:
    """Somebody else was faster at the very place, while nobody looked."""
    node.driver.fail_next(call, MigFailure.UNANSWERED)
    with pytest.raises(AllocationError):
        node.serve("a", row("1g.5gb", 0))
    node.driver.cards["GPU-0"].instances.clear()
    theirs = node.driver.add("GPU-0", "1g.5gb", 0)
    assert theirs.device is not None
    node.driver.run(theirs.device.uuid, *pids)
    node.restart()
    node.settle()
    node.driver.run(theirs.device.uuid)
    node.settle()
    assert node.names() == ["1g.5gb@0"]
    assert node.kept() == ()


def test_uuid_that_comes_back_after_a_destruction_is_somebody_elses(node: MigNode) -> None:
    """A driver that gives the same UUID to whatever is made at a place."""
    node.driver.has_stable_uuids = True
    node.serve("a", row("1g.5gb", 0))
    node.keep()
    node.end("a")
    node.driver.fail_next("destroy_gi", MigFailure.BUSY)
    node.keep()
    node.driver.remove_gpu_instance("GPU-0", 7)
    theirs = node.driver.add("GPU-0", "1g.5gb", 0)
    node.clock.advance(60)
    node.settle()
    assert node.driver.cards["GPU-0"].instances == {7: theirs}
    assert node.kept() == ()


def test_place_of_an_instance_that_vanished_under_its_container_is_kept_for_it(
    node: MigNode,
) -> None:
    node.driver.has_stable_uuids = True
    node.serve("a", row("1g.5gb", 0))
    node.settle()
    node.driver.cards["GPU-0"].instances.clear()
    node.settle()
    with pytest.raises(
        AllocationError, match=r"is kept for pod work/a-name, whose instance is gone"
    ):
        node.serve("b", row("1g.5gb", 0))
    node.end("a")
    node.settle()
    node.serve("b", row("1g.5gb", 0))
    node.settle()
    assert [(each.pod_uid, each.state) for each in node.kept()] == [("b", PartState.LIVE)]


def test_instance_at_the_place_of_one_that_an_ended_pod_had_is_its_own_pods(node: MigNode) -> None:
    """A driver may give what is made at the same place the same UUID."""
    node.driver.has_stable_uuids = True
    node.serve("a", row("1g.5gb", 0))
    node.settle()
    node.end("a")
    node.driver.cards["GPU-0"].instances.clear()
    node.serve("b", row("1g.5gb", 0))
    node.settle()
    assert node.names() == ["1g.5gb@0"]
    assert [(each.pod_uid, each.state) for each in node.kept()] == [("b", PartState.LIVE)]
