"""20,000 nodes and 200,000 pods before one extender: start, memory, decisions.

The lists come from a server of prepared pages, not from a real API server: that one alone would
need more memory than a small machine has, and it would hide what the extender costs. A real one
adds its own time for each page.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.bench import extender_cluster
from tests.bench.engine_load import node_name
from tests.bench.extender_rig import ExtenderCaller, encoded, filter_body
from tests.bench.fleet import figures, machine
from tests.bench.fleet.client import Json
from tests.bench.fleet.page_server import VERSION
from tests.bench.fleet.plane import extender_env
from tests.bench.fleet.processes import Running, free_port, is_good, launched, wait_for
from tests.e2e.pki import write_json

PAGE: Final = 500
"""Objects of a page; a client that asks for more gets no more."""
GOALS: Final = "goals: ready within 30 s, RSS under 600 MiB, p50 under 5 ms, p99 under 30 ms"
_READY_S: Final = 600.0
_SIZES_MIB: Final = (1000, 2048, 3000, 4096, 6000)


def as_stored(body: Json, number: int) -> Json:
    """An object as an API server sends it: with a version, times, and who wrote which field."""
    fields: Json = {f"f:{key}": {"f:name": {}, ".": {}} for key in _dotted(body)}
    meta = {
        "uid": f"00000000-0000-4000-8000-{number:012d}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **body["metadata"],
        "resourceVersion": str(number + 1),
        "managedFields": [
            {
                "manager": manager,
                "operation": "Update",
                "apiVersion": "v1",
                "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
            }
            for manager in ("kube-controller-manager", "kubelet", "hami-node")
        ],
    }
    return {**body, "metadata": meta}


def _dotted(body: Json) -> Iterator[str]:
    yield from body["metadata"]
    yield from body.get("spec", {})
    yield from body.get("status", {})


def running_pod(pod: Json) -> Json:
    """The same with the status that a kubelet writes."""
    times = {"startedAt": "2026-01-01T00:00:00Z"}
    container = {
        "name": "model",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "image": "registry.example/team/model:v1",
        "imageID": f"registry.example/team/model@sha256:{0:064x}",
        "containerID": f"containerd://{0:064x}",
        "state": {"running": times},
        "lastState": {},
    }
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers")
    status = {
        **pod["status"],
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind in kinds
        ],
        "containerStatuses": [container],
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "startTime": "2026-01-01T00:00:00Z",
    }
    return {**pod, "status": status}


def write_pages(folder: Path, resource: str, items: Iterable[Json]) -> tuple[int, int]:
    """(objects, bytes) of the pages that were written."""
    page: list[bytes] = []
    number = count = size = 0

    def write(token: str) -> int:
        meta = json.dumps({"resourceVersion": str(VERSION), "continue": token}).encode()
        head = b'{"kind":"List","apiVersion":"v1","metadata":' + meta + b',"items":['
        return (folder / f"{resource}-{number}.json").write_bytes(head + b",".join(page) + b"]}")

    for item in items:
        if len(page) == PAGE:
            size += write(str(number + 1))
            number, page = number + 1, []
        page.append(encoded(item))
        count += 1
    return count, size + write("")


def fill(folder: Path, nodes: int, pods: int) -> str:
    """Write all pages; how much that is, for people."""
    made = (as_stored(extender_cluster.node_object(n), n) for n in range(nodes))
    _, node_bytes = write_pages(folder, "nodes", made)
    placed = (
        as_stored(running_pod(pod), number)
        for number, pod in enumerate(extender_cluster.placed_pods(nodes, pods))
    )
    _, pod_bytes = write_pages(folder, "pods", placed)
    return f"{node_bytes / 1e6:.0f} MB of nodes, {pod_bytes / 1e6:.0f} MB of pods"


def start(folder: Path, stack: ExitStack, *flags: str) -> tuple[Running, str, str]:
    """The list server and the extender: (the extender, URLs of decisions and readiness)."""
    api_port, port, probe_port = free_port(), free_port(), free_port()
    api = f"http://127.0.0.1:{api_port}"
    module = "tests.bench.fleet.page_server"
    server = launched("lists", [sys.executable, "-m", module, str(folder), str(api_port)], folder)
    stack.callback(server.stop)
    cluster = {"clusters": [{"name": "lists", "cluster": {"server": api}}]}
    context = {"name": "lists", "context": {"cluster": "lists", "user": "lists"}}
    write_json(
        folder / "kubeconfig",
        {
            "apiVersion": "v1",
            "kind": "Config",
            **cluster,
            "users": [{"name": "lists", "user": {}}],
            "contexts": [context],
            "current-context": "lists",
        },
    )

    wait_for("the list server", lambda: is_good(f"{api}/api/v1/resourcequotas"), 30, server)
    command = [
        *(sys.executable, "-m", "hami_node", "extender", f"--http-bind=127.0.0.1:{port}"),
        *("--metrics-address=off", f"--probe-address=127.0.0.1:{probe_port}"),
        *(f"--kubeconfig={folder / 'kubeconfig'}", *flags),
    ]
    extender = launched("extender", command, folder, extender_env())
    stack.callback(extender.stop)
    ready = f"http://127.0.0.1:{probe_port}/readyz"
    return extender, f"http://127.0.0.1:{port}", ready


def decisions(url: str, nodes: int, calls: int) -> list[float]:
    """How long /filter takes with all nodes' names, ms: one pod after another, each another ask."""
    names = encoded([node_name(number) for number in range(nodes)])
    took_ms = []
    with ExtenderCaller(url) as extender:
        for number in range(calls + 1):
            limits = extender_cluster.limits_of(_SIZES_MIB[number % len(_SIZES_MIB)], number % 3)
            pod = extender_cluster.pod_object(f"new-{number}", "team-1", limits)
            body = filter_body(encoded(pod), names)
            began_s = time.perf_counter()
            answer = extender.checked(*extender.send("POST", "/filter", body))
            took_ms.append((time.perf_counter() - began_s) * 1000)
            assert len(answer["NodeNames"]) == 1, answer
    return took_ms[1:]  # the first opens connections


