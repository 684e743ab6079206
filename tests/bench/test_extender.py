"""What the extender costs with 5,000 nodes and 20,000 pods: filter, memory, start, soak.

Extender and API server are processes of their own; the callers keep their connections, as
kube-scheduler does. The API server is the simulated one: how long it takes to store a reservation
is printed beside: a filter waits for that where a reservation can't be carried by the binding.
"""

from __future__ import annotations

import gc
import os
import platform
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hami_node.clock import SystemClock
from hami_node.cluster.client import KubeClient, connect
from hami_node.config.sources import ConfigSources
from hami_node.extender.rules import rules_of
from hami_node.extender.service import Extender
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.setting_types import Role
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.bench.engine_load import CORES, SIZES_MIB, node_name
from tests.bench.extender_cluster import Json, limits_of, pod_object
from tests.bench.extender_rig import (
    ApiCaller,
    ApiServerProcess,
    ExtenderCaller,
    RunningExtender,
    encoded,
    filter_body,
    overcommitted,
    rss_mib,
    running_cluster,
    running_extender,
    shown,
)
from tests.fakes.settings import load

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

NODES, PODS = 5_000, 20_000
NAMES = [node_name(number) for number in range(NODES)]
NAMES_JSON = encoded(NAMES)
CALLS = 400
NOWHERE_MIB = 90_000
CALLERS, PODS_PER_CALLER = 16, 100
RUSH_NODES = 60
SOAK_S, SOAK_RATE, SOAK_LIVES_S = 60.0, 50, 5.0
QUARTERS = 4
HEADING = f"{'ms':44}{'p50':>9}{'p95':>9}{'p99':>9}{'most':>9}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiServerProcess]:
    began_s = time.monotonic()
    with running_cluster(NODES, PODS) as running:
        print(
            f"\nmachine: {platform.platform()}, {os.cpu_count()} cores, {platform.python_version()}"
        )
        print(f"{NODES:,} nodes x 8 cards, {PODS:,} pods that hold cards; API server simulated,")
        print(f"filled in {time.monotonic() - began_s:.0f} s")
        yield running


def _pod(draw: random.Random, name: str, memory_mib: int = 0, policy: str = "") -> Json:
    memory_mib = memory_mib or draw.choice(SIZES_MIB) + draw.randrange(64)
    limits = limits_of(memory_mib, draw.choice(CORES), draw.choice((1, 1, 1, 1, 2, 4)))
    namespace = f"team-{draw.randrange(20)}"
    return pod_object(name, namespace, limits, {names.POD_NODE_POLICY: policy} if policy else None)


def _timed(
    extender: ExtenderCaller, pods: list[Json], check: Callable[[Json], None]
) -> list[float]:
    """Milliseconds of each call, from its first byte to the answer's last; JSON made outside."""
    took = []
    for pod in pods:
        body = filter_body(encoded(pod), NAMES_JSON)
        start_s = time.perf_counter()
        status, answer = extender.send("POST", "/filter", body)
        took.append((time.perf_counter() - start_s) * 1000)
        check(extender.checked(status, answer))
    return took


def _fits(answer: Json) -> None:
    assert len(answer["NodeNames"]) == 1


def _nowhere(answer: Json) -> None:
    assert not answer["NodeNames"]
    assert len(answer["FailedNodes"]) + len(answer["FailedAndUnresolvableNodes"]) == NODES


def _patches(cluster: ApiServerProcess, pods: list[Json]) -> list[float]:
    """What the API server takes to store such a reservation, to a client that does nothing else."""
    kube, took = _kube(cluster), []
    values = {nvidia_names.POD_ALLOCATED: "GPU-1,NVIDIA,1000,10:;", names.POD_NODE: "node-none"}
    for pod in (decode_pod(item) for item in pods):
        start_s = time.perf_counter()
        kube.patch_pod_exactly(pod, values, {names.POD_NODE: "node-none"})
        took.append((time.perf_counter() - start_s) * 1000)
    kube.close()
    return took


def _kube(cluster: ApiServerProcess) -> KubeClient:
    return connect(cluster.kubeconfig, component="bench", clock=SystemClock())


