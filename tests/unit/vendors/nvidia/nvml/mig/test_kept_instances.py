"""The keeper of instances on the real adapter, the real pynvml and the C library below it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

import pytest

from hami_node.clock import Deadline
from hami_node.errors import AllocationError
from hami_node.model import Container, Grant, Uuid
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.found import MigCard, MigDevice
from hami_node.vendors.nvidia.mig.layout import MigInstance, MigPlacement
from hami_node.vendors.nvidia.node.mig.keeper import MigInstances
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import MadePart, Slice
from hami_node.vendors.on_node.parts import PartHolder, PartNote, PartsSituation
from tests.fakes.clock import FakeClock
from tests.fakes.mig_driver import Fate, Killed, MortalRecord
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import Stub
from tests.nvml_stub.mig import MigHardware
from tests.unit.vendors.nvidia.nvml.conftest import Open
from tests.unit.vendors.nvidia.nvml.mig.conftest import A100, H100, Rig, within

T = TypeVar("T")


class MortalDriver:
    """The adapter, around whose calls the process may be killed."""

    def __init__(self, rig: Rig, fate: Fate) -> None:
        self._driver, self._fate = rig.driver, fate

    def look(self, card: Uuid, deadline: Deadline) -> MigCard:
        self._fate.moment()
        return self._driver.look(card, deadline)

    def make_gpu_instance(
        self, card: Uuid, profile_id: int, placement: MigPlacement, deadline: Deadline
    ) -> int:
        self._fate.moment()
        return self._done(self._driver.make_gpu_instance(card, profile_id, placement, deadline))

    def make_compute_instance(
        self, card: Uuid, gpu_instance_id: int, deadline: Deadline
    ) -> MigDevice:
        self._fate.moment()
        return self._done(self._driver.make_compute_instance(card, gpu_instance_id, deadline))

    def destroy_compute_instance(self, card: Uuid, device: MigDevice, deadline: Deadline) -> None:
        self._fate.moment()
        self._driver.destroy_compute_instance(card, device, deadline)
        self._fate.moment()

    def destroy_gpu_instance(self, card: Uuid, gpu_instance_id: int, deadline: Deadline) -> None:
        self._fate.moment()
        self._driver.destroy_gpu_instance(card, gpu_instance_id, deadline)
        self._fate.moment()

    def set_mode(self, card: Uuid, *, is_enabled: bool, deadline: Deadline) -> str:
        raise NotImplementedError

    def processes(self, card: Uuid, deadline: Deadline) -> frozenset[int] | None:
        raise NotImplementedError

    def _done(self, result: T) -> T:
        self._fate.moment()
        return result


class Node:
    """A card with pods on it; what the hardware has outlives the keeper."""

    def __init__(self, rig: Rig, folder: Path, kill_at: int | None = None) -> None:
        self.rig, self.fate, self.clock = rig, Fate(at=kill_at), FakeClock()
        self.record = MortalRecord(self.fate)
        self.boot_id = folder / "boot_id"
        self.boot_id.write_text("boot-1\n")
        self.held: dict[str, tuple[tuple[Grant, ...], tuple[MadePart | None, ...]]] = {}
        self.notes: list[PartNote] = []
        self.restart()

    def restart(self) -> None:
        self.keeper = MigInstances(
            MortalDriver(self.rig, self.fate),
            self.record,
            NvidiaSettings,
            self.rig.backend.scan,
            self.clock,
            boot_id=self.boot_id,
        )

    def kept_on(self, card: Uuid) -> list[PartView]:
        return [view for view in self.keeper.state().own if view.card == card]

    def serve(
        self, pod: str, *grants: Grant, within_s: float = 30.0
    ) -> tuple[MadePart | None, ...]:
        self.held[pod] = (grants, ())
        granted = Slice(
            pod_uid=pod,
            container=Container(name="main"),
            grants=grants,
            cards={card.uuid: card for card in self.rig.backend.scan()},
        )
        try:
            made = self.keeper.make(granted, within(within_s))
        except (AllocationError, Killed):
            del self.held[pod]
            raise
        self.held[pod] = (grants, made)
        return made

    def end(self, pod: str) -> None:
        self.held.pop(pod, None)

    def keep(self) -> None:
        holders = tuple(
            PartHolder(
                pod_uid=pod,
                namespace="work",
                pod=pod,
                container="main",
                grants=grants,
                annotations={},
            )
            for pod, (grants, _) in self.held.items()
        )
        situation = PartsSituation(holders=holders, is_held=lambda uid: uid in self.held)
        self.notes += self.keeper.keep(situation).notes

    def settle(self) -> None:
        for _ in range(4):
            self.keep()
            self.clock.advance(600)

    def uuids(self) -> set[str]:
        """Of what the living pods were given."""
        return {part.uuid for _, made in self.held.values() for part in made if part is not None}


def row(profile: str, start: int, size: int, card: Uuid = A100) -> Grant:
    part = MigInstance(profile=profile, placement=MigPlacement(start=start, size=size))
    return Grant(uuid=card, vendor=NVIDIA, memory_mib=0, cores=0, part=part)


def come_and_go(node: Node) -> None:
    node.serve("a", row("1g.5gb", 2, 1), row("1g.10gb", 4, 2))
    node.keep()
    node.end("a")
    node.keep()
    node.serve("b", row("3g.20gb", 0, 4))
    node.keep()


def test_instances_come_and_go_with_their_pods(rig: Rig, tmp_path: Path) -> None:
    node = Node(rig, tmp_path)
    made = node.serve("a", row("1g.5gb", 2, 1), row("1g.10gb", 4, 2))
    there = {found.uuid: found for found in rig.hardware.instances(A100)}
    assert [
        (part.uuid, part.numbers, there[part.uuid].profile, there[part.uuid].start)
        for part in made
        if part is not None
    ] == [
        (made[0].uuid, (9, 0), "1g.5gb", 2),  # type: ignore[union-attr]
        (made[1].uuid, (5, 0), "1g.10gb", 4),  # type: ignore[union-attr]
    ]
    node.settle()
    assert set(rig.hardware.uuids(A100)) == node.uuids()
    node.end("a")
    node.settle()
    assert rig.hardware.instances(A100) == ()
    assert node.notes == []


def test_kill_between_any_two_calls_leaves_what_the_living_have(rig: Rig, tmp_path: Path) -> None:
    whole = Node(rig, tmp_path)
    come_and_go(whole)
    assert whole.fate.count > 20
    for kill_at in range(1, whole.fate.count + 1):
        rig.hardware.reset()
        theirs = rig.hardware.make(A100, "1g.5gb", 6)
        bare = rig.hardware.make(H100, "2g.20gb", 0, is_whole=False)
        node = Node(rig, tmp_path, kill_at)
        try:
            come_and_go(node)
        except Killed:
            node.restart()
        node.settle()
        assert set(rig.hardware.uuids(A100)) == node.uuids() | {theirs.uuid}, kill_at
        assert len(rig.hardware.instances(A100)) == len(node.uuids()) + 1, kill_at
        assert rig.hardware.instances(H100) == (bare,)
        assert {view.uuid for view in node.keeper.state().own} == node.uuids()


def test_process_on_an_ended_pods_instance_keeps_it_until_it_ends(rig: Rig, tmp_path: Path) -> None:
    node = Node(rig, tmp_path)
    (part,) = node.serve("a", row("1g.5gb", 2, 1))
    assert part is not None
    rig.hardware.run(part.uuid, 4711)
    node.end("a")
    node.settle()
    assert rig.hardware.uuids(A100) == (part.uuid,)
    (note,) = node.notes
    assert "4711" in note.message
    (view,) = node.keeper.state().own
    assert view.state is PartState.STALE
    with pytest.raises(AllocationError, match="process 4711 is still on it: end it"):
        node.serve("b", row("1g.5gb", 2, 1))
    rig.hardware.end(part.uuid)
    node.settle()
    assert rig.hardware.instances(A100) == ()


def test_reboot_makes_them_again_and_mode_off_ends_them(rig: Rig, tmp_path: Path) -> None:
    node = Node(rig, tmp_path)
    (part,) = node.serve("a", row("2g.10gb", 4, 2))
    assert part is not None
    rig.hardware.reboot()
    node.boot_id.write_text("boot-2\n")
    node.restart()
    node.settle()
    (again,) = rig.hardware.instances(A100)
    assert (again.profile, again.start) == ("2g.10gb", 4)
    assert [note.reason for note in node.notes] == ["MigInstanceReplaced"] * (
        again.uuid != part.uuid
    )
    rig.hardware.set_mode(A100, 0)
    node.end("a")
    node.settle()
    assert node.keeper.state().own == ()


@pytest.mark.parametrize("position", [1, 2])
def test_call_that_hangs_refuses_in_time_and_is_undone_when_it_returns(
    start: Open, stub: Stub, hardware: MigHardware, tmp_path: Path, position: int
) -> None:
    rig = Rig(start(call_limit_s=0.2), stub, hardware)
    rig.backend.scan()
    node = Node(rig, tmp_path)
    rig.show(f"nth hangs{position} changes 0 {position} before hang 1.5")
    with pytest.raises(AllocationError, match="in time"):
        node.serve("a", row("1g.5gb", 2, 1), within_s=0.5)
    node.serve("b", row("1g.10gb", 2, 1, H100))

    def is_undone() -> bool:
        node.settle()
        return len(hardware.changes(A100)) > position and not node.kept_on(A100)

    eventually(is_undone)
    assert hardware.instances(A100) == ()
    assert set(hardware.uuids(H100)) == node.uuids()


@pytest.mark.parametrize("effect", ["fail 19", "fail 23", "fail 999", "fail 15"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_any_call_that_changes_the_card_may_fail(
    rig: Rig, tmp_path: Path, when: str, effect: str
) -> None:
    """After the call: it was done, and the driver says that it was not.

    Only that there was no room is believed: then somebody else may have the very place.
    """
    is_believed = (when, effect) == ("after", "fail 23")
    for position in (2, 3, 4, 6, 7, 8) if is_believed else range(1, 9):
        rig.hardware.reset()
        rig.show(f"nth line{position}{when}{effect[-2:]} changes 0 {position} {when} {effect}")
        node = Node(rig, tmp_path)
        for story in (
            lambda: node.serve("a", row("1g.5gb", 2, 1)),  # noqa: B023
            lambda: node.end("a"),  # noqa: B023
            node.settle,
            lambda: node.serve("b", row("3g.20gb", 0, 4)),  # noqa: B023
            lambda: node.end("b"),  # noqa: B023
            node.settle,
        ):
            with contextlib.suppress(AllocationError):
                story()
        rig.show()
        node.clock.advance(600)
        node.settle()
        assert rig.hardware.instances(A100) == (), position
        assert node.keeper.state().own == ()
