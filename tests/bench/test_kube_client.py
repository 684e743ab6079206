"""What the client and the watches cost: memory and time of import, memory of watched pods."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.api_server import FaultyApiServer

pytestmark = pytest.mark.bench

HEAD = """
import sys, time
def rss_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) / 256
def measured(what):
    before_mib, began_s = rss_mib(), time.perf_counter()
    result = what()
    took_ms = (time.perf_counter() - began_s) * 1000
    print(f"{rss_mib() - before_mib:6.1f} MiB {took_ms:7.0f} ms", end="  ")
    return result
"""
BESIDE = """
import grpc, msgspec, prometheus_client, tenacity, watchdog.observers, yaml
measured(lambda: __import__(sys.argv[1], fromlist=["x"]))
"""
WATCH = """
import threading
from pathlib import Path
from hami_node.clock import SystemClock
from hami_node.cluster.client import connect
from hami_node.cluster.watching.views import WatchedCluster
kube = connect(Path(sys.argv[1]), component="bench", clock=SystemClock())
view, stop = WatchedCluster.of_cluster(kube, SystemClock()), threading.Event()
def sync():
    view.start(stop)
    while not view.is_synced():
        stop.wait(0.01)
measured(sync)
print(len(view.pods()), "pods")
stop.set()
view.close()
"""


def _in_fresh_process(code: str, argument: str) -> str:
    command = [sys.executable, "-c", HEAD + code, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip()


@pytest.mark.parametrize("module", ["hami_node.cluster.watching.views", "kubernetes"])
def test_import_beside_the_daemons_other_libraries_prints_cost(module: str) -> None:
    """The second is what `import kubernetes` would cost instead."""
    cost = _in_fresh_process(BESIDE, module)
    print(f"\nimport {module:24} {cost}")
    assert "MiB" in cost


@pytest.mark.parametrize("count", [110, 10_000])
def test_watched_pods_print_memory(tmp_path: Path, count: int) -> None:
    """Pods of 3 KiB with annotations of others, listed in pages."""
    with FaultyApiServer() as server:
        for number in range(count):
            server.create("pods", _pod(number))
        cost = _in_fresh_process(WATCH, str(server.write_kubeconfig(tmp_path / "kubeconfig")))
    print(f"\nlist and hold {cost}")
    assert cost.endswith(f"{count} pods")


def _pod(number: int) -> dict[str, object]:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "cpu": "1"}
    annotations = {
        "hami.io/vgpu-devices-allocated": f"GPU-{number},NVIDIA,1000,10:;",
        "example.com/notes": "n" * 1000,
    }
    env = [{"name": f"NAME_{index}", "value": "v" * 40} for index in range(15)]
    return {
        "metadata": {"namespace": "bench", "name": f"pod-{number}", "annotations": annotations},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "env": env, "resources": {"limits": limits}}],
        },
        "status": {"phase": "Running", "message": "m" * 400},
    }
