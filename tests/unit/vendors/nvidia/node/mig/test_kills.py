"""kill -9, failing calls and a full disk, at every call of the driver and every write in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from hami_node.errors import AllocationError
from hami_node.vendors.divided import PartState
from hami_node.vendors.nvidia.mig.driver import MigFailure
from tests.fakes.mig_driver import FakeCard, Killed
from tests.fakes.mig_node import MigNode, row, slot
from tests.reliability import shows

Step = Callable[[MigNode], object]


def make_stubborn(node: MigNode) -> None:
    node.driver.cards["GPU-0"].stubborn.add(7)


def make_yielding(node: MigNode) -> None:
    node.driver.cards["GPU-0"].stubborn.clear()
    node.clock.advance(60)


def reboot(node: MigNode) -> None:
    """Only what somebody else has made is there again, as by a script at the start."""
    foreign = node.driver.cards["GPU-0"].instances.pop(13)
    node.reboot()
    node.driver.cards["GPU-0"].instances[13] = foreign


STORIES: Final[dict[str, tuple[Step, ...]]] = {
    "come-and-go": (
        lambda node: node.serve("a", row("1g.5gb", 0), row("2g.10gb", 2)),
        MigNode.keep,
        lambda node: node.end("a"),
        MigNode.keep,
        lambda node: node.serve("b", row("3g.20gb", 0)),
    ),
    "one-after-the-other": (
        lambda node: node.serve("a", row("2g.10gb", 0)),
        MigNode.keep,
        lambda node: node.end("a"),
        lambda node: node.serve("b", row("1g.5gb", 1)),
        MigNode.keep,
    ),
    "by-geometry": (
        lambda node: node.serve("a", slot(1, 3, 5120)),
        lambda node: node.serve("b", slot(1, 0, 10240)),
        MigNode.keep,
        lambda node: node.end("a", "b"),
        lambda node: node.serve("c", slot(2, 0, 20480)),
        MigNode.keep,
    ),
    "stubborn": (
        lambda node: node.serve("a", row("1g.5gb", 0)),
        MigNode.keep,
        make_stubborn,
        lambda node: node.end("a"),
        MigNode.keep,
        make_yielding,
        MigNode.keep,
    ),
    "rebooted": (
        lambda node: node.serve("a", row("1g.5gb", 0)),
        lambda node: node.serve("b", row("2g.10gb", 2)),
        MigNode.keep,
        reboot,
        lambda node: node.end("b"),
        MigNode.keep,
    ),
}
stories = pytest.mark.parametrize("story", STORIES)


class Told:
    """A node on which a story is told, with instances of others on both of its cards."""

    def __init__(self, folder: Path, story: str) -> None:
        self.node = MigNode(folder, {"GPU-0": FakeCard(), "GPU-1": FakeCard()})
        theirs = [self.node.driver.add("GPU-0", "1g.5gb", 6)]
        theirs.append(self.node.driver.add("GPU-1", "7g.40gb", 0))
        self.theirs = [found.device.uuid for found in theirs if found.device]
        self.story = story

    def tell(self, kill_at: int | None = None) -> MigNode:
        """Up to the kill, after which a new process goes on; refusals do not end it."""
        node = self.node
        node.fate.count, node.fate.at = 0, kill_at
        try:
            for step in STORIES[self.story]:
                with contextlib.suppress(AllocationError):
                    step(node)
        except Killed:
            node.driver.cards["GPU-0"].stubborn.clear()
            node.restart()
        return node

    def check(self, where: object) -> None:
        """What living pods were answered is there, beside what others made, and nothing else."""
        node = self.node
        node.settle()
        is_rebooted = "boot-2" in node.boot_id.read_text()
        if is_rebooted:  # then what a living pod had is gone, and stays so
            assert {kept.pod_uid for kept in node.kept()} == set(node.held), where
            whole = [kept for kept in node.kept() if kept.state is not PartState.LOST]
            assert len(node.names()) == 1 + len(whole), where
        else:
            node.assert_whole(*self.theirs)
        node.serve("next", row("1g.5gb", 5))
        node.settle(4)
        node.end(*node.held)
        node.settle()
        assert node.names() == ["1g.5gb@6"], where
        assert node.names("GPU-1") == ([] if is_rebooted else ["7g.40gb@0"]), where
        found = node.driver.cards["GPU-0"].instances[13].device
        assert found, where
        assert found.uuid == self.theirs[0], where
        assert node.kept() == (), where


@shows(
    "G10",
    fault="kill -9 at any moment while MIG instances are made, handed over and destroyed, also "
    "while the next daemon mends what the last one left",
    happens="what was begun is finished or undone: what living pods were answered is there, beside "
    "what others have made, and nothing else",
)
@stories
def test_kill_at_any_moment_leaves_no_lost_and_touches_no_foreign_instance(
    tmp_path: Path, story: str
) -> None:
    moments = Told(tmp_path, story).tell().fate.count
    assert moments > 10
    for kill_at in range(1, moments + 1):
        told = Told(tmp_path, story)
        told.tell(kill_at)
        told.check(kill_at)


def test_kill_during_the_recovery_from_a_kill_changes_nothing(tmp_path: Path) -> None:
    moments = Told(tmp_path, "come-and-go").tell().fate.count
    for kill_at in range(1, moments + 1):
        for again_at in range(1, 13):
            told = Told(tmp_path, "come-and-go")
            node = told.tell(kill_at)
            node.fate.count, node.fate.at = 0, again_at
            try:
                node.keep()
            except Killed:
                node.restart()
            node.fate.at = None
            node.settle(4)
            node.assert_whole(*told.theirs)


failures = pytest.mark.parametrize(
    ("reason", "is_done"),
    [
        pytest.param(MigFailure.UNANSWERED, False, id="never-done"),
        pytest.param(MigFailure.UNANSWERED, True, id="done-late"),
        pytest.param(MigFailure.FAILED, False, id="failed"),
        pytest.param(MigFailure.FAILED, True, id="done-and-failed"),
        pytest.param(MigFailure.NO_RIGHTS, False, id="no-rights"),
        pytest.param(MigFailure.BUSY, False, id="busy"),
        pytest.param(MigFailure.NO_ROOM, False, id="no-room"),
    ],
)
"""GONE is left out: it says that something has happened."""


def check_failures(folder: Path, story: str, times: int, reason: MigFailure, is_done: bool) -> None:
    """So many calls in a row fail, from each call of the story on."""
    for first in count(1):
        told = Told(folder, story)
        driver = told.node.driver
        driver.is_late = driver.is_done = is_done
        driver.failing = dict.fromkeys(range(first, first + times), reason)
        node = told.tell()
        if len(driver.calls) < first:
            break
        if story != "rebooted":  # the next process counts anew
            assert sum(node.keeper.state().failures.values()) >= 1
        driver.failing = {}
        driver.return_late()
        node.clock.advance(300)
        told.check(first)


@shows(
    "G3",
    fault="any of the driver's calls about a MIG instance fails or is never answered, before or "
    "after it has done its work, in a daemon that goes on",
    happens="the pod has its instance or is refused with the reason; hardware and record agree in "
    "the end, instances of others and of living pods are as they were",
)
@stories
@failures
def test_any_call_may_fail_once_and_hardware_and_record_agree_in_the_end(
    tmp_path: Path, story: str, reason: MigFailure, *, is_done: bool
) -> None:
    check_failures(tmp_path, story, 1, reason, is_done)


@shows(
    "G8",
    fault="the driver's calls about MIG instances are refused for a while, with any reason",
    happens="the container is refused with the reason; what was begun is undone, at once or later; "
    "what is to go is tried again after growing pauses",
)
@failures
def test_calls_that_fail_for_a_while_are_undone_or_tried_again(
    tmp_path: Path, reason: MigFailure, *, is_done: bool
) -> None:
    check_failures(tmp_path, "come-and-go", 3, reason, is_done)


@shows(
    "G11",
    fault="the record of MIG instances can't be written, from any write on",
    happens="nothing is made without its intent on record, nor destroyed that is not on it; what "
    "was made is undone once the record can be written, or by the next daemon",
    lost="containers that ask meanwhile: each is refused with the reason",
)
@stories
def test_full_disk_at_any_write_leaves_nothing_behind(tmp_path: Path, story: str) -> None:
    for full_from in count(1):
        told = Told(tmp_path, story)
        record = told.node.record
        record.full_from = full_from
        node = told.tell()
        if record.writes < full_from:
            break
        record.full_from = None
        node.restart()
        told.check(full_from)
