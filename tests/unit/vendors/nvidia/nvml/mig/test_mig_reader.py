"""What a pass reads of a card in MIG mode, and when it reads it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hami_node.errors import DeviceLost
from hami_node.vendors.nvidia.driver import DriverLibrary
from hami_node.vendors.nvidia.mig.layout import MigCard, MigPlacement
from hami_node.vendors.nvidia.nvml.calls import NvmlCalls
from hami_node.vendors.nvidia.nvml.cards import MigModes
from hami_node.vendors.nvidia.nvml.mig.reader import INSTANCES_S, PROFILES_S, AskedCard, MigReader
from tests.fakes.clock import FakeClock
from tests.nvml_stub.control import Stub, card
from tests.nvml_stub.mig import ALL_MODELS, MigHardware, profiles_of
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.mig.conftest import A100, CARDS

ON = MigModes(is_enabled=True, is_pending=True)
MEMORY_MIB = {
    "A30": 24576,
    "A100-40": 40960,
    "A100-80": 81920,
    "H100-80": 81559,
    "H100-NVL": 95830,
    "H200": 143771,
    "B200": 183359,
    "RTX-PRO-6000": 97887,
}
LISTS = ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstances")


class Reader:
    """A reader on this thread, with time that the test moves."""

    def __init__(self, stub: Stub, hardware: MigHardware) -> None:
        self.stub, self.hardware, self.clock = stub, hardware, FakeClock()
        self.calls, self.reader = NvmlCalls(self.clock), MigReader(self.clock)
        self.calls.load(DriverLibrary(stub.library))
        self.calls.ask("nvmlInit")

    @property
    def asked(self) -> AskedCard:
        handle = self.calls.ask("nvmlDeviceGetHandleByIndex", 0, card=0)
        return AskedCard(calls=self.calls, index=0, handle=handle)

    def scan(self, modes: MigModes = ON) -> MigCard:
        return self.reader.scan(self.asked, A100, modes)

    def look(self) -> MigCard:
        return self.reader.look(self.asked, A100, ON)

    def reads(self) -> tuple[int, ...]:
        return tuple(self.stub.calls(function) for function in LISTS)

    def show(self, *lines: str) -> None:
        self.stub.write(*CARDS, *lines)


@pytest.fixture
def reader(stub: Stub, hardware: MigHardware) -> Iterator[Reader]:
    made = Reader(stub, hardware)
    yield made
    stub.write(*CARDS)
    made.calls.ask("nvmlShutdown")


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.key)
def test_profiles_are_the_drivers_own(reader: Reader, model: object) -> None:
    key = model.key  # type: ignore[attr-defined]
    reader.stub.write(card(0, mig="enabled", model=key))
    found = {known.name: known for known in reader.scan().profiles}
    assert found.keys() == profiles_of(key).keys()
    for name, wanted in profiles_of(key).items():
        known = found[name]
        assert (known.id, known.memory_mib) == (wanted.id, wanted.memory_mib)
        assert (known.slice_count, known.instance_count) == (wanted.slices, wanted.instances)
        assert known.multiprocessors == wanted.multiprocessors
        places = [MigPlacement(start=start, size=wanted.size) for start in wanted.starts]
        assert list(known.placements) == places


@pytest.mark.parametrize("model", MEMORY_MIB)
def test_driver_that_names_no_profiles_gets_the_same_names(reader: Reader, model: str) -> None:
    line = card(0, mig="enabled", model=model, memory_mib=MEMORY_MIB[model])
    reader.stub.write(line)
    named = reader.scan()
    reader.stub.write(line, "fail nvmlDeviceGetGpuInstanceProfileInfoV 0 13")
    reader.reader.forget()
    assert reader.scan() == named


def test_instances_are_read_from_time_to_time_and_profiles_seldom(reader: Reader) -> None:
    first, cost = reader.scan(), reader.reads()
    made = reader.hardware.make(A100, "2g.10gb", 4)
    assert reader.scan() is first
    assert reader.reads() == cost
    reader.clock.advance(INSTANCES_S)
    (seen,) = reader.scan().instances
    assert (seen.profile, seen.gpu_instance_id, seen.processes) == ("2g.10gb", made.gi, None)
    assert reader.reads()[0] == cost[0]
    reader.clock.advance(PROFILES_S)
    assert reader.scan() == replace(first, instances=(seen,))
    assert reader.reads()[0] > cost[0]


def test_passing_processes_are_no_change_of_the_card(reader: Reader) -> None:
    made = reader.hardware.make(A100, "1g.5gb", 0)
    before = reader.scan()
    reader.hardware.run(made.uuid, 4711)
    reader.clock.advance(INSTANCES_S)
    assert reader.scan() == before
    assert reader.look().instances[0].processes == frozenset({4711})


def test_part_of_a_gpu_instance_is_no_instance_to_offer(reader: Reader) -> None:
    reader.hardware.make(A100, "2g.10gb", 0, is_whole=False)
    owner = reader.calls.ask("nvmlDeviceGetGpuInstanceById", reader.asked.handle, 3)
    reader.calls.ask("nvmlGpuInstanceCreateComputeInstance", owner, 0)
    (seen,) = reader.look().instances
    assert (seen.compute_instance_ids, seen.device) == ((0,), None)
    reader.calls.ask("nvmlGpuInstanceCreateComputeInstance", owner, 0)
    (seen,) = reader.look().instances
    assert (seen.compute_instance_ids, seen.device) == ((0, 1), None)
    reader.hardware.run(reader.hardware.uuids(A100)[1], 4711)
    assert reader.look().instances[0].processes == frozenset({4711})


@pytest.mark.parametrize("rights", ["none", "monitor"])
def test_without_rights_devices_are_seen_but_not_their_places(reader: Reader, rights: str) -> None:
    whole = reader.hardware.make(A100, "1g.5gb", 2)
    reader.hardware.make(A100, "3g.20gb", 4, is_whole=False)
    full = reader.scan()
    reader.reader.forget()
    reader.show(f"rights {rights}")
    found = reader.scan()
    assert (found.problem, [known.name for known in found.profiles]) == (
        "",
        [known.name for known in full.profiles],
    )
    if rights == "monitor":
        assert found == full
        return
    assert "overlay" in found.restriction
    (seen,) = found.instances
    assert (seen.profile, seen.device) == ("1g.5gb", full.instances[1].device)
    assert seen.device is not None
    assert (seen.device.uuid, seen.placement) == (whole.uuid, MigPlacement())
    with pytest.raises(DeviceLost, match="not all of the card may be seen"):
        reader.look()


def test_processes_that_may_not_be_seen_are_unknown(reader: Reader) -> None:
    reader.hardware.make(A100, "1g.5gb", 2)
    reader.show("fail nvmlDeviceGetComputeRunningProcesses_v3 0 4")
    assert reader.look().instances[0].processes is None


def test_instance_that_goes_while_it_is_read_is_no_instance(reader: Reader) -> None:
    reader.hardware.make(A100, "1g.5gb", 2)
    reader.show("nth gone nvmlGpuInstanceGetInfo 0 1 before fail 6")
    assert reader.scan().instances == ()
    reader.reader.note_change(A100)
    assert len(reader.scan().instances) == 1


@pytest.mark.parametrize("code", [2, 6, 999])
def test_instances_that_change_while_they_are_read_are_read_again(
    reader: Reader, code: int
) -> None:
    reader.hardware.make(A100, "1g.5gb", 2)
    reader.show(f"nth part{code} nvmlComputeInstanceGetInfo_v2 0 2 before fail {code}")
    found = reader.scan()
    assert not found.problem
    assert len(found.instances) == 1


@shows(
    "G5",
    fault="the driver answers nonsense about a card's MIG profiles or instances",
    happens="that card has the problem as its reason, and is read again; nothing is made of it",
    lost="instances of that card meanwhile",
)
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x2C, 0x80, 0xFF])
@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlGpuInstanceGetComputeInstances",
        "nvmlComputeInstanceGetInfo_v2",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMaxMigDeviceCount",
    ],
)
def test_nonsense_is_a_problem_of_the_card(reader: Reader, function: str, byte: int) -> None:
    reader.hardware.make(A100, "1g.5gb", 2)
    reader.hardware.make(A100, "3g.20gb", 4)
    full = reader.scan()
    asked = reader.asked
    reader.show(f"garbage {function} 0 {byte}")
    reader.reader.forget()
    found = reader.reader.scan(asked, A100, ON)
    for known in found.profiles:
        assert 0 < known.memory_mib <= 2**24
        assert known.name.isprintable()
    for seen in found.instances:
        assert seen.device is None or seen.device.uuid.startswith("MIG-")
    if found.problem:
        assert found.instances == ()
        assert reader.reader.scan(asked, A100, ON) == found
    reader.show()
    reader.clock.advance(PROFILES_S)
    assert reader.scan() == full


@pytest.mark.parametrize(
    "line",
    [
        "profile 0 1g.5gb name=1g,5gb:",
        "profile 0 1g.5gb name=",
        "profile 0 1g.5gb name=2g.10gb",
        "profile 0 1g.5gb memory_mib=0",
        "profile 0 1g.5gb memory_mib=99999999999",
        "profile 0 1g.5gb multiprocessors=0",
        "fail nvmlDeviceGetGpuInstanceProfileInfoV 0 3",
        "fail nvmlDeviceGetGpuInstanceProfileInfoV 0 999",
        "fail nvmlDeviceGetGpuInstances 0 999",
    ],
)
def test_what_no_card_has_is_a_problem_of_the_card(reader: Reader, line: str) -> None:
    reader.show(line)
    found = reader.scan()
    assert found.is_enabled
    if line.endswith("name="):  # the stand-in keeps the name
        assert not found.problem
    else:
        assert found.problem


def test_card_that_is_lost_is_no_mere_problem(reader: Reader) -> None:
    reader.show("fail nvmlDeviceGetGpuInstances 0 15")
    with pytest.raises(DeviceLost):
        reader.scan()
