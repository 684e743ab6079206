"""What MIG instances use, by the driver; in turns, and only once somebody has asked."""

from __future__ import annotations

import pytest

from hami_node.model import Uuid
from hami_node.ports import HostUse, PartUse
from hami_node.vendors.nvidia.nvml.backend import NvmlBackend
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS, Stub
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.conftest import Open
from tests.unit.vendors.nvidia.nvml.mig_calls import in_mig_mode

CARD = Uuid(UUIDS[0])
DEVICES = "nvmlDeviceGetMigDeviceHandleByIndex"


def used(backend: NvmlBackend) -> HostUse:
    """Ask, let a pass go by, and return what it found of the first card."""
    backend.host_use()
    backend.scan()
    return backend.host_use()[CARD]


@pytest.fixture
def two(stub: Stub) -> tuple[str, str]:
    """The UUIDs of a 2g.10gb and a 1g.5gb on the first card."""
    stub.write(*in_mig_mode(0))
    stub.mig.make(CARD, "2g.10gb", 0)
    stub.mig.make(CARD, "1g.5gb", 4)
    by_profile = {each.profile: each.uuid for each in stub.mig.instances(CARD)}
    return by_profile["2g.10gb"], by_profile["1g.5gb"]


def test_memory_and_processes_of_each_instance(
    start: Open, stub: Stub, two: tuple[str, str]
) -> None:
    stub.mig.run(two[0], 77, used_mib=3000)
    found = used(start())
    numbers = {each.uuid: (each.gi, 0) for each in stub.mig.instances(CARD)}
    assert {part.uuid: part for part in found.parts} == {
        two[0]: PartUse(
            uuid=two[0], numbers=numbers[two[0]], memory_bytes=3000 << 20, limit_bytes=9856 << 20,
            processes=frozenset({77}),
        ),
        two[1]: PartUse(
            uuid=two[1], numbers=numbers[two[1]], memory_bytes=0, limit_bytes=4864 << 20,
            processes=frozenset(),
        ),
    }  # fmt: skip


@shows(
    "G27",
    fault="the driver fails, or tells nonsense, when it is asked what a MIG instance uses",
    happens="that instance has no such series, and those of other cards go on; nobody is unhealthy",
)
@pytest.mark.parametrize(
    "fault",
    [
        f"fail {DEVICES} 0 999",
        "fail nvmlDeviceGetMaxMigDeviceCount 0 999",
        "garbage nvmlDeviceGetGpuInstanceId 0 255",
        "fail nvmlDeviceGetGpuInstanceId 0 3",
    ],
)
def test_instances_that_can_not_be_read_cost_nobody_else(
    start: Open, stub: Stub, fault: str
) -> None:
    stub.write(*in_mig_mode(0, 1))
    stub.mig.make(UUIDS[0], "1g.5gb", 0)
    stub.mig.make(UUIDS[1], "1g.5gb", 0)
    backend = start()
    backend.scan()
    stub.write(*in_mig_mode(0, 1), fault)
    backend.host_use()
    backend.scan()
    found = backend.host_use()
    assert [len(found[Uuid(uuid)].parts) for uuid in UUIDS[1:3]] == [1, 0]
    assert found.get(CARD, HostUse()).parts == ()


def test_processes_that_may_not_be_listed_are_not_told(
    start: Open, stub: Stub, two: tuple[str, str]
) -> None:
    names = (f"nvmlDeviceGetComputeRunningProcesses_v{version}" for version in (2, 3))
    stub.write(*in_mig_mode(0), *(f"fail {name} * 4" for name in names))
    found = used(start())
    assert [part.processes for part in found.parts] == [None] * len(two)
    assert all(part.limit_bytes for part in found.parts)


@shows(
    "G28",
    fault="the driver hangs when it is asked what a MIG instance uses",
    happens="that card is out until the call returns; the other cards' numbers go on",
)
def test_hanging_instance_holds_nobody_up(start: Open, stub: Stub, two: tuple[str, str]) -> None:
    del two
    backend = start(call_limit_s=0.2, scan_limit_s=2.0, interval_s=0.1)
    backend.scan()
    stub.write(*in_mig_mode(0), "hang nvmlDeviceGetMaxMigDeviceCount 0 60")
    backend.host_use()
    eventually(lambda: [d.healthy for d in backend.scan()][1:] == [True, True], 10.0)
    eventually(lambda: not backend.scan()[0].healthy, 10.0)
    backend.host_use()
    eventually(lambda: set(backend.host_use()) == set(map(Uuid, UUIDS[1:3])), 10.0)
