"""What a vendor that divides its cards is told of its node, and what becomes of its notes."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hami_node.errors import KubeletError
from hami_node.model import Node, Pod
from hami_node.node.part_keeper import UNKNOWN_S, PartKeeper
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.ports import EventNote, HeldContainer
from hami_node.record.ledger import Entry, Source
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.mig.layout import MigInstance, MigPlacement, TemplateSlot
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.on_node.parts import (
    PartHolder,
    PartNote,
    PartsKept,
    PartsSituation,
    PartsState,
)
from tests.fakes.cards import uuid
from tests.fakes.clock import RealClock
from tests.fakes.ledgers import an_entry
from tests.fakes.parts import FakeParts
from tests.fakes.waiting import eventually
from tests.unit.node.served import settings_of

GPU = "nvidia.com/gpu"
NODE = Node(name="n1", uid="u-n1")
ROW = (
    f'[{{"containerIndex":0,"deviceIndex":0,"gpuUUID":"{uuid(0)}","profile":"1g.5gb",'
    '"placement":{"start":6,"size":1}}]'
)
SLOT = f"{uuid(0)}[1-3],NVIDIA,5120,15:;"


@dataclass(slots=True)
class Desk:
    """A keeper over parts that only remember what they were told."""

    folder: Path
    pods: list[Pod] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    listed: list[HeldContainer] | None = field(default_factory=list)
    silent_s: float | None = 1.0
    node: Node | None = NODE
    parts: FakeParts | None = field(default_factory=FakeParts)
    events: list[EventNote] = field(default_factory=list)
    recorded: threading.Event = field(default_factory=threading.Event)
    offered: int = 0
    """How often the cards were offered again."""

    def offer_again(self) -> None:
        self.offered += 1

    def list(self) -> list[HeldContainer]:
        if self.listed is None:
            raise KubeletError("down")
        return self.listed

    def keeper(self) -> PartKeeper:
        owner = SimpleNamespace(
            vendor=NVIDIA_SPEC,
            parts=self.parts,
            resources=[SimpleNamespace(name=GPU)],
            scanner=self,
        )
        view = SimpleNamespace(
            node=lambda: self.node,
            is_synced=lambda: True,
            last_contact_age_s=lambda: self.silent_s,
        )
        cluster = SimpleNamespace(
            view=view,
            kubelet=self,
            live=SimpleNamespace(
                pods=lambda: tuple(self.pods),
                is_listed=lambda entry: any(item.pod == entry.pod for item in self.listed or ()),
            ),
            ledger=SimpleNamespace(entries=lambda: tuple(self.entries)),
            notify=self.events.append,
        )
        settings = settings_of(self.folder)
        parts = SimpleNamespace(settings=lambda: settings, vendor_cards=(owner,), clock=RealClock())
        return PartKeeper(cast(NodeParts, parts), cast(ClusterParts, cluster), self.recorded)

    def situation(self) -> PartsSituation:
        """What it is told now."""
        self.keeper().keep()
        assert self.parts is not None
        return self.parts.situations[-1]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def pod(name: str, phase: str = "Running", **fields: Any) -> Pod:
    return Pod(uid=f"uid-{name}", namespace="default", name=name, phase=phase, **fields)


def listed(name: str, resource: str = GPU) -> HeldContainer:
    return HeldContainer(
        namespace="default", pod=name, container="c", device_ids={resource: ("d",)}
    )


def test_holders_are_the_containers_on_record_whatever_they_hold(desk: Desk) -> None:
    row, slot = {"parts": ROW, "grants": f"{uuid(0)},NVIDIA,4864,15:;"}, {"grants": SLOT}
    notes = {"theirs": "x"}
    desk.pods = [pod("rows", annotations=notes)]
    desk.entries = [
        an_entry("rows", **row),
        an_entry("slots", **slot, source=Source.ADOPTED),
        an_entry("whole"),
        an_entry("slots", "init", **slot, lender="main"),
        an_entry("other", **row, vendor="ACME"),
        an_entry("broken", grants="rubbish,,:"),
    ]
    desk.listed = [listed("slots")]
    holders = desk.situation().holders
    assert holders is not None
    first, second, third = holders
    assert isinstance(first, PartHolder)
    assert (first.pod_uid, first.namespace, first.pod, first.container) == (
        "uid-rows",
        "default",
        "rows",
        "main",
    )
    assert (first.annotations, first.is_adopted) == (notes, False)
    assert first.grants[0].part == MigInstance(
        profile="1g.5gb", placement=MigPlacement(start=6, size=1)
    )
    assert (second.pod, second.annotations, second.is_adopted) == ("slots", {}, True)
    assert second.grants[0].part == TemplateSlot(template=1, slot=3)
    assert (third.pod, third.grants[0].part) == ("whole", None)


def test_pod_that_kubelet_does_not_list_was_served_by_nobody(desk: Desk) -> None:
    desk.pods = [pod("slots"), pod("forged")]
    desk.entries = [
        an_entry(name, grants=SLOT, source=Source.ADOPTED) for name in ("slots", "forged")
    ]
    desk.entries.append(an_entry("other", grants=SLOT, source=Source.ADOPTED, resource="rdma/hca"))
    desk.listed = [listed("slots"), listed("other", "rdma/hca")]
    holders = desk.situation().holders
    assert holders is not None
    assert [each.is_adopted for each in holders] == [True, False, False]


def test_pod_is_held_by_record_by_cluster_and_by_kubelet_until_it_has_ended(desk: Desk) -> None:
    desk.pods = [
        pod("runs"),
        pod("waits", "Pending"),
        pod("leaves", is_being_deleted=True),
        pod("over", "Succeeded"),
        pod("failed", "Failed"),
    ]
    desk.entries = [an_entry("recorded")]
    desk.listed = [listed("over"), listed("leaves"), listed("nic", "example.com/nic")]
    situation = desk.situation()
    held = {
        name: situation.is_held(f"uid-{name}")
        for name in ("runs", "waits", "leaves", "recorded", "over", "failed", "unknown")
    }
    assert held == {
        "runs": True,
        "waits": True,
        "leaves": True,
        "recorded": True,
        "over": False,
        "failed": False,
        "unknown": False,
    }
    desk.pods, desk.entries = [pod("leaves", "Failed")], []
    assert not situation.is_held("uid-runs"), "it is asked again"
    assert not situation.is_held("uid-leaves")


def test_pod_that_only_kubelet_has_is_held_until_kubelet_has_it_no_more(desk: Desk) -> None:
    desk.pods, desk.listed = [pod("p")], [listed("p")]
    situation = desk.situation()
    desk.pods = []
    assert situation.is_held("uid-p"), "the list has a name that nobody is known by now"
    desk.listed = None
    assert situation.is_held("uid-p")
    desk.listed = []
    assert not situation.is_held("uid-p")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"silent_s": None}, id="never heard"),
        pytest.param({"silent_s": 181.0}, id="silent"),
        pytest.param({"listed": None}, id="kubelet down"),
        pytest.param({"listed": [listed("stranger")]}, id="kubelet lists a stranger"),
    ],
)
def test_nobody_is_let_go_while_it_is_unknown_who_is_there(
    desk: Desk, change: dict[str, Any]
) -> None:
    for name, value in change.items():
        setattr(desk, name, value)
    situation = desk.situation()
    assert situation.holders is None
    assert situation.is_held("uid-anybody")
    assert desk.keeper().keep() == UNKNOWN_S


@pytest.mark.parametrize("next_s", [None, 3.0])
def test_next_pass_comes_when_it_is_worth_it(desk: Desk, next_s: float | None) -> None:
    assert desk.parts is not None
    desk.parts.kept = PartsKept(next_s=next_s)
    assert desk.keeper().keep() == next_s


def test_cards_are_offered_again_when_a_pass_has_changed_the_record(desk: Desk) -> None:
    class Finding(FakeParts):
        def keep(self, situation: PartsSituation) -> PartsKept:
            self.on_record = PartsState(hands_off="somebody else is at work")
            return FakeParts.keep(self, situation)

    desk.parts = Finding()
    desk.keeper().keep()
    assert desk.offered == 1, "no change of the driver's would say it"
    desk.keeper().keep()
    assert desk.offered == 1


def test_notes_become_events_about_the_pod_or_the_node(desk: Desk) -> None:
    assert desk.parts is not None
    about = PartNote(reason="A", message="m", namespace="default", pod="p", pod_uid="uid-p")
    desk.parts.kept = PartsKept(notes=(about, PartNote(reason="B", message="n")))
    desk.keeper().keep()
    first, second = desk.events
    assert (first.kind, first.namespace, first.name, first.uid) == ("Pod", "default", "p", "uid-p")
    assert (second.kind, second.name, second.uid, second.message) == ("Node", "n1", "u-n1", "n")
    desk.node = None
    desk.keeper().keep()
    assert [event.reason for event in desk.events] == ["A", "B", "A"]


def test_nothing_is_asked_where_no_card_is_divided(desk: Desk) -> None:
    desk.parts, desk.listed = None, None
    assert desk.keeper().keep() is None


def test_maker_that_breaks_does_not_end_the_daemon(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeParts):
        def keep(self, situation: PartsSituation) -> PartsKept:
            raise RuntimeError("a bug")

    desk.parts = Broken()
    with caplog.at_level(logging.ERROR):
        assert desk.keeper().keep() is None
    assert [record.message for record in caplog.records] == ["card_parts_broken"]


def test_passes_follow_the_record_changes_and_the_makers_wish(desk: Desk) -> None:
    assert desk.parts is not None
    keeper, stop, parts = desk.keeper(), threading.Event(), desk.parts
    thread = threading.Thread(target=keeper.run, args=(stop,))
    thread.start()
    keeper.wake()
    assert not parts.situations
    desk.recorded.set()
    eventually(lambda: len(parts.situations) == 2)
    parts.kept = PartsKept(next_s=0.01)
    keeper.wake()
    eventually(lambda: len(parts.situations) > 4)
    stop.set()
    keeper.wake()
    thread.join(5)
    assert not thread.is_alive()


def test_rows_annotation_is_read_for_nobody_who_is_not_on_record(desk: Desk) -> None:
    desk.pods = [pod("stranger", annotations={nvidia_names.POD_MIG_ALLOCATIONS: "garbage"})]
    assert desk.situation().holders == ()
