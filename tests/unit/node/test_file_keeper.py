"""Whose files stay, and what is told about those that can't go."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hami_node.errors import KubeletError
from hami_node.model import Node, Pod
from hami_node.node.file_keeper import INTERVAL_S, FileKeeper
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.ports import EventNote, HeldContainer
from hami_node.vendors.on_node.upkeep import ClosedFile, FilesFound, FilesInUse
from tests.fakes.clock import FakeClock

GPU = "nvidia.com/gpu"


@dataclass(slots=True)
class Desk:
    """A keeper over a vendor's upkeep that only remembers what it was told."""

    pods: list[Pod] = field(default_factory=list)
    entries: list[Any] = field(default_factory=list)
    listed: list[HeldContainer] | None = field(default_factory=list)
    silent_s: float | None = 1.0
    is_synced: bool = True
    found: FilesFound = field(default_factory=FilesFound)
    used: list[FilesInUse | None] = field(default_factory=list)
    events: list[EventNote] = field(default_factory=list)
    shown: list[tuple[int, int, int]] = field(default_factory=list)

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
            node=lambda: Node(name="n1", uid="u-n1"),
            is_synced=lambda: self.is_synced,
            last_contact_age_s=lambda: self.silent_s,
        )
        cluster = SimpleNamespace(
            view=view,
            kubelet=self,
            live=SimpleNamespace(pods=lambda: tuple(self.pods)),
            ledger=SimpleNamespace(entries=lambda: tuple(self.entries)),
            notify=self.events.append,
            metrics=SimpleNamespace(set_container_files=lambda *all_: self.shown.append(all_)),
        )
        parts = SimpleNamespace(clock=FakeClock(), vendor_cards=(owner,))
        return FileKeeper(cast(NodeParts, parts), cast(ClusterParts, cluster), threading.Event())


def pod(name: str, phase: str = "Running") -> Pod:
    return Pod(uid=f"u-{name}", namespace="ns", name=name, phase=phase)


def entry(name: str, uid: str = "") -> Any:
    return SimpleNamespace(
        pod_uid=uid or f"u-{name}", namespace="ns", pod=name, answer=f"answer {name}"
    )


def listed(name: str, resource: str = GPU) -> HeldContainer:
    return HeldContainer(namespace="ns", pod=name, container="c", device_ids={resource: ("d",)})


def test_pods_on_record_in_the_cluster_and_in_kubelets_list_keep_their_files() -> None:
    desk = Desk(
        pods=[pod("runs"), pod("over", "Succeeded"), pod("listed", "Failed")],
        entries=[entry("recorded")],
        listed=[listed("listed"), listed("other", "example.com/nic")],
    )
    desk.keeper().tidy()
    (used,) = desk.used
    assert used is not None
    assert used.uids == {"u-runs", "u-recorded", "u-listed"}
    assert used.answers == ("answer recorded",)
    assert (used.is_held("u-runs"), used.is_held("u-over")) == (True, False)


def test_namesake_on_record_is_kept_beside_the_pod_that_has_the_name_now() -> None:
    desk = Desk(pods=[pod("a")], entries=[entry("a", "u-older")], listed=[listed("a")])
    desk.keeper().tidy()
    assert desk.used[0] is not None
    assert desk.used[0].uids == {"u-a", "u-older"}


@pytest.mark.parametrize(
    "desk",
    [
        pytest.param(Desk(is_synced=False), id="not listed yet"),
        pytest.param(Desk(silent_s=None), id="never heard"),
        pytest.param(Desk(silent_s=181.0), id="silent"),
        pytest.param(Desk(listed=None), id="kubelet down"),
        pytest.param(Desk(listed=[listed("stranger")]), id="kubelet lists a stranger"),
    ],
)
def test_nobody_is_named_while_it_is_unknown_who_is_there(desk: Desk) -> None:
    desk.keeper().tidy()
    assert desk.used == [None]


def test_what_can_not_be_removed_is_shown_and_told_once() -> None:
    desk = Desk(found=FilesFound(folders=2, used_bytes=4096, stuck=("a: closed",)))
    keeper = desk.keeper()
    for _ in range(3):
        keeper.tidy()
    assert desk.shown == [(2, 4096, 1)] * 3
    (event,) = desk.events
    assert (event.kind, event.name, event.reason) == ("Node", "n1", "ContainerFilesLeft")
    assert "a: closed" in event.message
    assert "administrator" in event.message
    desk.found = FilesFound(stuck=("a: closed", "b: busy"))
    keeper.tidy()
    assert len(desk.events) == 2
    desk.found = FilesFound()
    keeper.tidy()
    assert len(desk.events) == 2


def test_pod_whose_cache_file_is_closed_is_told_once() -> None:
    closed = tuple(
        ClosedFile(folder=f"u-{name}_main", why="can't be opened: Permission denied")
        for name in ("a", "gone")
    )
    desk = Desk(pods=[pod("a")], found=FilesFound(closed=closed))
    keeper = desk.keeper()
    for _ in range(3):
        keeper.tidy()
    (event,) = desk.events
    assert (event.kind, event.namespace, event.name, event.uid) == ("Pod", "ns", "a", "u-a")
    assert event.reason == "CacheFileClosed"
    assert "container main can't be opened: Permission denied" in event.message
    desk.found = FilesFound()
    keeper.tidy()
    desk.found = FilesFound(closed=closed)
    keeper.tidy()
    assert len(desk.events) == 2, "it was open meanwhile"


@pytest.mark.parametrize(("next_s", "wait_s"), [(None, INTERVAL_S), (2.0, 2.0), (9e9, INTERVAL_S)])
def test_next_pass_comes_when_it_is_worth_it(next_s: float | None, wait_s: float) -> None:
    assert Desk(found=FilesFound(next_s=next_s)).keeper().tidy() == wait_s
