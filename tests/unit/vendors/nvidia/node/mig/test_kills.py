"""kill -9 at every moment: around each call of the driver and each write of the record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from tests.fakes.mig_driver import FakeCard, Killed
from tests.fakes.mig_node import MigNode, row, slot
from tests.reliability import shows

Story = Callable[[MigNode], None]


def come_and_go(node: MigNode) -> None:
    node.serve("a", row("1g.5gb", 0), row("2g.10gb", 2))
    node.keep()
    node.end("a")
    node.keep()
    node.serve("b", row("3g.20gb", 0))


def one_after_the_other(node: MigNode) -> None:
    node.serve("a", row("2g.10gb", 0))
    node.keep()
    node.end("a")
    node.serve("b", row("1g.5gb", 1))
    node.keep()


def by_geometry(node: MigNode) -> None:
    node.serve("a", slot(1, 3, 5120))
    node.serve("b", slot(1, 0, 10240))
    node.keep()
    node.end("a", "b")
    node.serve("c", slot(2, 0, 20480))
    node.keep()


def stubborn(node: MigNode) -> None:
    node.serve("a", row("1g.5gb", 0))
    node.keep()
    node.driver.cards["GPU-0"].stubborn.add(7)
    node.end("a")
    node.keep()
    node.driver.cards["GPU-0"].stubborn.clear()
    node.clock.advance(60)
    node.keep()


def rebooted(node: MigNode) -> None:
    node.serve("a", row("1g.5gb", 0))
    node.serve("b", row("2g.10gb", 2))
    node.keep()
    foreign = node.driver.cards["GPU-0"].instances.pop(13)
    node.reboot()
    node.driver.cards["GPU-0"].instances[13] = foreign
    node.end("b")
    node.keep()


STORIES = (come_and_go, one_after_the_other, by_geometry, stubborn, rebooted)


def told(folder: Path, story: Story, kill_at: int | None) -> tuple[MigNode, str]:
    """The story up to the kill, which a new process then finds; and the foreign instance in it."""
    node = MigNode(folder, {"GPU-0": FakeCard(), "GPU-1": FakeCard()})
    theirs = node.driver.add("GPU-0", "1g.5gb", 6)
    node.driver.add("GPU-1", "7g.40gb", 0)
    node.fate.count, node.fate.at = 0, kill_at
    try:
        story(node)
    except Killed:
        node.driver.cards["GPU-0"].stubborn.clear()
        node.restart()
    assert theirs.device is not None
    return node, theirs.device.uuid


@shows(
    "G10",
    fault="kill -9 at any moment while MIG instances are made, handed over and destroyed, also "
    "while the next daemon mends what the last one left",
    happens="what was begun is finished or undone: what living pods were answered is there, beside "
    "what others have made, and nothing else",
)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_kill_at_any_moment_leaves_no_lost_and_touches_no_foreign_instance(
    tmp_path: Path, story: Story
) -> None:
    whole, _ = told(tmp_path, story, None)
    moments = whole.fate.count
    assert moments > 10
    for kill_at in range(1, moments + 1):
        node, theirs = told(tmp_path, story, kill_at)
        node.settle()
        is_rebooted = "boot-2" in node.boot_id.read_text()
        if is_rebooted:
            assert_rebooted(node, theirs)
        else:
            node.assert_whole(theirs, "MIG-00001002-GPU-1")
        node.serve("next", row("1g.5gb", 5))
        node.settle()
        node.end(*node.held)
        node.settle()
        assert node.names() == ["1g.5gb@6"], kill_at
        assert node.names("GPU-1") == ([] if is_rebooted else ["7g.40gb@0"])
        assert node.kept() == ()


def assert_rebooted(node: MigNode, theirs: str) -> None:
    """What a living pod had is there again, though under another UUID."""
    assert {kept.pod_uid for kept in node.kept()} == set(node.held)
    assert len(node.names()) == 1 + len(node.held)
    assert theirs in {
        each.device.uuid for each in node.driver.cards["GPU-0"].instances.values() if each.device
    }


def test_kill_during_the_recovery_from_a_kill_changes_nothing(tmp_path: Path) -> None:
    moments = told(tmp_path, come_and_go, None)[0].fate.count
    for kill_at in range(1, moments + 1):
        for again_at in range(1, 13):
            node, theirs = told(tmp_path, come_and_go, kill_at)
            node.fate.count, node.fate.at = 0, again_at
            try:
                node.keep()
            except Killed:
                node.restart()
            node.fate.at = None
            node.settle()
            node.assert_whole(theirs, "MIG-00001002-GPU-1")


@shows(
    "G11",
    fault="the record of MIG instances can't be written, from any write on",
    happens="nothing is made or destroyed without its intent on record; what was made is undone "
    "once the record can be written, or by the next daemon",
    lost="containers that ask meanwhile: each is refused with the reason",
)
@pytest.mark.parametrize("story", STORIES[:4], ids=lambda story: story.__name__)
def test_full_disk_at_any_write_leaves_nothing_behind(tmp_path: Path, story: Story) -> None:
    """A record that can't be written refuses, and never loses what was made."""
    for full_from in range(24):
        node = MigNode(tmp_path)
        theirs = node.driver.add("GPU-0", "1g.5gb", 6)
        writes = iter(range(1000))
        save = node.record.save

        def filling(payload: bytes) -> None:
            node.record.is_full = next(writes) >= full_from  # noqa: B023
            save(payload)  # noqa: B023

        node.keeper._desk.record._record = type(  # the disk is full from that write on
            "Filling", (), {"save": staticmethod(filling), "load": node.record.load}
        )()
        with contextlib.suppress(AllocationError):
            story(node)
        node.record.is_full = False
        node.restart()
        node.settle()
        assert theirs.device is not None
        node.assert_whole(theirs.device.uuid)
