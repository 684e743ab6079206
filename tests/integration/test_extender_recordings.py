"""What HAMi 2.4.1, 2.7.1 and 2.10.0 wrote, change by change, as our extender sees it.

Source: recordings of each generation's scheduler and plugin on a real API server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from hami_node.extender.rules import rules_of
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.decisions import Reserved
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.model import ContainerGrants, ContainerKind, Node, Pod
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.request import request_of
from hami_node.wire import names
from hami_node.wire.grants import decode_grants
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.reservation import counts_of
from hami_node.wire.slots import SlotMap, assign_slots
from tests.fakes.clock import FakeClock
from tests.fakes.extender_kube import FakeExtenderKube
from tests.fakes.pods import Box
from tests.fakes.settings import settings

RECORDINGS: Final = Path(__file__).parents[1] / "fixtures/recordings"
GENERATIONS: Final = ("v2.4.1", "v2.7.1", "v2.10.0")
NODE: Final = "e2e-node"
BOXES: Final = {
    "one": (Box(name="c0", memory_mib=3000, cores=30),),
    "two-containers": (
        Box(name="c0", cards=2, memory_mib=4000),
        Box(name="c1", memory_mib=2000, cores=10),
    ),
    "sidecar-without-gpu": (Box(name="c0", cards=0), Box(name="c1", memory_percent=50)),
    "init": (
        Box(name="i0", memory_mib=1000, kind=ContainerKind.INIT),
        Box(name="c0", memory_mib=1000),
    ),
    "too-much": (Box(name="c0", memory_mib=900_000),),
}
"""The pods as they were created."""
HOLDS_MIB: Final = {
    "one": 3000,
    "two-containers": 10_000,
    "sidecar-without-gpu": 40_960,
    "init": 1000,
}


def timeline(generation: str) -> list[Json]:
    text = (RECORDINGS / f"{generation}.json").read_text(encoding="utf-8")
    found: list[Json] = json.loads(text)["timeline"]
    return found


@dataclass
class Player:
    """Turns recorded changes into what a watch would have shown, and shows it to a state."""

    changes: list[Json]
    bodies: dict[str, Json] = field(default_factory=dict)
    shown: dict[str, Pod | Node] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        times = (change["set"].get(names.POD_TIME) for change in self.changes)
        self.clock = FakeClock(float(next(filter(None, times))))
        self.state = ClusterState(rules_of(settings(), VENDORS), self.clock)

    def play(self, change: Json) -> None:
        self.version += 1
        name = change["name"]
        body = self.bodies.setdefault(name, self._created(change))
        body["metadata"]["resourceVersion"] = str(self.version)
        notes = body["metadata"]["annotations"]
        notes.update(change["set"])
        for key in change["removed"]:
            notes.pop(key, None)
        if names.POD_TIME in change["set"]:  # the recording's clock is ours
            self.clock.advance(int(change["set"][names.POD_TIME]) - self.clock.now())
        body["spec"]["nodeName"] = change["nodeName"]
        body["status"]["phase"] = change["phase"]
        if change["kind"] == "node":
            self._show_node(decode_node(body))
        else:
            self._show_pod(decode_pod(body), is_gone=change["event"] == "DELETED")

    def _created(self, change: Json) -> Json:
        name = change["name"]
        boxes = BOXES.get(name, ())
        return {
            "metadata": {
                "name": name,
                "namespace": "" if change["kind"] == "node" else "default",
                "uid": f"uid-{name}",
                "annotations": {},
            },
            "spec": {
                "initContainers": [b.manifest() for b in boxes if b.kind is not ContainerKind.APP],
                "containers": [b.manifest() for b in boxes if b.kind is ContainerKind.APP],
            },
            "status": {"allocatable": {nvidia_names.RESOURCE_GPU: "80"}},
        }

    def _show_node(self, node: Node) -> None:
        self.state.node_changed(None, node)
        self.shown[node.name] = node

    def _show_pod(self, pod: Pod, *, is_gone: bool) -> None:
        self.state.pod_changed(pod, None if is_gone else pod)
        self.shown[pod.name] = pod
        if is_gone:
            del self.shown[pod.name]

    def expected_mib(self) -> dict[str, int]:
        """What the recorded pods hold by the plain rule: grants, bound, not finished."""
        return {
            name: HOLDS_MIB[name]
            for name, pod in self.shown.items()
            if isinstance(pod, Pod)
            and nvidia_names.POD_ALLOCATED in pod.annotations
            and pod.node_name
            and not pod.is_over
        }

    def held_mib(self) -> dict[str, int]:
        return {
            uid.removeprefix("uid-"): sum(charge.memory_mib for charge in charges)
            for uid, (_, charges) in self.state.charges().items()
        }


@pytest.mark.parametrize("generation", GENERATIONS)
def test_grants_of_the_generations_scheduler_count_right_at_each_change(generation: str) -> None:
    player, most = Player(timeline(generation)), 0
    for change in player.changes:
        player.play(change)
        assert player.held_mib() == player.expected_mib(), change
        if NODE in player.shown:
            used = sum(card.memory_used_mib for card in player.state.usage()[NODE].values())
            assert used == sum(player.expected_mib().values())
            most = max(most, used)
    assert most >= 3000 + 10_000 + 40_960
    assert player.held_mib() == {}


def decisions(generation: str) -> Iterator[tuple[str, Pod, Pod, dict[str, str | None]]]:
    """(pod's name, the pod before, as that scheduler wrote it, what we would have written)."""
    player = Player(timeline(generation))
    node = next(change for change in player.changes if change["kind"] == "node")
    player.play(node)
    for change in player.changes:
        before = player.shown.get(change["name"])
        if names.POD_TIME in change["set"] and isinstance(before, Pod):
            ours = decided(player, before)
            player.play(change)
            after = player.shown[change["name"]]
            assert isinstance(after, Pod)
            yield before.name, before, after, ours
        elif change is not node:
            player.play(change)


def decided(player: Player, pod: Pod) -> dict[str, str | None]:
    """What our extender writes for the pod in this moment; nothing is kept of it."""
    reserved = player.state.reserve(pod, request_of(pod, player.state.rules.vendors), [NODE])
    assert isinstance(reserved, Reserved), reserved
    writer = ReservationWriter(FakeExtenderKube(), player.clock, player.state.rules.vendors)
    annotations = writer.annotations_of(pod, reserved)
    player.state.undo(pod.uid, reserved.token)
    return annotations


def decoded(text: str) -> tuple[ContainerGrants, ...]:
    return decode_grants(text, nvidia_names.POD_ALLOCATED, NVIDIA)


def shape(granted: ContainerGrants) -> list[tuple[int, int]]:
    return sorted((grant.memory_mib, grant.cores) for grant in granted)


def solved(pod: Pod, text: str | None) -> dict[str, list[tuple[int, int]]]:
    """Amounts by container, as a plugin that solves the slots finds them."""
    slots = assign_slots(
        pod,
        counts_of(pod, nvidia_names.RESOURCE_GPU),
        decoded(str(text)),
        decoded(str(text)),
    )
    assert isinstance(slots, SlotMap), slots
    assert list(slots.waiting) == list(slots.granted)
    return {name: shape(granted) for name, granted in slots.granted.items()}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_our_reservation_says_what_the_generations_scheduler_said(generation: str) -> None:
    seen = []
    for name, pod, theirs, ours in decisions(generation):
        seen.append(name)
        amounts = solved(pod, ours[nvidia_names.POD_ALLOCATED])
        wanted = solved(pod, theirs.annotations[nvidia_names.POD_ALLOCATED])
        if generation != "v2.10.0":
            amounts.pop("i0", None)  # these generations give init containers nothing
        assert amounts == wanted, name
        assert ours[nvidia_names.POD_TO_ALLOCATE] == ours[nvidia_names.POD_ALLOCATED]
        assert ours[names.POD_NODE] == theirs.annotations[names.POD_NODE]
        assert abs(int(str(ours[names.POD_TIME])) - int(theirs.annotations[names.POD_TIME])) < 60
        written = {key for key in theirs.annotations if key.startswith("hami.io/vgpu-")}
        assert written == {key for key in ours if key.startswith("hami.io/vgpu-")}
    assert seen == ["one", "two-containers", "sidecar-without-gpu", "init"]
