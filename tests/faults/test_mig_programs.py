"""Every NVML call on the way of a MIG instance fails, hangs or ends the program, one at a time.

Real NVML calls, a real record on a disk, real processes and SIGKILL; only the driver is a stand-in.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pytest

from tests.faults.mig_program import CALL_LIMIT_S, Ended, Programs, lines
from tests.nvml_stub.build import NoCompiler, build
from tests.nvml_stub.control import UUIDS, Stub
from tests.nvml_stub.mig import Instance
from tests.reliability import shows

CARD, OTHER = UUIDS[0], UUIDS[1]
STRANGER_PID: Final = 4711
HANG_LIMIT_S: Final = 0.3
"""So long a call may take where one hangs."""
PARTS: Final = 3
"""So many tests share the positions of a way: each stays below the limit of a test."""
MAKE: Final = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
)
DESTROY: Final = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")
ASKED: Final = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)
"""What is asked on the way, besides the calls that change the card."""


@dataclass(frozen=True, slots=True)
class Start:
    """Hardware and record before a fault; what others have, and the UUIDs that pod b has."""

    hardware: bytes
    record: bytes
    theirs: tuple[Instance, Instance]
    living: frozenset[str]


@dataclass
class World:
    """Pod b has two instances, one of them busy; somebody else has two; pod a comes and goes."""

    stub: Stub
    programs: Programs
    ids: Iterator[int] = field(default_factory=lambda: count(1))
    starts: dict[bool, Start] = field(default_factory=dict)
    start: Start = field(init=False)

    def begin(self, *, has_a: bool) -> None:
        """As before the fault."""
        self.stub.write(*lines())
        self.stub.mig.reset()
        if has_a not in self.starts:
            self.starts[has_a] = self._started(has_a)
        self.start = self.starts[has_a]
        self.stub.mig.reset()
        self.stub.mig.restore(self.start.hardware)
        self.programs.record.write_bytes(self.start.record)

    def _started(self, has_a: bool) -> Start:
        self.programs.record.unlink(missing_ok=True)
        whole = self.stub.mig.make(CARD, "1g.5gb", 6)
        half = self.stub.mig.make(OTHER, "3g.20gb", 0, is_whole=False)
        served = self.programs.run("make b", *(["make a"] if has_a else []), "settle")
        assert served.code == 0
        self.stub.mig.run(served.told["b"][0], STRANGER_PID)
        return Start(
            hardware=self.stub.mig.saved(),
            record=self.programs.record.read_bytes(),
            theirs=(whole, half),
            living=frozenset(served.told["b"]),
        )

    def own(self) -> Mapping[str, str]:
        """MIG UUIDs of what our programs have made, or are to make, by profile and start."""
        found = self.stub.mig.instances(CARD)
        return {f"{i.profile}@{i.start}": i.uuid for i in found if i not in self.start.theirs}

    def befall(self, calls: str, position: int, when: str, effect: str) -> tuple[str, str]:
        """The step that lets it happen from there on, and the line's id."""
        line = f"line-{next(self.ids)}"
        return f"say nth {line} {calls} 0 {position} {when} {effect}", line

    def check_others(self, where: object) -> None:
        """What the fault does not concern is as it was."""
        assert self.start.theirs[0] in self.stub.mig.instances(CARD), where
        assert self.stub.mig.instances(OTHER) == (self.start.theirs[1],), where
        assert not self.stub.mig.changes(OTHER), where
        assert self.start.living <= set(self.own().values()), where

    def recover(self, where: object) -> None:
        """A new program finds what is left of pod a, which kubelet has failed or forgotten."""
        self.stub.write(*lines())
        self.check_others(where)
        ended = self.programs.run("settle", held=["b"], served=["b"])
        assert ended.code == 0, where
        self.check_others(where)
        assert set(self.own().values()) == self.start.living, where
        assert ended.told["record"] == self.own(), where

    def make_again(self, where: object) -> None:
        """The place is good for a pod."""
        ended = self.programs.run("make a", "settle", held=["b"], served=["b"])
        assert ended.code == 0, where
        assert isinstance(ended.told["a"], list), f"{where}: {ended.told['a']}"
        assert ended.told["record"] == self.own(), where
        assert len(self.own()) == 3, where
        self.check_others(where)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("mig")
    try:
        stub = Stub(build(folder / "lib"), folder / "nvml.txt")
    except NoCompiler as error:
        pytest.skip(str(error))
    stub.write(*lines())
    programs = Programs(stub, folder)
    yield World(stub, programs)
    programs.close()


