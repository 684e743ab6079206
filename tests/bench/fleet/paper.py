"""Nodes and pods on paper, and what becomes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec

from tests.bench import extender_cluster
from tests.bench.fleet.client import FleetClient, Json, for_each
from tests.bench.fleet.figures import Moments
from tests.bench.fleet.plane import NAMESPACE

PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_READ_BYTES: Final = 1 << 18


def add_nodes(client: FleetClient, first: int, end: int) -> None:
    """Ready nodes with eight registered cards each, as our daemon leaves them.

    They carry no handshake: it is judged where it stands, and nobody is there to keep it fresh.
    """
    bodies = (extender_cluster.node_object(number) for number in range(first, end))
    for_each(lambda body: client.create("/api/v1/nodes", body), bodies)


def pod_body(name: str, *, has_cards: bool, memory_mib: int = 1000, cores: int = 5) -> Json:
    """What a ReplicaSet makes and the webhook has reviewed; without cards: the same, plain."""
    limits = extender_cluster.limits_of(memory_mib, cores) if has_cards else {}
    pod = extender_cluster.pod_object(name, NAMESPACE, limits)
    container = pod["spec"]["containers"][0]
    container["resources"]["limits"] |= {"cpu": "100m", "memory": "256Mi"}
    container.pop("volumeMounts"), pod["spec"].pop("volumes")  # the API server adds its own
    for key in ("uid", "ownerReferences"):
        pod["metadata"].pop(key)
    return pod


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


_LINE: Final = msgspec.json.Decoder(_Line)
_POD: Final = msgspec.json.Decoder(_Pod)


@dataclass(slots=True)
class PodWatch:
    """Sees when pods are bound and gone; a watch in a thread of its own."""

    client: FleetClient
    bound_s: dict[str, float] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    failure: str = ""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _sock: Any = None
    _is_over: bool = False

    def __enter__(self) -> Self:
        listed = self.client.read(f"{PODS}?limit=1")
        version = listed["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._run, args=(version,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        with suppress(OSError, AttributeError):
            self._sock.shutdown(2)
        if self._thread is not None:
            self._thread.join(5)

    def wait_bound(self, names: Iterable[str], limit_s: float) -> None:
        """Until all of them were seen bound.

        Raises:
            RuntimeError: some were not.
        """
        missing = self._wait(set(names), lambda left: left - self.bound_s.keys(), limit_s)
        if missing:
            some = ", ".join(sorted(missing)[:5])
            raise RuntimeError(f"{len(missing)} pods are not bound after {limit_s:.0f} s: {some}")

    def wait_gone(self, names: Iterable[str], limit_s: float) -> None:
        """Until all of them were seen deleted."""
        self._wait(set(names), lambda left: left - self.gone, limit_s)

    def _wait(
        self, left: set[str], remaining: Callable[[set[str]], set[str]], limit_s: float
    ) -> set[str]:
        deadline_s = time.monotonic() + limit_s
        with self._changed:
            while left := remaining(left):
                wait_s = deadline_s - time.monotonic()
                if wait_s <= 0 or self.failure:
                    break
                self._changed.wait(min(wait_s, 0.2))
        if self.failure:
            raise RuntimeError(self.failure)
        return left

    def _run(self, version: str) -> None:
        try:
            while not self._is_over:
                version = self._follow(version)
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it
            if not self._is_over:
                self.failure = f"the bench's own watch broke: {error!r}"

    def _follow(self, version: str) -> str:
        """Watch from this version on; the version to go on with once the API server ends that.

        It does so with a client that takes events too slowly, as one on a busy machine may.
        """
        connection = self.client.connection(timeout_s=3600)
        path = f"{PODS}?watch=1&resourceVersion={version}&timeoutSeconds=7200"
        connection.request("GET", path, headers=self.client.headers())
        answer = connection.getresponse()
        self._sock = connection.sock
        rest = b""
        while chunk := answer.read1(_READ_BYTES):
            moment_s = time.monotonic()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                version = self._take(line, moment_s)
            with self._changed:
                self._changed.notify_all()
        connection.close()
        return version

    def _take(self, line: bytes, moment_s: float) -> str:
        event = _LINE.decode(line)
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise ValueError(line[:200])
        pod = _POD.decode(event.object)
        name = pod.metadata.name
        if event.type == "DELETED":
            self.gone.add(name)
        elif pod.spec.node_name:
            self.bound_s.setdefault(name, moment_s)
        return pod.metadata.resource_version

    def moments(self, created_s: dict[str, float]) -> list[Moments]:
        """Of the pods that were bound."""
        return [
            Moments(created_s=began_s, bound_s=self.bound_s[name])
            for name, began_s in created_s.items()
            if name in self.bound_s
        ]


def create_pods(
    client: FleetClient, bodies: Iterable[Json], *, threads: int = 8
) -> dict[str, float]:
    """As fast as the API server takes them; when each was sent, by name."""
    created_s: dict[str, float] = {}

    def create(body: Json) -> None:
        created_s[body["metadata"]["name"]] = time.monotonic()
        client.create(PODS, body)

    for_each(create, bodies, threads)
    return created_s


def create_paced(client: FleetClient, bodies: Iterable[Json], per_s: float) -> dict[str, float]:
    """So many a second, evenly; when each was sent, by name."""
    created_s: dict[str, float] = {}
    due_s = time.monotonic()
    for body in bodies:
        time.sleep(max(0.0, due_s - time.monotonic()))
        created_s[body["metadata"]["name"]] = time.monotonic()
        client.create(PODS, body)
        due_s += 1 / per_s
    return created_s


def delete_pods(client: FleetClient, names: Iterable[str]) -> None:
    """At once: no kubelet ends them."""
    for_each(lambda name: client.delete(f"{PODS}/{name}"), names)
