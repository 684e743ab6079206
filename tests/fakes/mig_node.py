"""A node with MIG cards in memory: pods come and go, the keeper is killed and started again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hami_node.clock import Deadline
from hami_node.errors import AllocationError
from hami_node.model import Container, Grant, Uuid
from hami_node.vendors.divided import PartView
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.choices import ListedGeometries, ListedInstance
from hami_node.vendors.nvidia.mig.codec import MigAllocation, encode_mig_allocations
from hami_node.vendors.nvidia.mig.layout import (
    FoundInstance,
    MigDevice,
    MigInstance,
    MigPlacement,
    TemplateSlot,
)
from hami_node.vendors.nvidia.node.mig.keeper import MigKeeper
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import MadePart, Slice
from hami_node.vendors.on_node.parts import PartHolder, PartNote, PartsSituation
from tests.fakes.clock import FakeClock
from tests.fakes.mig_cards import A100_40
from tests.fakes.mig_driver import FakeCard, FakeMigCards, Fate, Killed, MortalRecord

CARD = "GPU-0"


def row(profile: str, start: int, *, card: str = CARD, memory_mib: int | None = None) -> Grant:
    """A grant as 2.10 writes it; size and memory are the profile's on an A100 of 40 GB."""
    size = {"1g.5gb": 1, "1g.5gb+me": 1, "3g.20gb": 4, "4g.20gb": 4, "7g.40gb": 8}.get(profile, 2)
    part = MigInstance(profile=profile, placement=MigPlacement(start=start, size=size))
    if memory_mib is None:
        memory_mib = next((known.memory_mib for known in A100_40 if known.name == profile), 0)
    return Grant(uuid=Uuid(card), vendor=NVIDIA, memory_mib=memory_mib, cores=0, part=part)


def slot(template: int, number: int, memory_mib: int, *, card: str = CARD, cores: int = 0) -> Grant:
    """A grant as 2.5 to 2.9 write it."""
    part = TemplateSlot(template=template, slot=number)
    return Grant(uuid=Uuid(card), vendor=NVIDIA, memory_mib=memory_mib, cores=cores, part=part)


def geometries(
    *groups: tuple[tuple[str, int, int], ...], model: str = "A100"
) -> tuple[ListedGeometries, ...]:
    """`knownMigGeometries` with (name, memory, count) for each entry of each geometry."""
    return (
        ListedGeometries(
            models=(model,),
            allowed_geometries=tuple(
                tuple(
                    ListedInstance(name=name, memory=mib, count=count) for name, mib, count in group
                )
                for group in groups
            ),
        ),
    )