def made(world: World, step: str) -> Ended:
    """A program makes pod a's instance while that happens."""
    return world.programs.run(
        step, "make a", held=["b"], served=["b"], call_limit_s=call_limit_s(step)
    )


def ended(world: World, step: str) -> Ended:
    """A program destroys what pod a had while that happens."""
    held = ["a", "b"]
    return world.programs.run(
        step, "end a", "keep 1", held=held, served=held, call_limit_s=call_limit_s(step)
    )


def call_limit_s(step: str) -> float:
    """How long a call may take while that happens."""
    return HANG_LIMIT_S if " hang " in step else CALL_LIMIT_S


WAYS: Final = {"make": made, "destroy": ended}


def calls_of(world: World, way: str) -> int:
    """How many NVML calls of its card it makes."""
    world.begin(has_a=way == "destroy")
    step, line = world.befall("*", 100_000, "before", "kill")
    assert WAYS[way](world, step).code == 0
    return world.stub.mig.counted(line)


@shows(
    "G2",
    fault="the daemon is killed at any NVML call on the way of making or destroying a MIG instance",
    happens="the next one finishes or undoes it: hardware and record are the same, instances of "
    "others and of living pods are as they were",
    lost="a pod that was being admitted: kubelet refuses it",
)
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("part", range(PARTS))
def test_kill_at_every_call_leaves_no_lost_and_touches_no_other_instance(
    world: World, way: str, part: int
) -> None:
    last = calls_of(world, way)
    assert last > 20
    for position in range(1 + part, last + 1, PARTS):
        where = f"{way}, call {position} of {last}"
        world.begin(has_a=way == "destroy")
        step, _ = world.befall("*", position, "before", "kill")
        assert WAYS[way](world, step).code == -signal.SIGKILL, where
        world.recover(where)