def measure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """One start, then decisions."""
    print(f"pages: {fill(folder, args.nodes, args.pods)}", flush=True)
    with ExitStack() as stack:
        began_s = time.monotonic()
        extender, url, ready = start(folder, stack)
        wait_for("/readyz", lambda: is_good(ready), _READY_S, extender)
        ready_s = time.monotonic() - began_s
        time.sleep(args.settle_s)
        used = extender.use()
        took_ms = decisions(url, args.nodes, args.calls)
        return {
            "nodes": args.nodes,
            "pods": args.pods,
            "ready s": ready_s,
            "its CPU s": used.cpu_s,
            "RSS MiB": used.rss_mib,
            "peak MiB": used.peak_mib,
            "filter p50 ms": figures.percentile(took_ms, 0.5),
            "p99 ms": figures.percentile(took_ms, 0.99),
            "most ms": max(took_ms),
            "RSS after MiB": extender.use().rss_mib,
        }


def main(argv: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet large", description=__doc__)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--pods", type=int, default=200_000)
    parser.add_argument("--calls", type=int, default=300, help="of /filter, with all names")
    parser.add_argument("--settle-s", type=float, default=3.0, help="before memory is read")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    args = parser.parse_args(argv)
    facts = machine.described()
    print(machine.printed(facts), flush=True)
    folder = Path(tempfile.mkdtemp(prefix="hami-fleet-"))
    try:
        row = measure(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(figures.table([row]))
    print(f"{GOALS}; lists from prepared pages, no real API server")
    print(f"load average at the end: {machine.described()['load average']}")
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": facts, "table": [row]}, indent=1))
    return 0