def _filters(cluster: ApiServerProcess, running: RunningExtender, policy: str) -> list[Json]:
    """Pods that fit, one call after another; the pods as they were created."""
    draw = random.Random(7)
    with ApiCaller(cluster.url) as api:
        pods = [api.create(_pod(draw, f"{policy}-{n}", policy=policy)) for n in range(CALLS)]
    _measure(running, f"fits, {policy}", pods, _fits)
    return pods


def _bound(running: RunningExtender, pods: list[Json]) -> None:
    """Each where its reservation is, which only the extender knows until then."""
    cpu_s, began_s = running.cpu_s(), time.monotonic()
    with ExtenderCaller(running.url) as extender:
        for pod in pods:
            (node,) = extender.filter(pod, NAMES)["NodeNames"]
            assert extender.bind(pod, node) == ""
    took_s, cpu_s = time.monotonic() - began_s, running.cpu_s() - cpu_s
    print(f"{'filtered and bound, one after another':44}{len(pods) / took_s:9.0f} pods/s", end="")
    print(f"{cpu_s / len(pods) * 1000:27.2f}")


def _measure(
    running: RunningExtender, name: str, pods: list[Json], check: Callable[[Json], None]
) -> None:
    time.sleep(0.5)  # the watch has shown what was created
    cpu_s = running.cpu_s()
    with ExtenderCaller(running.url) as extender:
        took_ms = _timed(extender, pods, check)
    cpu_s = running.cpu_s() - cpu_s
    print(f"{shown(name, took_ms)}{cpu_s / len(pods) * 1000:9.2f}")


def test_filter(cluster: ApiServerProcess) -> None:
    draw = random.Random(8)
    nowhere = [_pod(draw, f"nowhere-{n}", NOWHERE_MIB + n) for n in range(CALLS)]
    with running_extender(cluster) as running, ApiCaller(cluster.url) as api:
        print(f"start of the process to listening {running.listening_s:.2f} s, ", end="")
        print(f"to /readyz {running.ready_s:.2f} s")
        print(f"RSS when ready {running.rss_mib():.0f} MiB, at most {running.rss_mib('VmHWM'):.0f}")
        print(f"{HEADING}{'CPU':>9}")
        pods = [pod for item in ("binpack", "spread") for pod in _filters(cluster, running, item)]
        plain = [api.create(_pod(draw, f"patched-{n}")) for n in range(CALLS)]
        print(shown("  the API server's part: the patch alone", _patches(cluster, plain)))
        _measure(running, "fits nowhere, another pod each time", nowhere, _nowhere)
        _measure(running, "fits nowhere, the same pod again", nowhere[:1] * CALLS, _nowhere)
        print(f"RSS after {4 * CALLS} calls {running.rss_mib():.0f} MiB (budget 300), ", end="")
        print(f"at most {running.rss_mib('VmHWM'):.0f} MiB; budget of a call: p50 10, p99 30 ms")
        _bound(running, pods)
        stored = {item["metadata"]["uid"]: item for item in api.pods()}
        assert all(_node_of(stored[item["metadata"]["uid"]]) for item in pods)
        for pod in (*pods, *plain):
            api.delete(pod)
    assert overcommitted((item for item in stored.values() if _is_ours(item)), NODES) == []


def _is_ours(pod: Json) -> bool:
    return not pod["metadata"]["name"].startswith("patched-")


def _node_of(pod: Json) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(names.POD_NODE, ""))


# -- many callers ------------------------------------------------------------------------------


def _schedule(
    cluster: ApiServerProcess, running: RunningExtender, pods: list[Json], nodes: list[str]
) -> Counter[str]:
    """One caller: create, filter, bind; how the pods ended."""
    ended: Counter[str] = Counter()
    with ApiCaller(cluster.url) as api, ExtenderCaller(running.url) as extender:
        for given in pods:
            pod = api.create(given)
            found = extender.filter(pod, nodes)["NodeNames"]
            if not found:
                ended["nowhere"] += 1
                continue
            error = extender.bind(pod, found[0])
            assert not error, error
            bound = api.read(pod)
            assert bound["spec"]["nodeName"] == _node_of(bound) == found[0]
            ended["bound"] += 1
    return ended


