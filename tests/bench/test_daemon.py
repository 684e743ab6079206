"""What the daemon costs: start, memory, processor, Allocate, re-registration, fault to kubelet.

Run by `make bench`; the budgets stand in docs/performance.md. Nothing here asserts a time.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable

import pytest

from tests.bench.daemon_rig import CARDS, RESOURCE, SLOTS, DaemonRig, running_daemon
from tests.nvml_stub.control import UUIDS

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

ALL = CARDS * SLOTS
IDLE_S = float(os.environ.get("HAMI_BENCH_IDLE_S", "60"))


def show(what: str, values: list[float], unit: str) -> None:
    """Print minimum, median, 99th percentile and maximum."""
    ordered = sorted(values)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(
        f"  {what:<52} min {ordered[0]:7.1f}  p50 {statistics.median(ordered):7.1f}  "
        f"p99 {p99:7.1f}  max {ordered[-1]:7.1f} {unit}  (n={len(ordered)})"
    )


def wait(probe: Callable[[], bool], limit_s: float = 15.0) -> float:
    """Wait until `probe` is true; the moment on the monotonic clock."""
    deadline = time.monotonic() + limit_s
    while not probe():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.0005)
    return time.monotonic()


def allocate_ms(rig: DaemonRig, result: str) -> list[float]:
    """What the daemon itself says that each Allocate with that result took."""
    pattern = rf"event=allocate result={result} .*?took_ms=([0-9.]+)"
    return [float(found) for found in re.findall(pattern, rig.log)]


def test_start(capsys: pytest.CaptureFixture[str]) -> None:
    registered, listed = [], []
    for _ in range(7):
        with running_daemon() as rig:
            wait(lambda: bool(rig.kubelet.registrations))
            registered.append((rig.kubelet.registrations[0][0] - rig.began_s) * 1e3)
            end_s = wait(lambda: rig.kubelet.allocatable(RESOURCE) == ALL)
            listed.append((end_s - rig.began_s) * 1e3)
            wait(lambda: "event=node_reported" in rig.log)
    with capsys.disabled():
        print(f"\nmachine: {platform.platform()}, {os.cpu_count()} cores; NVML is a stand-in")
        show("start of process to registered (budget 300)", registered, "ms")
        show("start of process to first list (budget 300)", listed, "ms")


def test_idle(capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon() as rig:
        wait(lambda: "event=node_reported" in rig.log)
        time.sleep(5)
        cpu_s, began_s = rig.cpu_s(), time.monotonic()
        rig.api.forget_requests()
        time.sleep(IDLE_S)
        used = (rig.cpu_s() - cpu_s) / (time.monotonic() - began_s) * 100
        writes = len(rig.api.requests(verb="patch"))
        rss_mib = rig.rss_mib()
    with capsys.disabled():
        print(f"\n  idle for {IDLE_S:.0f} s, {CARDS} cards x {SLOTS}, all watches on:")
        print(f"  resident memory {rss_mib:.1f} MiB (budget 64)")
        print(f"  processor {used:.2f} % of a core (budget 0.5); API writes {writes}")


def test_allocate(capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon("--handshake", "off") as rig:
        wait(lambda: "event=serving" in rig.log)
        wait(lambda: rig.kubelet.allocatable(RESOURCE) == ALL)
        wait(lambda: "event=node_reported" in rig.log)
        for i in range(ALL - 1):
            rig.create_pod(f"p{i}", UUIDS[i % CARDS], 1000)
        time.sleep(1)
        rig.api.forget_requests()
        took = []
        for i in range(ALL - 1):
            began_s = time.monotonic()
            assert rig.admit(f"p{i}") == ""
            took.append((time.monotonic() - began_s) * 1e3)
        inside = allocate_ms(rig, "ok")
        requests = [item for item in rig.api.requests() if item.verb != "watch"]
        again = []
        for name in [f"{UUIDS[i % CARDS]}-{i // CARDS}" for i in range(ALL - 1)] * 5:
            began_s = time.monotonic()
            rig.kubelet.call_again(RESOURCE, (name,))
            again.append((time.monotonic() - began_s) * 1e3)
        without_api = allocate_ms(rig, "repeated")
    with capsys.disabled():
        print(f"\n  {len(took)} one-card pods, one after another, API server beside it:")
        show("admission over gRPC, preference and patch included", took, "ms")
        show("Allocate inside the daemon, API patch included", inside, "ms")
        print("  the same calls again, which write nothing, 79 pods on the node:")
        show("Allocate over gRPC", again, "ms")
        show("inside, without API time (budget p99 5)", without_api, "ms")
        print(f"  API requests a pod {len(requests) / len(took):.2f} (budget 1, Events aside)")


def test_registers_again(capsys: pytest.CaptureFixture[str]) -> None:
    took = []
    with running_daemon() as rig:
        wait(lambda: rig.kubelet.allocatable(RESOURCE) == ALL)
        wait(lambda: "event=node_reported" in rig.log)
        for _ in range(20):
            rig.kubelet.stop()
            seen = len(rig.kubelet.registrations)
            time.sleep(0.3)
            began_s = time.monotonic()
            rig.kubelet.start()
            wait(lambda seen=seen: len(rig.kubelet.registrations) > seen)  # type: ignore[misc]  # mypy can't type a default of a lambda
            took.append((rig.kubelet.registrations[-1][0] - began_s) * 1e3)
            wait(lambda: rig.kubelet.allocatable(RESOURCE) == ALL)
    with capsys.disabled():
        print()
        show("kubelet.sock made again to registered (budget 50)", took, "ms")


def test_card_fault(capsys: pytest.CaptureFixture[str]) -> None:
    to_kubelet, back = [], []
    with running_daemon() as rig:
        wait(lambda: rig.kubelet.allocatable(RESOURCE) == ALL)
        wait(lambda: "event=node_reported" in rig.log)
        for _ in range(5):
            began_s = time.monotonic()
            rig.stub.show("fail nvmlDeviceGetMemoryInfo 2 999", cards=CARDS)
            end_s = wait(lambda: rig.kubelet.allocatable(RESOURCE) == ALL - SLOTS)
            to_kubelet.append((end_s - began_s) * 1e3)
            began_s = time.monotonic()
            rig.stub.show(cards=CARDS)
            back.append((wait(lambda: rig.kubelet.allocatable(RESOURCE) == ALL) - began_s) * 1e3)
    with capsys.disabled():
        print()
        show("card fails, to kubelet (budget 2000)", to_kubelet, "ms")
        show("card answers again, to kubelet", back, "ms")
