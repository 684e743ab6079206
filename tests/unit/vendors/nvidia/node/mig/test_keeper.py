"""Instances of a node: made when asked for, kept while held, destroyed after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from tests.fakes.mig_driver import FakeCard
from tests.fakes.mig_node import MigNode, row, slot


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    return MigNode(tmp_path)


def test_grant_with_a_place_is_made_exactly_there(node: MigNode) -> None:
    (part,) = node.serve("a", row("2g.10gb", 4, memory_mib=9856))
    assert node.names() == ["2g.10gb@4"]
    assert part.numbers == (5, 0)
    assert part.uuid == node.driver.cards["GPU-0"].instances[5].device.uuid  # type: ignore[union-attr]


def test_second_call_for_the_same_container_gets_the_same_instance(node: MigNode) -> None:
    first = node.serve("a", row("1g.5gb", 3))
    calls = [call for call in node.driver.calls if "make" in call]
    assert node.serve("a", row("1g.5gb", 3)) == first
    assert [call for call in node.driver.calls if "make" in call] == calls


def test_instance_goes_when_its_pod_has_ended_and_stays_until_then(node: MigNode) -> None:
    node.serve("a", row("1g.5gb", 0), row("1g.5gb", 2))
    node.serve("a", row("3g.20gb", 4), container="second")
    node.serve("b", row("1g.5gb", 1))
    assert node.names() == ["1g.5gb@0", "1g.5gb@1", "1g.5gb@2", "3g.20gb@4"]
    node.settle()
    node.assert_whole()
    node.end("a")
    node.settle()
    node.assert_whole()
    assert node.names() == ["1g.5gb@1"]


def test_nothing_is_destroyed_while_it_is_not_known_who_holds_what(node: MigNode) -> None:
    node.serve("a", row("1g.5gb", 0))
    node.end("a")
    node.restart()
    for _ in range(3):
        situation = node.situation()
        node.keep(type(situation)(holders=None, is_held=situation.is_held))
    assert node.names() == ["1g.5gb@0"]
    node.settle()
    assert node.names() == []


def test_place_of_a_pod_that_has_just_ended_is_cleared_for_the_next(node: MigNode) -> None:
    (old,) = node.serve("a", row("2g.10gb", 0))
    node.keep()
    node.end("a")
    (new,) = node.serve("b", row("2g.10gb", 0))
    assert new.uuid != old.uuid
    node.settle()
    node.assert_whole()


def test_geometry_slots_get_the_profile_of_their_name(node: MigNode) -> None:
    node.serve("a", slot(1, 3, 5120))
    node.serve("b", slot(1, 0, 10240))
    node.serve("c", slot(1, 1, 10240))
    node.serve("d", slot(1, 2, 10240))
    assert sorted(name.split("@")[0] for name in node.names()) == ["1g.5gb"] + ["2g.10gb"] * 3


def test_card_in_mig_mode_without_instance_in_the_reservation_is_refused(node: MigNode) -> None:
    with pytest.raises(AllocationError, match="names no instance"):
        node.serve("a", replace(row("1g.5gb", 0), part=None))
    assert node.names() == []


def test_card_outside_the_managed_set_is_never_touched(tmp_path: Path) -> None:
    node = MigNode(tmp_path, {"GPU-0": FakeCard(), "GPU-1": FakeCard()})
    node.serve("a", row("1g.5gb", 0, card="GPU-1"))
    node.end("a")
    node.settings = type(node.settings)(filter_uuids=("GPU-1",))
    node.driver.calls.clear()
    node.settle()
    with pytest.raises(AllocationError, match="does not offer"):
        node.serve("b", row("1g.5gb", 1, card="GPU-1"))
    assert node.driver.calls == []


def test_foreign_instance_in_the_way_is_named_and_left(node: MigNode) -> None:
    theirs = node.driver.add("GPU-0", "2g.10gb", 0)
    with pytest.raises(AllocationError, match=r"made by somebody else.*-gi 3") as refused:
        node.serve("a", row("1g.5gb", 1))
    assert theirs.device is not None
    assert theirs.device.uuid in str(refused.value)
    node.serve("b", row("1g.5gb", 2))
    node.settle()
    node.assert_whole(theirs.device.uuid)


def test_pass_without_instances_asks_the_driver_nothing(node: MigNode) -> None:
    node.settle()
    assert (node.driver.calls, node.next_s, node.record.payload) == ([], None, None)


def test_pass_with_settled_instances_asks_the_driver_nothing(node: MigNode) -> None:
    node.serve("a", row("1g.5gb", 0))
    node.settle(2)
    node.driver.calls.clear()
    node.settle()
    assert node.driver.calls == []