def _side_by_side(
    cluster: ApiServerProcess,
    running: RunningExtender,
    what: str,
    pods: list[Json],
    nodes: list[str],
) -> Counter[str]:
    shares = [pods[number::CALLERS] for number in range(CALLERS)]
    began_s, cpu_s = time.monotonic(), running.cpu_s()
    with ThreadPoolExecutor(CALLERS) as pool:
        jobs = [pool.submit(_schedule, cluster, running, share, nodes) for share in shares]
        ended: Counter[str] = sum((job.result() for job in jobs), Counter())
    took_s, cpu_s = time.monotonic() - began_s, running.cpu_s() - cpu_s
    print(f"{CALLERS} callers, {what}: {dict(ended)}, {len(pods) / took_s:.0f} pods/s, ", end="")
    print(f"extender {cpu_s / len(pods) * 1000:.1f} ms of processor a pod")
    return ended


def _free_cards(pods: list[Json], nodes: list[str]) -> int:
    used = {
        part.split(",")[0]
        for item in pods
        for part in (item["metadata"]["annotations"] or {})
        .get(nvidia_names.POD_ALLOCATED, "")
        .split(":")
        if _node_of(item) in set(nodes)
    }
    return 8 * len(nodes) - len(used & _uuids(nodes))


def _uuids(nodes: list[str]) -> set[str]:
    return {
        f"GPU-{name[-5:]}-{index}-0000-0000-000000000000" for name in nodes for index in range(8)
    }


def test_callers_side_by_side_lose_nothing(cluster: ApiServerProcess) -> None:
    """Any pods anywhere; then whole cards on few nodes, of which there are fewer than pods."""
    draw = random.Random(9)
    count = CALLERS * PODS_PER_CALLER
    anywhere = [_pod(draw, f"any-{number}") for number in range(count)]
    whole = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem-percentage": "100",
        "nvidia.com/gpucores": "100",
    }
    rush = [pod_object(f"rush-{n}", "team-0", whole) for n in range(RUSH_NODES * 8)]
    with running_extender(cluster) as running, ApiCaller(cluster.url) as api:
        print()
        assert _side_by_side(cluster, running, "any node", anywhere, NAMES)["bound"] == count
        few = NAMES[-RUSH_NODES:]
        free = _free_cards(api.pods(), few)
        assert 0 < free < len(rush)
        what = f"{len(rush)} whole cards wanted where {free} are free"
        assert _side_by_side(cluster, running, what, rush, few)["bound"] == free
        print(f"RSS {running.rss_mib():.0f} MiB")
        assert overcommitted(api.pods(), NODES) == []
        for pod in (*anywhere, *rush):
            api.delete(pod)


# -- soak --------------------------------------------------------------------------------------


class Soak:
    """Pods that come, are filtered, bound, and go, at a fixed rate by several callers."""

    def __init__(self, cluster: ApiServerProcess, url: str) -> None:
        self._cluster, self._url = cluster, url
        self._round, self._kept = 0, 0
        self.took_ms: list[float] = []
        self.late_s = 0.0
        self.ended: Counter[str] = Counter()

    def run(self, seconds: float, kept: int = 0) -> None:
        """Every caller takes every n-th decision, and leaves so many of its last pods."""
        self._kept = kept
        began_s, callers, self._round = time.monotonic() + 0.1, 4, self._round + 1
        with ThreadPoolExecutor(callers) as pool:
            jobs = [
                pool.submit(self._call, number, callers, began_s, int(seconds * SOAK_RATE))
                for number in range(callers)
            ]
            for job in jobs:
                job.result()

    def _call(self, first: int, step: int, began_s: float, count: int) -> None:
        draw, pause = random.Random(first), threading.Event()
        alive: list[tuple[float, Json]] = []
        with ApiCaller(self._cluster.url) as api, ExtenderCaller(self._url) as extender:
            for number in range(first, count, step):
                due_s = began_s + number / SOAK_RATE
                pause.wait(max(0.0, due_s - time.monotonic()))
                self.late_s = max(self.late_s, time.monotonic() - due_s)
                name = f"soak-{self._round}-{number}"
                alive.append((due_s + SOAK_LIVES_S, self._one(draw, api, extender, name)))
                while alive and alive[0][0] <= time.monotonic():
                    api.delete(alive.pop(0)[1])
            for _, pod in alive[self._kept :]:
                api.delete(pod)

    def _one(
        self, draw: random.Random, api: ApiCaller, extender: ExtenderCaller, name: str
    ) -> Json:
        too_much = draw.random() < 0.1
        pod = api.create(_pod(draw, name, NOWHERE_MIB if too_much else 0))
        body = filter_body(encoded(pod), NAMES_JSON)
        start_s = time.perf_counter()
        status, answer = extender.send("POST", "/filter", body)
        self.took_ms.append((time.perf_counter() - start_s) * 1000)
        found = extender.checked(status, answer)["NodeNames"]
        assert bool(found) is not too_much
        if found:
            assert extender.bind(pod, found[0]) == ""
        self.ended["bound" if found else "nowhere"] += 1
        return pod


