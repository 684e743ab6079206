"""Whose the instances on a card are, by the record and one look, and what a scan shows of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.mig.layout import DriverCard, FoundInstance, MigCard, MigPlacement
from hami_node.vendors.nvidia.node.mig.reconcile import Instance, Owner, State, reconcile
from tests.fakes.mig_cards import A100_40, instance
from tests.fakes.mig_node import MigNode, row

FOUND = instance(3, "2g.10gb", 0)
UUID = "MIG-00000003-0000-5000-8000-000000000000"
HALF = replace(FOUND, device=None, compute_instance_ids=())
BUSY = replace(FOUND, processes=frozenset({7}))
BLIND = replace(FOUND, processes=None)
TWO = replace(FOUND, device=None, compute_instance_ids=(0, 1))


def kept(state: State = State.NAMED, **changes: Any) -> Instance:
    values: dict[str, Any] = {
        "owner": Owner(pod_uid="a", container="main", position=0),
        "card": Uuid("GPU-0"),
        "profile": "2g.10gb",
        "profile_id": FOUND.profile_id,
        "placement": FOUND.placement,
        "state": state,
    }
    named = {"gpu_instance_id": 3, "compute_instance_id": 0, "uuid": UUID, "given": UUID}
    by_state: dict[State, dict[str, Any]] = {
        State.INTENDED: {},
        State.GPU_INSTANCE: {"gpu_instance_id": 3},
        State.NAMED: named,
        State.LOST: {"given": UUID},
    }
    return Instance(**(values | by_state[state] | changes))


BEGUN, DESTROYED = kept(State.GPU_INSTANCE), kept(State.GPU_INSTANCE, given=UUID)
CASES: dict[str, tuple[Instance, FoundInstance | None, State | None, bool]] = {
    "named": (kept(), FOUND, State.NAMED, True),
    "named-and-busy": (kept(), BUSY, State.NAMED, True),
    "named-and-gone": (kept(), None, State.LOST, False),
    "named-and-emptied": (kept(), HALF, State.GPU_INSTANCE, True),
    "number-used-again": (kept(uuid="MIG-other", given="MIG-other"), FOUND, State.LOST, False),
    "another-number": (kept(gpu_instance_id=4), FOUND, State.LOST, False),
    "another-place": (kept(placement=MigPlacement(start=2, size=2)), FOUND, State.LOST, False),
    "cannot-be-told": (kept(), TWO, State.NAMED, True),
    "intended-and-made": (kept(State.INTENDED), HALF, State.GPU_INSTANCE, True),
    "intended-and-nothing": (kept(State.INTENDED), None, None, False),
    "intended-and-whole": (kept(State.INTENDED), FOUND, None, False),
    "begun": (BEGUN, HALF, State.GPU_INSTANCE, True),
    "begun-and-whole": (BEGUN, FOUND, State.GPU_INSTANCE, True),
    "begun-and-blind": (BEGUN, BLIND, State.GPU_INSTANCE, True),
    "begun-and-busy": (BEGUN, BUSY, None, False),
    "destroyed-by-half": (DESTROYED, HALF, State.GPU_INSTANCE, True),
    "destroyed-and-made-anew": (DESTROYED, FOUND, State.LOST, False),
    "lost-and-nothing": (kept(State.LOST), None, State.LOST, False),
    "lost-and-back": (kept(State.LOST), FOUND, State.NAMED, True),
    "lost-and-anothers": (kept(State.LOST, given="MIG-other"), FOUND, State.LOST, False),
}


def look(*found: FoundInstance, **changes: Any) -> MigCard:
    values: dict[str, Any] = {"is_enabled": True, "is_pending": True, "profiles": A100_40}
    return MigCard(instances=found, **(values | changes))


@pytest.mark.parametrize(("entry", "found", "state", "is_ours"), CASES.values(), ids=CASES)
def test_instance_is_ours_only_where_nobody_else_can_have_made_it(
    entry: Instance, found: FoundInstance | None, state: State | None, *, is_ours: bool
) -> None:
    ours, *others = reconcile((entry,), look(*[found] if found else []), lambda _: True)
    assert ours.owner == entry.owner
    assert (ours.instance.state if ours.instance else None) is state
    assert (ours.found is not None) is is_ours
    assert [other.found for other in others] == ([] if is_ours or found is None else [found])


def test_nothing_is_judged_of_a_card_that_cannot_be_read_and_all_is_gone_with_the_mode() -> None:
    (unread,) = reconcile((kept(),), look(problem="NVML says no"), lambda _: True)
    assert (unread.instance, unread.doubt, unread.is_gone) == (kept(), "NVML says no", False)
    off = look(is_enabled=False, is_pending=False)
    (gone,) = reconcile((kept(),), off, lambda _: True)
    assert gone.is_gone
    (over,) = reconcile((kept(),), off, lambda _: False)
    assert not over.is_gone


def test_number_tells_an_instance_where_its_place_may_not_be_known() -> None:
    unplaced = replace(FOUND, placement=MigPlacement())
    (ours,) = reconcile((kept(),), look(unplaced, restriction="no rights"), lambda _: True)
    assert ours.found == unplaced


# -- what a scan shows -----------------------------------------------------------------------------
def marks(node: MigNode, scan: tuple[Device, ...]) -> tuple[set[int], set[int]]:
    """Numbers of instances that are ours, and of those that nobody holds."""
    (card,) = node.keeper.marked(scan)
    assert isinstance(card.detail, DriverCard)
    return set(card.detail.ours), set(card.detail.stale)


def test_scan_that_is_older_than_the_record_makes_nothing_of_ours_a_strangers(
    tmp_path: Path,
) -> None:
    node = MigNode(tmp_path)
    node.serve("a", row("1g.5gb", 0))
    node.driver.add("GPU-0", "1g.5gb", 6)
    before = node.driver.devices()
    assert marks(node, before) == ({7}, set())
    node.end("a")
    node.keep()
    assert node.kept() == ()
    assert marks(node, before) == ({7}, set())
    assert marks(node, node.driver.devices()) == (set(), set())
    node.driver.add("GPU-0", "1g.5gb", 0)
    assert marks(node, node.driver.devices()) == (set(), set()), "it has the number of ours"


def test_scan_marks_what_nobody_holds_and_can_not_be_removed(tmp_path: Path) -> None:
    node = MigNode(tmp_path)
    (part,) = node.serve("a", row("1g.5gb", 0))
    node.driver.run(part.uuid, 41)
    node.held.clear()
    node.keep()
    assert marks(node, node.driver.devices()) == (set(), {7})
