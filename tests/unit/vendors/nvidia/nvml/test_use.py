"""How much of a card is used, by the driver; asked for only when somebody wants it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.ports import HostUse
from hami_node.vendors.nvidia.nvml.backend import NvmlBackend
from hami_node.vendors.nvidia.nvml.use import sees_all_processes
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS, Stub, card
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.conftest import Open

RATES = "nvmlDeviceGetUtilizationRates"


def used(backend: NvmlBackend, *with_processes: int) -> dict[int, HostUse]:
    """Ask, let a pass go by, and return what it found, by card."""
    wanted = [UUIDS[i] for i in with_processes]
    backend.host_use(wanted)  # type: ignore[arg-type]  # texts
    backend.scan()
    return {UUIDS.index(uuid): use for uuid, use in backend.host_use().items()}


def test_what_the_driver_says_of_each_card(start: Open, stub: Stub) -> None:
    stub.write(card(0, used_mib=1000, busy=40), card(1, busy="unsupported"))
    assert used(start()) == {
        0: HostUse(memory_bytes=1000 << 20, core_percent=40, memory_controller_percent=20),
        1: HostUse(memory_bytes=0),
    }


def test_nothing_is_asked_before_somebody_wants_it(start: Open, stub: Stub) -> None:
    backend = start()
    before = stub.calls(RATES)
    backend.scan()
    assert backend.host_use() == {}
    assert stub.calls(RATES) == before
    backend.scan()
    backend.scan()
    assert stub.calls(RATES) == before + 3, "once for each of three cards"


def test_processes_of_the_wanted_cards(start: Open, stub: Stub) -> None:
    stub.write(card(0, processes="10,11"), card(1, processes="12"), card(2))
    found = used(start(), 0, 2)
    processes = {index: use.processes for index, use in found.items()}
    assert processes == {0: frozenset({10, 11}), 1: None, 2: frozenset()}


def test_no_processes_are_none_only_where_those_of_the_host_are_seen(
    start: Open, stub: Stub
) -> None:
    """Newer drivers list no processes of other PID namespaces, and say nothing of it."""
    stub.write(card(0, processes="10"), card(1))
    found = used(start(sees_all_processes=False), 0, 1)
    assert {index: found[index].processes for index in (0, 1)} == {0: frozenset({10}), 1: None}


@pytest.mark.parametrize(
    ("target", "is_hosts"),
    [("pid:[4026531836]", True), ("pid:[4026532417]", False), (None, False)],
    ids=["host", "container", "unreadable"],
)
def test_pid_namespace_of_the_host_has_the_kernels_number(
    tmp_path: Path, target: str | None, is_hosts: bool
) -> None:
    link = tmp_path / "pid"
    if target is not None:
        link.symlink_to(target)
    assert sees_all_processes(link) is is_hosts


def test_processes_of_an_older_driver(start: Open, stub: Stub) -> None:
    lines = (card(0, processes="10"), "fail nvmlDeviceGetComputeRunningProcesses_v3 * 13")
    stub.write(*lines)
    assert used(start(), 0)[0].processes == frozenset({10})
    stub.write(*lines, "fail nvmlDeviceGetComputeRunningProcesses_v2 * 13")
    assert used(start(), 0)[0].processes is None


@shows(
    "U3",
    fault="the driver does not tell how much of a card is used, fails, or tells nonsense",
    happens="the card has no such series, the other cards have theirs, and it stays healthy",
)
@pytest.mark.parametrize("fault", [f"fail {RATES} 1 999", f"garbage {RATES} 1 255"])
def test_card_that_fails_here_stays_healthy(start: Open, stub: Stub, fault: str) -> None:
    stub.show(fault)
    backend = start()
    found = used(backend)
    assert found.get(1, HostUse(memory_bytes=0)) == HostUse(memory_bytes=0)
    assert found[0].core_percent == found[2].core_percent == 0
    assert all(device.healthy for device in backend.scan())


@shows(
    "U7",
    fault="the driver hangs when it is asked how much of a card is used",
    happens="that card is unhealthy until it answers; the other cards' numbers go on",
)
def test_hanging_reading_holds_nobody_up(start: Open, stub: Stub) -> None:
    stub.show(f"hang {RATES} 1 60")
    backend = start(call_limit_s=0.2, scan_limit_s=2.0, interval_s=0.1)
    backend.host_use()
    backend.scan()
    eventually(lambda: [d.healthy for d in backend.scan()] == [True, False, True], 10.0)
    backend.host_use()
    eventually(lambda: len(backend.host_use()) == 2, 10.0)


def test_driver_that_is_gone_leaves_no_readings(start: Open, stub: Stub) -> None:
    backend = start(interval_s=0.05)
    assert used(backend)
    stub.write("fail * * 9")
    eventually(lambda: backend.host_use() == {}, 10.0)
