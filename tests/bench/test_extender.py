"""What the extender costs with 5,000 nodes and 20,000 pods: start, memory, /filter, /bind.

Extender and API server are processes of their own; the caller keeps its connection, as
kube-scheduler does. `make bench-fleet` has the same before a real control plane.
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Iterator

import pytest

from hami_node.wire import names
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
    running_cluster,
    running_extender,
    shown,
)

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

NODES, PODS = 5_000, 20_000
NAMES = [node_name(number) for number in range(NODES)]
NAMES_JSON = encoded(NAMES)
CALLS = 400
NOWHERE_MIB = 90_000
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


def _filters(cluster: ApiServerProcess, running: RunningExtender, policy: str) -> list[Json]:
    """Pods that fit, one call after another; the pods as they were created."""
    draw = random.Random(7)
    with ApiCaller(cluster.url) as api:
        pods = [api.create(_pod(draw, f"{policy}-{n}", policy=policy)) for n in range(CALLS)]
    _measure(running, f"fits, {policy}", pods, _fits)
    return pods


def _bound(running: RunningExtender, pods: list[Json]) -> None:
    """Each where its reservation is, which only the extender knows until then."""
    cpu_s, began_s = running.process.use().cpu_s, time.monotonic()
    with ExtenderCaller(running.url) as extender:
        for pod in pods:
            (node,) = extender.filter(pod, NAMES)["NodeNames"]
            assert extender.bind(pod, node) == ""
    took_s, cpu_s = time.monotonic() - began_s, running.process.use().cpu_s - cpu_s
    print(f"{'filtered and bound, one after another':44}{len(pods) / took_s:9.0f} pods/s", end="")
    print(f"{cpu_s / len(pods) * 1000:27.2f}")


def _measure(
    running: RunningExtender, name: str, pods: list[Json], check: Callable[[Json], None]
) -> None:
    time.sleep(0.5)  # the watch has shown what was created
    cpu_s = running.process.use().cpu_s
    with ExtenderCaller(running.url) as extender:
        took_ms = _timed(extender, pods, check)
    cpu_s = running.process.use().cpu_s - cpu_s
    print(f"{shown(name, took_ms)}{cpu_s / len(pods) * 1000:9.2f}")


def test_filter(cluster: ApiServerProcess) -> None:
    draw = random.Random(8)
    nowhere = [_pod(draw, f"nowhere-{n}", NOWHERE_MIB + n) for n in range(CALLS)]
    with running_extender(cluster) as running, ApiCaller(cluster.url) as api:
        used = running.process.use()
        print(f"start of the process to /readyz {running.ready_s:.2f} s")
        print(f"RSS when ready {used.rss_mib:.0f} MiB, at most {used.peak_mib:.0f}")
        print(f"{HEADING}{'CPU':>9}")
        pods = [pod for item in ("binpack", "spread") for pod in _filters(cluster, running, item)]
        _measure(running, "fits nowhere, another pod each time", nowhere, _nowhere)
        _measure(running, "fits nowhere, the same pod again", nowhere[:1] * CALLS, _nowhere)
        used = running.process.use()
        print(f"RSS after {4 * CALLS} calls {used.rss_mib:.0f} MiB (budget 300), ", end="")
        print(f"at most {used.peak_mib:.0f} MiB; budget of a call: p50 5, p99 30 ms")
        _bound(running, pods)
        stored = {item["metadata"]["uid"]: item for item in api.pods()}
        notes = [stored[item["metadata"]["uid"]]["metadata"]["annotations"] for item in pods]
        assert all(names.POD_NODE in each for each in notes)
    assert overcommitted(stored.values(), NODES) == []
