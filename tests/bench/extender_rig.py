"""The extender as its own process before a large cluster that is another, for measurements."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from hami_node.model import Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire.grants import decode_grants
from tests.bench.engine_load import devices_of
from tests.bench.extender_cluster import READY, Json
from tests.bench.fleet.processes import Running, free_port, is_good, launched, wait_for

START_LIMIT_S = 120.0


class HttpCaller:
    """One client that keeps its connection, as kube-scheduler does. For one thread."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._http = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        self._http.connect()
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """(status, body) of the answer."""
        headers = {"Content-Type": "application/json"} if body else {}
        self._http.request(method, path, body or None, headers)
        answer = self._http.getresponse()
        return answer.status, answer.read()

    def ask(self, method: str, path: str, value: Json | None = None) -> Json:
        """Send and receive JSON; anything but success fails the test."""
        status, answer = self.send(method, path, b"" if value is None else encoded(value))
        assert status < 300, f"{method} {path}: {status} {answer[:300]!r}"
        found: Json = json.loads(answer)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()


class ApiCaller(HttpCaller):
    """What the rest of the cluster does to pods."""

    def create(self, pod: Json) -> Json:
        return self.ask("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    def pods(self) -> list[Json]:
        items: list[Json] = self.ask("GET", "/api/v1/pods")["items"]
        return items


class ExtenderCaller(HttpCaller):
    """What kube-scheduler asks the extender."""

    def filter(self, pod: Json, nodes: Sequence[str]) -> Json:
        body = filter_body(encoded(pod), encoded(nodes))
        return self.checked(*self.send("POST", "/filter", body))

    def checked(self, status: int, answer: bytes) -> Json:
        """What /filter answered, which must be no error."""
        assert status == 200, answer[:300]
        found: Json = json.loads(answer)
        assert not found["Error"], found["Error"]
        return found

    def bind(self, pod: Json, node: str) -> str:
        """The error; "" for success."""
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        return str(self.ask("POST", "/bind", {**body, "Node": node})["Error"])


def encoded(value: Json | Sequence[str]) -> bytes:
    """JSON as it goes over the wire."""
    return json.dumps(value, separators=(",", ":")).encode()


def filter_body(pod: bytes, nodes: bytes) -> bytes:
    """A call of /filter, of JSON that is made already."""
    return b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (pod, nodes)


@dataclass(frozen=True)
class ApiServerProcess:
    """The API server's process."""

    url: str
    kubeconfig: Path
    process: subprocess.Popen[str]


@contextmanager
def running_cluster(nodes: int, pods: int) -> Iterator[ApiServerProcess]:
    """Start the API server's process, filled; stop it in the end."""
    with tempfile.TemporaryDirectory(prefix="hx") as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        module, counts = "tests.bench.extender_cluster", (str(nodes), str(pods))
        command = [sys.executable, "-m", module, *counts, str(kubeconfig)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            said = process.stdout.readline().split()
            assert said[:1] == [READY], "the API server did not start"
            try:
                yield ApiServerProcess(said[1], kubeconfig, process)
            finally:
                process.stdin.close()
                process.wait(20)


@dataclass(frozen=True)
class RunningExtender:
    """The extender's process; `ready_s` from its start to the first good /readyz."""

    url: str
    process: Running
    ready_s: float


@contextmanager
def running_extender(cluster: ApiServerProcess) -> Iterator[RunningExtender]:
    """Start `hami-node extender`, wait until it is ready, stop it in the end."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "hami_node", "extender", "--metrics-address=off"),
        *(f"--http-bind=127.0.0.1:{port}", f"--kubeconfig={cluster.kubeconfig}"),
    ]
    with tempfile.TemporaryDirectory(prefix="hx") as folder:
        began_s = time.monotonic()
        process = launched("extender", command, Path(folder))
        try:
            wait_for("/readyz", lambda: is_good(f"{url}/readyz"), START_LIMIT_S, process)
            yield RunningExtender(url, process, time.monotonic() - began_s)
        finally:
            process.stop()


def held_by(pods: Iterable[Json]) -> Counter[tuple[str, str]]:
    """(card, "memory" | "cores" | "slots") -> how much of it pods hold, by their annotations."""
    held: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        text = (pod["metadata"].get("annotations") or {}).get(nvidia_names.POD_ALLOCATED)
        if not text:
            continue
        for grant in (
            item
            for slot in decode_grants(text, nvidia_names.POD_ALLOCATED, NVIDIA)
            for item in slot
        ):
            held[grant.uuid, "memory"] += grant.memory_mib
            held[grant.uuid, "cores"] += grant.cores
            held[grant.uuid, "slots"] += 1
    return held


def overcommitted(pods: Iterable[Json], nodes: int) -> list[str]:
    """The cards of which more is held than there is."""
    held = held_by(pods)
    room: dict[tuple[Uuid, str], int] = {}
    for number in range(nodes):
        for device in devices_of(number):
            room[device.uuid, "memory"] = device.memory_mib
            room[device.uuid, "cores"] = device.cores
            room[device.uuid, "slots"] = device.slots
    return [
        f"{uuid}: {what} {much}"
        for (uuid, what), much in held.items()
        if much > room[Uuid(uuid), what]
    ]


def shown(name: str, took_ms: Sequence[float]) -> str:
    """One line: p50, p95, p99, most."""
    ordered = sorted(took_ms)
    at: list[Any] = [ordered[int(len(ordered) * part)] for part in (0.5, 0.95, 0.99)]
    return f"{name:44}" + "".join(f"{value:9.2f}" for value in (*at, ordered[-1]))
