"""What reading use costs with every slot of a node taken by a container that is at work.

Run by `make bench`; the budgets stand in docs/performance.md. Nothing here asserts a time.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hami_node.vendors.nvidia.regions.region_layouts import LAYOUTS
from tests.bench.daemon_rig import CARDS, RESOURCE, SLOTS, DaemonRig, running_daemon
from tests.fakes.made_region import MadeRegion
from tests.fakes.waiting import eventually
from tests.faults.process import page, port_of
from tests.nvml_stub.control import UUIDS

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

ALL = CARDS * SLOTS
PROCESSES = 8
MEASURED_S = float(os.environ.get("HAMI_BENCH_IDLE_S", "60"))
LAYOUT = next(layout for layout in LAYOUTS if layout.name == "v1.2")


@contextmanager
def at_work(paths: list[Path]) -> Iterator[None]:
    """As the limiter does: time of the last kernel and a process's counter, ten times a second."""
    stop = threading.Event()

    def write() -> None:
        files = [path.open("r+b", buffering=0) for path in paths]
        turn = 0
        while not stop.wait(0.1):
            turn += 2
            for file in files:
                handle = file.fileno()
                os.pwrite(handle, struct.pack("<Q", int(time.time())), LAYOUT.tail + 16)
                slot = LAYOUT.slots + turn // 2 % PROCESSES * LAYOUT.slot_bytes
                os.pwrite(handle, struct.pack("<Q", turn), slot + LAYOUT.seqlock * 8)
        for file in files:
            file.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def lay(rig: DaemonRig) -> list[Path]:
    """Every slot of every card with a container of some processes."""
    made = MadeRegion(LAYOUT, PROCESSES)
    for index in range(PROCESSES):
        made.put(index, 100 + index, 100, core=2)
    content = bytes(made.raw)
    paths = []
    for i in range(ALL):
        name = f"p{i}"
        rig.create_pod(name, UUIDS[i % CARDS], 1000)
        eventually(lambda name=name: rig.admit(name) == "", 10.0)  # type: ignore[misc]  # a loop
        folder = f"uid-{name}_c"
        path = rig.root / "hook" / "vgpu" / "containers" / folder / f"{folder}.cache"
        path.write_bytes(content)
        paths.append(path)
    return paths


def measured(rig: DaemonRig) -> float:
    """Processor use over the time of the measurement, percent of a core."""
    cpu_s, began_s = rig.cpu_s(), time.monotonic()
    time.sleep(MEASURED_S)
    return (rig.cpu_s() - cpu_s) / (time.monotonic() - began_s) * 100


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon("--handshake", "off") as rig:
        eventually(lambda: rig.kubelet.allocatable(RESOURCE) == ALL, 20.0)
        eventually(lambda: "event=serving" in rig.log, 20.0)
        paths = lay(rig)
        with at_work(paths):
            port = port_of(rig)
            series = "hami_node_container_memory_used_bytes{"
            eventually(lambda: page(port)[1].count(series) == ALL, 20.0)
            time.sleep(5)
            used, rss_mib = measured(rig), rig.rss_mib()
    with capsys.disabled():
        print(f"\n  {ALL} containers at work, {PROCESSES} processes each, over {MEASURED_S:.0f} s:")
        print(f"  processor {used:.2f} % of a core (budget 2)")
        print(f"  resident memory {rss_mib:.1f} MiB (budget 72)")
