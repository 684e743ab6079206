"""Whose files stay, and what is told about those that can't go."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from hami_node.errors import KubeletError
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.model import Node, Pod
from hami_node.node.file_keeper import FileKeeper
from hami_node.node.state import NodeState
from hami_node.ports import EventNote, HeldContainer
from hami_node.vendors.on_node.upkeep import ClosedFile, FilesFound, FilesInUse
from tests.fakes.clock import FakeClock

GPU = "nvidia.com/gpu"
THIS = Node(name="n1", uid="u-n1")


@dataclass(slots=True)
class Desk:
    """A keeper over a vendor's upkeep that only remembers what it was told."""

    pods: list[Pod] = field(default_factory=list)
    listed: list[HeldContainer] | None = field(default_factory=list)
    silent_s: float | None = 1.0
    is_synced: bool = True
    found: FilesFound = field(default_factory=FilesFound)
    used: list[FilesInUse | None] = field(default_factory=list)
    events: list[EventNote] = field(default_factory=list)

    def tidy(self, used: FilesInUse | None, now_s: float) -> FilesFound:
        del now_s
        self.used.append(used)
        return self.found

    def list(self) -> list[HeldContainer]:
        if self.listed is None:
            raise KubeletError("down")
        return self.listed

    def keeper(self) -> FileKeeper:
        owner = SimpleNamespace(upkeep=self, resources=[SimpleNamespace(name=GPU)])
        view = SimpleNamespace(
            is_synced=lambda: self.is_synced,
            last_contact_age_s=lambda: self.silent_s,
        )
        node = SimpleNamespace(
            clock=FakeClock(),
            vendor_cards=(owner,),
            metrics=DaemonMetrics("n1"),
            view=view,
            kubelet=self,
            live=SimpleNamespace(pods=lambda: tuple(self.pods)),
            ledger=SimpleNamespace(entries=lambda: ()),
            notify=self.events.append,
            notify_node=lambda *words: self.events.append(EventNote.about(THIS, *words)),
        )
        return FileKeeper(cast(NodeState, node))


def pod(name: str, phase: str = "Running") -> Pod:
    return Pod(uid=f"u-{name}", namespace="ns", name=name, phase=phase)


STRANGER = HeldContainer(namespace="ns", pod="stranger", container="c", device_ids={GPU: ("d",)})


@pytest.mark.parametrize(
    "desk",
    [
        pytest.param(Desk(is_synced=False), id="not listed yet"),
        pytest.param(Desk(silent_s=None), id="never heard"),
        pytest.param(Desk(silent_s=181.0), id="silent"),
        pytest.param(Desk(listed=None), id="kubelet down"),
        pytest.param(Desk(listed=[STRANGER]), id="kubelet lists a stranger"),
    ],
)
def test_nobody_is_named_while_it_is_unknown_who_is_there(desk: Desk) -> None:
    desk.keeper().look()
    assert desk.used == [None]


def test_what_can_not_be_removed_is_shown_and_told_once() -> None:
    desk = Desk(found=FilesFound(folders=2, used_bytes=4096, stuck=("a: closed",)))
    keeper = desk.keeper()
    for _ in range(3):
        keeper.look()
    shown = {each.name: each.samples[0].value for each in keeper.series()}
    assert shown == {
        "hami_node_container_files_folders": 2,
        "hami_node_container_files_bytes": 4096,
        "hami_node_container_files_stuck": 1,
    }
    (event,) = desk.events
    assert (event.kind, event.name, event.reason) == ("Node", "n1", "ContainerFilesLeft")
    assert "a: closed" in event.message
    assert "administrator" in event.message
    desk.found = FilesFound(stuck=("a: closed", "b: busy"))
    keeper.look()
    assert len(desk.events) == 2
    desk.found = FilesFound()
    keeper.look()
    assert len(desk.events) == 2


def test_pod_whose_cache_file_is_closed_is_told_once() -> None:
    closed = tuple(
        ClosedFile(folder=f"u-{name}_main", why="can't be opened: Permission denied")
        for name in ("a", "gone")
    )
    desk = Desk(pods=[pod("a")], found=FilesFound(closed=closed))
    keeper = desk.keeper()
    for _ in range(3):
        keeper.look()
    (event,) = desk.events
    assert (event.kind, event.namespace, event.name, event.uid) == ("Pod", "ns", "a", "u-a")
    assert event.reason == "CacheFileClosed"
    assert "container main can't be opened: Permission denied" in event.message
    desk.found = FilesFound()
    keeper.look()
    desk.found = FilesFound(closed=closed)
    keeper.look()
    assert len(desk.events) == 2, "it was open meanwhile"