CHART_A100_40 = geometries(
    (("1g.5gb", 5120, 7),),
    (("2g.10gb", 10240, 3), ("1g.5gb", 5120, 1)),
    (("3g.20gb", 20480, 2),),
    (("7g.40gb", 40960, 1),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A container that has its answer."""

    grants: tuple[Grant, ...]
    parts: tuple[MadePart, ...]
    container: str = "main"


class MigNode:
    """Cards, record, pods and their answers outlive the keeper, which can be started again."""

    def __init__(
        self, folder: Path, cards: Mapping[str, FakeCard] | None = None, kill_at: int | None = None
    ) -> None:
        self.fate = Fate(at=kill_at)
        self.driver = FakeMigCards(cards, self.fate)
        self.record = MortalRecord(self.fate)
        self.clock = FakeClock()
        self.boot_id = folder / "boot_id"
        self.boot_id.write_text("boot-1\n")
        self.settings = NvidiaSettings(known_mig_geometries=CHART_A100_40)
        self.held: dict[str, dict[str, Served]] = {}
        self.rows: dict[str, dict[str, str]] = {}
        self.notes: list[PartNote] = []
        self.next_s: float | None = None
        self.has_answers = False
        self.stopped = threading.Event()
        self.stopped.set()  # no test waits for a process that will not end
        self.may_switch = True
        self.keeper = self._started()

    def _started(self) -> MigKeeper:
        return MigKeeper(
            self.driver,
            self.record,
            lambda: self.settings,
            self.driver.devices,
            self.clock,
            boot_id=self.boot_id,
            may_switch=self.may_switch,
        )

    # -- what happens to the node ------------------------------------------------------------------
    def restart(self) -> None:
        """Another process takes over."""
        self.keeper = self._started()

    def reboot(self, name: str = "boot-2") -> None:
        self.driver.reboot(self.boot_id, name)
        self.restart()

    def ask(
        self,
        pod: str,
        *grants: Grant,
        container: str = "main",
        within_s: float = 10,
        limits: Mapping[str, str] | None = None,
    ) -> tuple[MadePart, ...]:
        """One call of Allocate for a pod that is there; the parts it would be answered."""
        self.held.setdefault(pod, {})
        granted = Slice(
            pod_uid=pod,
            container=Container(name=container, limits=limits or {}),
            grants=grants,
            cards={card.uuid: card for card in self.driver.devices()},
        )
        deadline = Deadline.after(within_s, self.clock.monotonic, self.stopped)
        made = self.keeper.make(granted, deadline)
        assert None not in made
        return tuple(part for part in made if part is not None)

    def serve(self, pod: str, *grants: Grant, container: str = "main") -> tuple[MadePart, ...]:
        """The same, and the container runs; where it is refused, kubelet fails the pod."""
        try:
            parts = self.ask(pod, *grants, container=container)
        except (AllocationError, Killed):
            self.end(pod)
            raise
        self.held[pod][container] = Served(grants=grants, parts=parts, container=container)
        return parts

    def end(self, *pods: str) -> None:
        """The pods have ended, and kubelet has forgotten them; their processes have ended too."""
        for pod in pods:
            for served in self.held.pop(pod, {}).values():
                for part in served.parts:
                    if self.find(part.uuid) is not None:
                        self.driver.run(part.uuid)

    def find(self, uuid: str) -> FoundInstance | None:
        for card in self.driver.cards.values():
            for each in card.instances.values():
                if each.device is not None and each.device.uuid == uuid:
                    return each
        return None

    def write_rows(self, pod: str, container: str = "main") -> None:
        """What HAMi 2.10's plugin, or our own, writes on the pod."""
        served = self.held[pod][container]
        rows = [
            MigAllocation(
                container_index=0,
                device_index=index,
                uuid=grant.uuid,
                instance=grant.part,
                device=MigDevice(
                    uuid=part.uuid,
                    gpu_instance_id=part.numbers[0],
                    compute_instance_id=part.numbers[1],
                ),
            )
            for index, (grant, part) in enumerate(zip(served.grants, served.parts, strict=True))
            if isinstance(grant.part, MigInstance)
        ]
        text = encode_mig_allocations(rows) or ""
        self.rows.setdefault(pod, {})[names.POD_MIG_ALLOCATIONS] = text

    # -- what the keeper does ----------------------------------------------------------------------
    def situation(self) -> PartsSituation:
        holders = [
            PartHolder(
                pod_uid=pod,
                namespace="work",
                pod=f"{pod}-name",
                container=container,
                grants=served.grants,
                annotations=self.rows.get(pod, {}),
                is_adopted=not self.has_answers,
                answer=self._answer(served) if self.has_answers else "",
            )
            for pod, containers in list(self.held.items())
            for container, served in list(containers.items())
        ]
        return PartsSituation(holders=tuple(holders), is_held=lambda uid: uid in self.held)

    def _answer(self, served: Served) -> str:
        uuids = ",".join(part.uuid for part in served.parts)
        return f'{{"envs":[["NVIDIA_VISIBLE_DEVICES","{uuids}"]]}}'

    def keep(self, situation: PartsSituation | None = None) -> tuple[PartNote, ...]:
        kept = self.keeper.keep(situation or self.situation())
        self.notes += kept.notes
        self.next_s = kept.next_s
        return kept.notes

    def settle(self, passes: int = 12) -> None:
        """Pass after pass, each when the last one has asked for it, while one does."""
        for _ in range(passes):
            self.keep()
            if self.next_s is None:
                break
            self.clock.advance(min(self.next_s or 60.0, 60.0))

    # -- what is there -----------------------------------------------------------------------------
    def names(self, card: str = CARD) -> list[str]:
        return self.driver.names(card)

    def kept(self) -> tuple[PartView, ...]:
        return self.keeper.state().own

    def reasons(self) -> list[str]:
        return [note.reason for note in self.notes]

    def assert_whole(self, *foreign: str) -> None:
        """Each living pod has exactly what it was answered; beside it there is what others made."""
        answered = {
            part.uuid: grant
            for containers in self.held.values()
            for served in containers.values()
            for grant, part in zip(served.grants, served.parts, strict=True)
        }
        found = {
            each.device.uuid if each.device else f"bare {each.gpu_instance_id}": each
            for card in self.driver.cards.values()
            for each in card.instances.values()
        }
        assert set(found) == set(answered) | set(foreign)
        assert {kept.uuid for kept in self.kept()} == set(answered)
        for uuid, grant in answered.items():
            if isinstance(grant.part, MigInstance):
                part = MigInstance(profile=found[uuid].profile, placement=found[uuid].placement)
                assert part == grant.part
