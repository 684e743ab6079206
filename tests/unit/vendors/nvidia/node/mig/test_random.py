"""Pods, kills, faults, reboots and other people's instances in any order; then all is as it should.

Nothing of ours is left that nobody holds, nothing of others is touched, nobody has another's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hami_node.errors import AllocationError
from hami_node.model import Grant
from hami_node.vendors.nvidia.mig.driver import MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import FoundInstance, MigInstance, MigPlacement
from tests.fakes.mig_cards import A100_40
from tests.fakes.mig_driver import FakeCard, Killed
from tests.fakes.mig_node import MigNode, row, slot

PLACES = [
    (kind.name, place.start)
    for kind in A100_40
    for place in kind.placements
    if kind.name in ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb")
]
FAULTS = [reason for reason in MigFailure if reason is not MigFailure.GONE]
"""What a driver may answer though it is not so; GONE says that something has happened."""
CALLS = ("look", "make_gi", "make_ci", "destroy_ci", "destroy_gi")


class Node(RuleBasedStateMachine):
    """One card; the scheduler gives no place twice, though others may be on it."""

    is_blind = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        card = FakeCard(is_unreadable=self.is_blind)
        self.node = MigNode(Path(self.folder.name), {"GPU-0": card})
        self.node.has_answers = True
        self.foreign: dict[int, FoundInstance] = {}
        self.told: dict[str, str] = {}
        self.pods = 0

    def teardown(self) -> None:
        self.finish()
        self.folder.cleanup()

    # -- what happens ------------------------------------------------------------------------------
    def _grants(self) -> list[Grant]:
        return [
            grant
            for containers in self.node.held.values()
            for served in containers.values()
            for grant in served.grants
        ]

    @rule(at=st.sampled_from(PLACES), kill_at=st.none() | st.integers(1, 16))
    def pod_with_a_place(self, at: tuple[str, int], kill_at: int | None) -> None:
        grant = row(*at)
        assert isinstance(grant.part, MigInstance)
        parts = [each.part for each in self._grants()]
        if any(
            isinstance(part, MigInstance) and part.placement.overlaps(grant.part.placement)
            for part in parts
        ):
            return
        self._serve(grant, kill_at)

    @rule(at=st.integers(0, 3), kill_at=st.none() | st.integers(1, 16))
    def pod_with_a_slot(self, at: int, kill_at: int | None) -> None:
        self._serve(slot(1, at, 5120 if at == 3 else 10240), kill_at)

    def _serve(self, grant: Grant, kill_at: int | None) -> None:
        self.pods += 1
        pod = f"pod-{self.pods}"
        self._doomed(kill_at)
        try:
            (part,) = self.node.serve(pod, grant)
        except AllocationError:
            pass
        except Killed:
            self.node.restart()
        else:
            assert part.uuid not in self.told, "an instance was handed out twice"
            self.told[part.uuid] = pod
            self.node.write_rows(pod)
        self._doomed(None)

    def _doomed(self, kill_at: int | None) -> None:
        self.node.fate.count, self.node.fate.at = 0, kill_at

    @rule(number=st.integers(0, 30), pids=st.sampled_from([(), (7,), (7, 8)]))
    def pod_ends(self, number: int, pids: tuple[int, ...]) -> None:
        """Its processes may outlive it."""
        if not self.node.held:
            return
        pod = sorted(self.node.held)[number % len(self.node.held)]
        uuids = [part.uuid for part in self.node.held[pod]["main"].parts]
        self.node.end(pod)
        for uuid in uuids:
            if self.node.find(uuid) is not None:
                self.node.driver.run(uuid, *pids)

    @rule(kill_at=st.none() | st.integers(1, 16), wait_s=st.sampled_from([0, 3, 70, 700]))
    def keeper_looks_after_them(self, kill_at: int | None, wait_s: int) -> None:
        self.node.clock.advance(wait_s)
        self._doomed(kill_at)
        try:
            self.node.keep()
        except Killed:
            self.node.restart()
        self._doomed(None)

    @rule(call=st.sampled_from(CALLS), reason=st.sampled_from(FAULTS), is_late=st.booleans())
    def driver_will_fail(self, call: str, reason: MigFailure, is_late: bool) -> None:
        self.node.driver.is_late = self.node.driver.is_done = is_late
        self.node.driver.fail_next(call, reason)

    @rule(at=st.sampled_from(PLACES))
    def somebody_else_makes_one(self, at: tuple[str, int]) -> None:
        """Not where a call of ours may be under way: then nobody could tell them apart."""
        try:
            self.node.driver.return_late()
            found = self.node.driver.add("GPU-0", *at)
        except MigError:
            return
        self.foreign[found.gpu_instance_id] = found

    @rule(number=st.integers(0, 10))
    def somebody_else_destroys_one(self, number: int) -> None:
        if self.foreign:
            gone = sorted(self.foreign)[number % len(self.foreign)]
            self.node.driver.remove("GPU-0", gone)
            del self.foreign[gone]

    @rule()
    def disk_is_full_for_a_while(self) -> None:
        self.node.record.is_full = not self.node.record.is_full

    @rule()
    def daemon_is_started_again(self) -> None:
        self.node.restart()

    @rule()
    def node_reboots(self) -> None:
        self.node.reboot(f"boot-{self.pods}-{len(self.told)}")
        self.foreign.clear()

    # -- what must hold ----------------------------------------------------------------------------
    @invariant()
    def nothing_of_others_is_touched(self) -> None:
        there = self.node.driver.cards["GPU-0"].instances
        assert {number: there.get(number) for number in self.foreign} == self.foreign

    def finish(self) -> None:
        """Nothing fails any more, and every process of an ended pod has ended."""
        node = self.node
        node.driver.faults.clear()
        node.driver.return_late()
        node.record.is_full = False
        for each in node.driver.cards["GPU-0"].instances.values():
            if each.device is not None:
                node.driver.run(each.device.uuid)
        for _ in range(8):
            node.keep()
            node.clock.advance(700)
        there = {
            number: found
            for number, found in node.driver.cards["GPU-0"].instances.items()
            if number not in self.foreign
        }
        kept = {view.numbers[0]: view for view in node.kept() if view.numbers}
        assert set(there) == set(kept), (node.names(), node.kept())
        assert {view.pod_uid for view in node.kept()} == set(node.held)
        for number, view in kept.items():
            assert there[number].device is not None
            placement = MigPlacement(start=view.start, size=view.size)
            assert (there[number].profile, there[number].placement) == (view.kind, placement)


TestNode = Node.TestCase
TestNode.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class BlindNode(Node):
    """The driver shows the daemon no processes: outside the host's PID namespace."""

    is_blind = True


TestBlindNode = BlindNode.TestCase
TestBlindNode.settings = TestNode.settings


class LongNode(Node):
    """The same, for longer."""


TestLongNode = pytest.mark.long(LongNode.TestCase)
TestLongNode.settings = settings(TestNode.settings, max_examples=200)