@pytest.mark.parametrize(
    ("way", "call"), [("make", c) for c in MAKE] + [("destroy", c) for c in DESTROY]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_at_a_change_is_made_good_and_the_place_is_good_again(
    world: World, way: str, call: str, when: str
) -> None:
    world.begin(has_a=way == "destroy")
    step, _ = world.befall(call, 1, when, "kill")
    assert WAYS[way](world, step).code == -signal.SIGKILL
    if when == "after":
        world.recover(call)
    world.make_again(call)
    world.recover(call)


@pytest.mark.parametrize("call", MAKE)
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_during_the_recovery_from_a_kill(world: World, call: str, when: str) -> None:
    for again in DESTROY:
        for again_when in ("before", "after"):
            world.begin(has_a=False)
            step, _ = world.befall(call, 1, when, "kill")
            assert made(world, step).code == -signal.SIGKILL
            step, _ = world.befall(again, 1, again_when, "kill")
            world.programs.run(step, "settle", held=["b"], served=["b"])
            world.recover((call, when, again, again_when))


@shows(
    "G3",
    fault="any NVML call on the way of making or destroying a MIG instance fails or hangs in a "
    "daemon that goes on",
    happens="the pod has its instance or is refused with the reason; hardware and record agree in "
    "the end, instances of others and of living pods are as they were",
)
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("part", range(PARTS))
def test_every_call_fails_once(world: World, way: str, part: int) -> None:
    last = calls_of(world, way)
    for position in range(1 + part, last + 1, PARTS):
        check_survived(world, way, "*", position, "before", "fail 999")


def check_survived(
    world: World, way: str, call: str, position: int, when: str, effect: str
) -> None:
    """It happens, and the program goes on."""
    where = f"{way}, {call} number {position}, {when}: {effect}"
    world.begin(has_a=way == "destroy")
    step, line = world.befall(call, position, when, effect)
    told = WAYS[way](world, step)
    assert told.code == 0, where
    assert world.stub.mig.counted(line) >= position, f"{where}: was never called"
    answer = told.told.get("a")
    if isinstance(answer, list):
        assert answer == [world.own()["2g.10gb@0"]], where
    elif way == "make":
        assert CARD in str(answer), f"{where}: the reason names the card"
    world.recover(where)


@pytest.mark.parametrize(
    ("way", "call"),
    [("make", c) for c in (*MAKE, *ASKED)] + [("destroy", c) for c in (*DESTROY, *ASKED)],
)
@pytest.mark.parametrize("effect", ["fail 3", "fail 15", "hang 60"])
def test_a_call_fails_otherwise_or_hangs(world: World, way: str, call: str, effect: str) -> None:
    check_survived(world, way, call, 1, "before", effect)


@pytest.mark.parametrize(
    ("way", "call"), [("make", c) for c in MAKE] + [("destroy", c) for c in DESTROY]
)
@pytest.mark.parametrize("code", [4, 19, 23])
def test_a_change_is_refused(world: World, way: str, call: str, code: int) -> None:
    check_survived(world, way, call, 1, "before", f"fail {code}")


@pytest.mark.parametrize(
    ("way", "call"), [("make", c) for c in MAKE] + [("destroy", c) for c in DESTROY]
)
@pytest.mark.parametrize("effect", ["fail 999", "hang 60"])
def test_a_change_is_done_and_then_fails_or_hangs(
    world: World, way: str, call: str, effect: str
) -> None:
    check_survived(world, way, call, 1, "after", effect)


@pytest.mark.parametrize("call", [*MAKE, *DESTROY])
def test_a_call_that_always_fails_leaves_what_it_concerns_and_nothing_else(
    world: World, call: str
) -> None:
    way = "make" if call in MAKE else "destroy"
    world.begin(has_a=way == "destroy")
    WAYS[way](world, f"say fail {call} 0 999")
    world.check_others(call)
    ended = world.programs.run("settle", held=["b"], served=["b"])
    assert ended.code == 0
    world.check_others(call)
    assert set(ended.told["record"]) == set(world.own()), "it is not forgotten"
    world.recover(call)


@pytest.mark.parametrize("moment", [("before", MAKE[0]), ("after", DESTROY[1])])
def test_what_somebody_else_makes_there_after_the_kill_is_theirs(
    world: World, moment: tuple[str, str]
) -> None:
    when, call = moment
    way = "make" if call in MAKE else "destroy"
    world.begin(has_a=way == "destroy")
    step, _ = world.befall(call, 1, when, "kill")
    assert WAYS[way](world, step).code == -signal.SIGKILL
    theirs = world.stub.mig.make(CARD, "2g.10gb", 0)
    calls = len(world.stub.mig.changes(CARD))
    ended = world.programs.run("settle", held=["b"], served=["b"])
    assert ended.code == 0
    assert theirs in world.stub.mig.instances(CARD)
    assert len(world.stub.mig.changes(CARD)) == calls, "not even an attempt"
    assert theirs.uuid not in ended.told["record"].values()
    refused = world.programs.run("make a", held=["b"], served=["b"]).told["a"]
    assert theirs.uuid in refused
    world.stub.mig.destroy(CARD, theirs.gi)
    world.recover(call)


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetComputeInstances",
        "nvmlGpuInstanceGetInfo",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount",
    ],
)
@pytest.mark.parametrize("byte", [0, 0x41, 0xFF])
def test_answers_that_are_garbage_for_a_while_cost_nobody_an_instance(
    world: World, call: str, byte: int
) -> None:
    world.begin(has_a=True)
    before = world.own()
    told = world.programs.run(
        f"say garbage {call} 0 {byte}", "keep 4", held=["a", "b"], served=["a", "b"]
    )
    assert told.code == 0
    assert world.own() == before, "nothing has gone"
    world.stub.write(*lines())
    settled = world.programs.run("settle", "settle", held=["a", "b"], served=["a", "b"])
    assert settled.told["record"] == before == world.own()
    world.check_others(call)
    world.recover(call)
