"""The NVML stand-in, built once a session, and backends that are always closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.vendors.nvidia.driver import DriverLibrary
from hami_node.vendors.nvidia.nvml.backend import NvmlBackend, NvmlSettings
from hami_node.vendors.nvidia.nvml.cards import HostSources
from hami_node.vendors.nvidia.nvml.xid_ledger import XidPolicy
from tests.fakes.clock import RealClock
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import Stub

Open = Callable[..., NvmlBackend]


def wait_healthy(backend: NvmlBackend, expected: list[bool]) -> bool:
    """Follow events as the daemon does until the cards' health is as expected."""
    for _ in range(100):
        if [found.healthy for found in backend.scan()] == expected:
            return True
        backend.wait_for_event(0.1)
    return False


def wait_listening(backend: NvmlBackend, stub: Stub) -> None:
    """Until the watch has an event set for every card: an earlier event would be nobody's."""
    before = stub.calls("nvmlEventSetWait_v2")
    backend.scan()
    eventually(lambda: stub.calls("nvmlEventSetWait_v2") > before, 10.0)


class ManualClock(RealClock):
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now(self) -> float:
        return self.at_s

    def monotonic(self) -> float:
        return self.at_s


@pytest.fixture
def stub(stub_library: Stub) -> Stub:
    """Three well cards, and nothing of another test's MIG."""
    stub_library.mig.reset()
    stub_library.show()
    return stub_library


@pytest.fixture
def settings(stub: Stub, tmp_path: Path) -> NvmlSettings:
    """No events, no unasked passes within a test, nothing read from this machine."""
    return NvmlSettings(
        library=DriverLibrary(stub.library),
        sources=HostSources(sysfs_root=tmp_path / "sys", meminfo=tmp_path / "meminfo"),
        xids=XidPolicy(is_on=False),
        interval_s=30.0,
        event_wait_s=0.05,
    )


@pytest.fixture
def start(stub: Stub, settings: NvmlSettings) -> Iterator[Open]:
    """Make backends: `start(interval_s=0.05)`; closed, and their hangs ended, after the test."""
    backends: list[NvmlBackend] = []

    def make(**changes: object) -> NvmlBackend:
        backend = NvmlBackend(RealClock(), replace(settings, **changes))  # type: ignore[arg-type]  # fields by name
        backends.append(backend)
        return backend

    yield make
    stub.show()
    for backend in backends:
        backend.close()
