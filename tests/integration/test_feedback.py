"""Who waits and whose core limit counts on shared cards, in the files that containers read."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.regions.region_layouts import LAYOUTS, Layout
from tests.fakes.cards import uuid
from tests.fakes.made_region import MadeRegion
from tests.fakes.pods import Box, Part
from tests.fakes.processes import started
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig
from tests.reliability import shows

BY_NAME = {layout.name: layout for layout in LAYOUTS}
QUICK = {"usage_interval_s": "1"}
NO_ENV: Mapping[str, str] = {}
HIGH = {nvidia_names.ENV_TASK_PRIORITY: "0"}
WAITS, GOES_ON = (-1, 1), (0, 1)
"""What stands in `recent_kernel` and `utilization_switch`."""


@dataclass
class Program:
    """A program at work in a container: it writes its file as the limiter does."""

    path: Path
    layout: Layout
    policy: str

    @property
    def words(self) -> tuple[int, int]:
        """`recent_kernel` and `utilization_switch`, as it reads them before each launch."""
        with self.path.open("rb") as file:
            switch, recent = struct.unpack("<ii", os.pread(file.fileno(), 8, self.layout.tail + 4))
        return recent, switch

    def launch(self) -> None:
        """It has launched a kernel just now."""
        with self.path.open("r+b") as file:
            now = struct.pack("<Q", int(time.time()))
            os.pwrite(file.fileno(), now, self.layout.tail + 16)

    def idle(self) -> None:
        """Its last launch is long ago."""
        with self.path.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("<Q", 1), self.layout.tail + 16)


def program(
    rig: Rig, name: str, card: int = 0, *, layout: str = "v1.2", env: Mapping[str, str] = NO_ENV
) -> Program:
    """A pod with a part of a card whose program has begun, and has launched a kernel."""
    box = Box(memory_mib=1000, cores=30, env=env)
    rig.place(name, [box], {"main": [Part(uuid=uuid(card), memory_mib=1000, cores=30)]})
    answer = rig.admit(name)
    assert answer.is_admitted, answer.refusal
    folder = f"uid-{name}_main"
    path = rig.hook / "vgpu" / "containers" / folder / f"{folder}.cache"
    told = dict(answer.responses["main"].envs)
    made = Program(path, BY_NAME[layout], told.get(nvidia_names.ENV_CORE_POLICY, ""))
    path.write_bytes(MadeRegion(made.layout, 1).put(0, 100, 100).raw)
    if made.layout.has_last_kernel:
        made.launch()
    return made


@pytest.fixture
def quick(node: Rig) -> Rig:
    """A daemon that looks ten times a second."""
    node.start(**QUICK)
    return node


def test_core_limits_count_only_while_a_card_is_contended(quick: Rig) -> None:
    first, other_card = program(quick, "a"), program(quick, "b", 1)
    eventually(lambda: first.words[1] == other_card.words[1] == 0, LIMIT_S)
    second = program(quick, "c")
    eventually(lambda: first.words[1] == second.words[1] == 1, LIMIT_S)
    assert other_card.words[1] == 0
    second.idle()
    eventually(lambda: first.words[1] == 0, LIMIT_S)


@shows(
    "B5",
    fault="core limits are to count always, and a container is alone on its card",
    happens="it is told so at its start, and one that runs already is throttled, too",
)
def test_forced_core_limits_count_for_one_alone_too(node: Rig) -> None:
    node.start(core_policy="force", **QUICK)
    told, alone = program(node, "a"), program(node, "b", 1)
    assert told.policy == alone.policy == "force"
    with alone.path.open("r+b") as file:  # as it is where the policy was another one before
        os.pwrite(file.fileno(), struct.pack("<i", 0), alone.layout.tail + 4)
    eventually(lambda: alone.words[1] == 1, LIMIT_S)
    assert told.words[1] == 1


def test_lower_priority_waits_while_the_higher_one_works(quick: Rig) -> None:
    low, high = program(quick, "low"), program(quick, "high", env=HIGH)
    eventually(lambda: low.words == WAITS, LIMIT_S)
    assert high.words[0] >= 0
    high.idle()
    eventually(lambda: low.words[0] >= 0, LIMIT_S)
    high.launch()
    eventually(lambda: low.words == WAITS, LIMIT_S)
    quick.end("high")
    eventually(lambda: low.words[0] >= 0, LIMIT_S)


@shows(
    "B1",
    fault="a container writes a higher priority, or a launch of tomorrow, into its own file",
    happens="its pod's priority counts, and nobody waits for it",
)
def test_priority_and_time_in_a_file_make_nobody_wait(quick: Rig) -> None:
    liar, good = program(quick, "liar"), program(quick, "good")
    eventually(lambda: good.words[1] == 1, LIMIT_S)
    with liar.path.open("r+b") as file:
        os.pwrite(file.fileno(), struct.pack("<i", 0), liar.layout.tail + 12)
        tomorrow = struct.pack("<Q", int(time.time()) + 86_400)
        os.pwrite(file.fileno(), tomorrow, liar.layout.tail + 16)
    eventually(lambda: good.words[1] == 0, LIMIT_S)  # and so it is alone
    assert good.words[0] >= 0


@shows(
    "B2",
    fault="the daemon is stopped or upgraded while a container waits for a higher priority",
    happens="nobody waits any more, and every core limit counts, as the limiter starts",
)
@pytest.mark.parametrize("layout", ["v0", "v1.1", "v1.1x", "v1.2"])
def test_nobody_is_left_waiting_when_the_daemon_stops(quick: Rig, layout: str) -> None:
    low, high = program(quick, "low", layout=layout), program(quick, "high", env=HIGH)
    eventually(lambda: low.words == WAITS, LIMIT_S)
    eventually(lambda: high.words[1] == 0, LIMIT_S)
    quick.stop()
    assert low.words == GOES_ON
    assert high.words[1] == 1


@pytest.fixture
def killed(node: Rig) -> tuple[Rig, Program]:
    """A node whose daemon was killed while a container waited; the higher priority is gone."""
    flags = node.flags() | {"usage-interval-s": "0.1"}
    process: subprocess.Popen[bytes] = started(node.root / "log", "run", flags)
    try:
        node.wait_registered()
        low, high = program(node, "low"), program(node, "high", env=HIGH)
        eventually(lambda: low.words == WAITS, LIMIT_S)
    finally:
        process.kill()
        process.wait(LIMIT_S)
    high.idle()
    assert low.words == WAITS
    return node, low


@shows(
    "B3",
    fault="the daemon is killed while a container waits, and the API server is away when the next "
    "one starts",
    happens="the next daemon's first pass lets it go on, by the record alone",
)
def test_who_waits_after_a_kill_goes_on_once_the_next_daemon_has_started(
    killed: tuple[Rig, Program],
) -> None:
    node, low = killed
    node.api.go_down()
    process = started(node.root / "log", "run", node.flags() | {"usage-interval-s": "0.1"})
    try:
        eventually(lambda: low.words[0] >= 0, LIMIT_S)
    finally:
        process.kill()
        process.wait(LIMIT_S)


@shows(
    "B4",
    fault="passes over the containers are switched off after a daemon was killed",
    happens="the next daemon takes back what the killed one said, once",
)
def test_who_waits_goes_on_though_passes_are_switched_off(killed: tuple[Rig, Program]) -> None:
    node, low = killed
    node.start(usage_interval_s="0")
    eventually(lambda: low.words == GOES_ON, LIMIT_S)
