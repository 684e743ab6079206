"""A simulated API server, and a client that talks to it over real HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hami_node.cluster.client import KubeClient, connect
from hami_node.cluster.transport.connection import Timeouts
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import RealClock

Requests = list[tuple[str, str, int]]
Connect = Callable[..., KubeClient]


@pytest.fixture
def server() -> Iterator[FaultyApiServer]:
    with FaultyApiServer(bookmark_interval_s=0.1) as running:
        running.create("nodes", {"metadata": {"name": "n1", "annotations": {"theirs": "x"}}})
        running.create("pods", pod("ns", "p1", "n1"))
        yield running


@pytest.fixture
def calls() -> Requests:
    """The calls of `on_request`."""
    return []


@pytest.fixture
def connect_to(server: FaultyApiServer, calls: Requests, tmp_path: Path) -> Iterator[Connect]:
    """Makes clients of the server; closes them in the end."""
    made: list[KubeClient] = []

    def make(read_s: float = 5.0, component: str = "daemon") -> KubeClient:
        client = connect(
            server.write_kubeconfig(tmp_path / "kubeconfig"),
            component=component,
            clock=RealClock(),
            host_name="n1",
            timeouts=Timeouts(connect_s=2.0, read_s=read_s, total_s=10.0),
            on_request=lambda *call: calls.append(call),
        )
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def kube(connect_to: Connect) -> KubeClient:
    return connect_to()


def pod(namespace: str, name: str, node_name: str = "") -> dict[str, object]:
    """A pod as the API server holds it."""
    return {
        "metadata": {"namespace": namespace, "name": name, "annotations": {"theirs": "x"}},
        "spec": {"nodeName": node_name, "containers": [{"name": "main"}]},
        "status": {"phase": "Pending"},
    }
