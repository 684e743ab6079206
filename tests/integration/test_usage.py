"""What Prometheus sees of use, on the daemon's own process and the driver's stand-in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.daemon_rig import CARDS, RESOURCE, SLOTS, DaemonRig, running_daemon
from tests.fakes.regions import recorded_region
from tests.fakes.waiting import eventually
from tests.faults.process import page, port_of
from tests.nvml_stub.control import MEMORY_MIB, UUIDS, card
from tests.reliability import shows

LIMIT_S = 20.0
MIB = 1 << 20
TWO_OF_THREE = recorded_region("v1.2-8f3a89c-2000-of-3000")


@pytest.fixture
def process() -> Iterator[DaemonRig]:
    """The daemon with quick passes, under both names."""
    with running_daemon("--usage-interval-s", "0.1", "--usage-metrics", "both") as running:
        eventually(lambda: running.kubelet.allocatable(RESOURCE) == CARDS * SLOTS, LIMIT_S)
        eventually(lambda: "event=serving" in running.log, LIMIT_S)
        yield running


def admitted(rig: DaemonRig, name: str, index: int) -> Path:
    """A pod that holds 3000 MiB of a card; its usage file."""
    rig.create_pod(name, UUIDS[index], 3000)
    eventually(lambda: rig.admit(name) == "", LIMIT_S)
    folder = f"uid-{name}_c"
    path = rig.root / "hook" / "vgpu" / "containers" / folder / f"{folder}.cache"
    assert path.is_file()
    return path


class Page:
    """The metrics as they are now."""

    def __init__(self, rig: DaemonRig) -> None:
        self._port = port_of(rig)

    def values(self, name: str, label: str = "pod") -> dict[str, float]:
        """Values of a family by one label."""
        _, text = page(self._port)
        found = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
        label_of = re.compile(rf'(?:^|,){label}="([^"]*)"')
        labelled = [(label_of.search(labels), float(value)) for labels, value in found]
        return {match[1]: value for match, value in labelled if match}

    def wait(self, name: str, wanted: dict[str, float], label: str = "pod") -> None:
        eventually(lambda: self.values(name, label) == wanted, LIMIT_S)


def test_use_of_containers_from_first_use_to_the_end(process: DaemonRig) -> None:
    shown = Page(process)
    first, second = admitted(process, "a", 0), admitted(process, "b", 1)
    assert shown.values("hami_node_container_memory_used_bytes") == {}
    first.write_bytes(TWO_OF_THREE.content)
    second.write_bytes(recorded_region("v1.1-8be6d90-busy").content)
    shown.wait("hami_node_container_memory_used_bytes", {"a": 2256 * MIB, "b": 1256 * MIB})
    assert shown.values("hami_vgpu_memory_limit_bytes") == {"a": 3000 * MIB, "b": 3000 * MIB}
    assert shown.values("hami_node_container_core_use_ratio") == {"a": 0.0, "b": 0.31}
    assert shown.values("hami_node_container_memory_used_bytes", "uuid") == {
        UUIDS[0]: 2256 * MIB,
        UUIDS[1]: 1256 * MIB,
    }
    process.api.edit("pods", "a", lambda body: body["status"].update(phase="Succeeded"), "default")
    shown.wait("hami_node_container_memory_used_bytes", {"b": 1256 * MIB})


def test_use_of_cards_by_everybody(process: DaemonRig) -> None:
    shown = Page(process)
    cards = [card(index, used_mib=1000 * index, busy=10 * index) for index in range(CARDS)]
    process.stub.write(*cards)
    wanted = {UUIDS[i]: 1000.0 * i * MIB for i in range(CARDS)}
    shown.wait("hami_node_card_memory_used_bytes", wanted, "uuid")
    shown.wait("hami_host_gpu_memory_used_bytes", wanted, "device_uuid")
    busy = {UUIDS[i]: i / 10 for i in range(CARDS)}
    shown.wait("hami_node_card_core_use_ratio", busy, "uuid")


@shows(
    "U6",
    fault="containers make a link, a pipe, random bytes or a huge number of slots of their files",
    happens="their neighbour's numbers go on, the daemon stays alive, and each is told by reason",
)
def test_hostile_files_beside_a_good_one(process: DaemonRig) -> None:
    shown = Page(process)
    secret = process.root / "secret"
    secret.write_bytes(TWO_OF_THREE.content)
    names = ("good", "link", "pipe", "random", "large", "greedy", "slots")
    paths = {name: admitted(process, name, i) for i, name in enumerate(names)}
    paths["good"].write_bytes(TWO_OF_THREE.content)
    paths["random"].write_bytes(os.urandom(2008953))
    os.truncate(paths["large"], 1 << 34)
    greedy = bytearray(TWO_OF_THREE.content)
    greedy[1896:1904] = ((MEMORY_MIB + 1) * MIB).to_bytes(8, "little")
    paths["greedy"].write_bytes(greedy)
    slots = bytearray(TWO_OF_THREE.content)
    slots[2008896:2008900] = b"\xff\xff\xff\x7f"
    paths["slots"].write_bytes(slots)
    for name in ("link", "pipe"):
        paths[name].unlink()
    paths["link"].symlink_to(secret)
    os.mkfifo(paths["pipe"])
    shown.wait(
        "hami_node_container_memory_used_bytes", dict.fromkeys(("good", "slots"), 2256 * MIB)
    )
    reasons = {"link": "kind", "pipe": "kind", "random": "magic", "large": "size"}
    reasons["greedy"] = "impossible"

    def found() -> dict[str, str]:
        text = page(port_of(process))[1]
        return dict(re.findall(r'usage_unreadable\{.*pod="(\w+)".*reason="(\w+)"', text))

    eventually(lambda: found() == reasons, LIMIT_S)
    assert process.process.poll() is None


def test_killed_process_under_an_old_limiter_is_told_by_the_driver(process: DaemonRig) -> None:
    shown = Page(process)
    killed = recorded_region("v0-fb11ec3-killed")
    admitted(process, "a", 0).write_bytes(killed.content)
    shown.wait("hami_node_container_memory_used_bytes", {"a": 2012 * MIB})
    (pid,) = killed.running
    lines = [card(index, processes=pid if index == 0 else 1) for index in range(CARDS)]
    process.stub.write(*lines)
    shown.wait("hami_node_container_memory_used_bytes", {"a": 756 * MIB})
