"""Instances of a node: made when asked for, kept while held, destroyed after."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from tests.fakes.mig_driver import FakeCard
from tests.fakes.mig_node import MigNode, row


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
