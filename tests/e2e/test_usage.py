"""What programs in real containers use of their cards, and what they are told meanwhile."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.regions.region_layouts import LAYOUTS
from tests.e2e import cards, tenants
from tests.e2e.api import Api, Json
from tests.e2e.daemon import Daemon
from tests.e2e.limiter import CONTAINERS
from tests.e2e.pods import Pods
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually
from tests.reliability import shows

_LAYOUT = next(layout for layout in LAYOUTS if layout.name == "v1.2")
_USED = "hami_node_container_memory_used_bytes"
_CARD = cards.uuid_of(0)


@pytest.fixture(autouse=True)
def _program() -> None:
    tenants.install()


def _start(pods: Pods, scheduler: Scheduler, name: str, priority: str = "") -> Path:
    """A pod whose program holds 1000 MiB and launches kernels; its region file."""
    env = {nvidia_names.ENV_TASK_PRIORITY: priority} if priority else {}
    pod: Json = pods.create(name, tenants.tenant(name, memory_mib=2000, cores=30, env=env))
    scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=2000, cores=30),)})
    pods.wait_running(name)
    tenants.hold(name, 1000, launches=True)
    folder = f"{pod['metadata']['uid']}_c0"
    return CONTAINERS / folder / f"{folder}.cache"


def _recent_kernel(region: Path) -> int:
    with region.open("rb") as file:
        found = os.pread(file.fileno(), 4, _LAYOUT.recent_kernel_at)
    assert len(found) == 4, "the program has not made its region yet"
    return int(struct.unpack("<i", found)[0])


def _used_mib(daemon: Daemon, pod: str) -> float:
    return daemon.metric(_USED, pod=pod) / 2**20


def test_use_is_measured_and_ends_with_its_container(
    daemon: Daemon, pods: Pods, scheduler: Scheduler
) -> None:
    _start(pods, scheduler, "busy")
    eventually("its use is known", lambda: _used_mib(daemon, "busy") == 1000)
    hostile = _start(pods, scheduler, "hostile")
    eventually("its use is known", lambda: _used_mib(daemon, "hostile") == 1000)
    hostile.write_bytes(os.urandom(4096))
    eventually("its use is unknown", lambda: 'pod="hostile"' not in _series(daemon))
    assert _used_mib(daemon, "busy") == 1000
    tenants.hold("busy", 1500)
    eventually("its use has grown", lambda: _used_mib(daemon, "busy") == 1500)
    pods.delete("busy", "hostile")
    eventually("the series are gone", lambda: "{" not in _series(daemon))


@pytest.mark.e2e_long
def test_files_go_a_minute_after_their_container(pods: Pods, scheduler: Scheduler) -> None:
    hostile = _start(pods, scheduler, "hostile")
    hostile.write_bytes(os.urandom(4096))
    pods.delete("hostile")
    eventually("its files are gone", lambda: not hostile.parent.exists())


def _series(daemon: Daemon) -> str:
    lines = daemon.get("/metrics").splitlines()
    return "\n".join(line for line in lines if line.startswith(_USED + "{"))


@shows(
    "B2",
    fault="the daemon is killed, or stopped, while a program waits for one of higher priority",
    happens="it goes on when the daemon ends, or at the latest when the next one has started",
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_program_waits_for_a_higher_priority_and_for_no_daemon(
    daemon: Daemon, pods: Pods, scheduler: Scheduler, api: Api, number: signal.Signals
) -> None:
    daemon.forget_crashes()
    daemon.wait_offered()
    low = _start(pods, scheduler, "low")
    _start(pods, scheduler, "high", "0")
    eventually("it waits", lambda: _recent_kernel(low) == -1)
    tenants.wait_word(api, "low", "waits")
    tenants.hold("high", 1000)
    restarts = daemon.restarts()
    daemon.signal(number)
    eventually("it goes on", lambda: _recent_kernel(low) >= 0)
    tenants.wait_word(api, "low", "runs")
    eventually("the daemon is back", lambda: daemon.restarts() > restarts)
    daemon.wait_ready()