def test_soak_keeps_state_and_memory(cluster: ApiServerProcess, tmp_path: Path) -> None:
    """The extender is in this process here, so that its state can be looked at."""
    flags = {
        "http_bind": "127.0.0.1:0", "metrics_address": "off",
        "kubeconfig": str(cluster.kubeconfig),
    }  # fmt: skip
    sources = ConfigSources(blocks=SETTINGS_BLOCKS, flags=flags, role=Role.EXTENDER)
    extender = Extender(load(sources), sources, VENDORS)
    extender.start()
    waiting = threading.Thread(target=extender.wait)
    waiting.start()
    try:
        _until(extender.parts.readiness.is_leading, 60)
        soak = Soak(cluster, f"http://127.0.0.1:{extender.parts.server.port}")
        soak.run(SOAK_S / QUARTERS)
        gc.collect()
        warm, sizes_mib = len(soak.took_ms), [rss_mib(os.getpid())]
        for quarter in range(1, QUARTERS + 1):
            soak.run(SOAK_S / QUARTERS, kept=20 if quarter == QUARTERS else 0)
            gc.collect()
            sizes_mib.append(rss_mib(os.getpid()))
        _report(soak, soak.took_ms[warm:], sizes_mib)
        fresh = _rebuilt(cluster, extender)
        _until(lambda: extender.parts.state.charges() == fresh.charges(), 10)
        assert extender.parts.state.usage() == fresh.usage()
        print(f"state equals a rebuild from a fresh list: {len(fresh.charges()):,} pods hold cards")
    finally:
        extender.stop.set()
        waiting.join(30)
    with ApiCaller(cluster.url) as api:
        for pod in api.pods():
            if pod["metadata"]["name"].startswith("soak-"):
                api.delete(pod)


def _report(soak: Soak, took_ms: list[float], sizes_mib: list[float]) -> None:
    print(f"\nsoak of {SOAK_S:.0f} s at {SOAK_RATE} decisions a second, extender in this process:")
    print(f"{dict(soak.ended)}, at most {soak.late_s * 1000:.0f} ms behind the schedule")
    print(HEADING)
    print(shown("filter, 4 callers that share its interpreter", took_ms))
    print(f"RSS of both, warm and after each quarter: {[f'{size:.1f}' for size in sizes_mib]} MiB")


def _rebuilt(cluster: ApiServerProcess, extender: Extender) -> ClusterState:
    """A state that was fed by one list."""
    kube, fresh = _kube(cluster), ClusterState(rules_of(extender.settings, VENDORS), SystemClock())
    for node in kube.list_nodes():
        fresh.node_changed(None, node)
    for pod in kube.list_pods():
        fresh.pod_changed(None, pod)
    kube.close()
    return fresh


def _until(is_done: Callable[[], bool], limit_s: float) -> None:
    deadline_s, pause = time.monotonic() + limit_s, threading.Event()
    while not is_done():
        assert time.monotonic() < deadline_s, "not within the time limit"
        pause.wait(0.02)
