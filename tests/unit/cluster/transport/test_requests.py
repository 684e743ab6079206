"""Requests as the API server receives them: what arrives with one read, and over which way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from kubernetes.client import Configuration

from hami_node.cluster.calls import ApiCall
from hami_node.cluster.transport.connection import Connection
from hami_node.errors import KubeError
from tests.fakes.clock import RealClock

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
AT_ONCE = 32


class Server:
    """Answers what is complete in one read, and hangs up otherwise; keeps what it has read."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=AT_ONCE)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.read: list[bytes] = []
        self.accepted = 0
        self.together = threading.Barrier(1)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(taken,), daemon=True).start()

    def _serve(self, taken: socket.socket) -> None:
        with taken, suppress(OSError, threading.BrokenBarrierError):
            while data := taken.recv(1 << 20):
                self.read.append(data)
                head, _, body = data.partition(b"\r\n\r\n")
                length = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Len")]
                if length and len(body) != int(length[0].partition(b":")[2]):
                    return
                self.together.wait(20)
                taken.sendall(ANSWER)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def connection(server: Server, base: str = "", proxy: str = "") -> Connection:
    configuration = Configuration()
    configuration.host = f"http://{server.address}{base}" if not proxy else "http://api.test"
    configuration.proxy = proxy or None
    return Connection(lambda: configuration, user_agent="test", clock=RealClock())


def patch(body: object = None) -> ApiCall:
    return ApiCall(
        method="PATCH" if body else "GET",
        verb="patch" if body else "get",
        path="/api/v1/nodes/n1",
        resource="nodes",
        subject="nodes/n1",
        body=body,
    )


def test_head_and_body_arrive_with_one_read(server: Server) -> None:
    sent = {"text": "x" * 20_000}
    sender = connection(server)
    assert sender.send(patch(sent)) == b"{}"
    assert sender.send(patch()) == b"{}"
    assert [data.split(b" ", 1)[0] for data in server.read] == [b"PATCH", b"GET"]
    assert server.read[0].endswith(b'"}')


def test_as_many_calls_as_bind_at_once_keep_their_connections(server: Server) -> None:
    sender = connection(server)
    server.together = threading.Barrier(AT_ONCE)
    for _ in range(3):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            assert set(pool.map(lambda _: sender.send(patch()), range(AT_ONCE))) == {b"{}"}
    assert server.accepted == AT_ONCE


@pytest.mark.parametrize("base", ["/k8s/clusters/c-1", "/k8s/clusters/c-1/"])
def test_a_server_below_a_path_is_asked_there(server: Server, base: str) -> None:
    connection(server, base).send(patch())
    assert server.read[0].startswith(b"GET /k8s/clusters/c-1/api/v1/nodes/n1 ")


def test_a_proxy_is_told_which_server_is_meant(server: Server) -> None:
    connection(server, proxy=f"http://{server.address}").send(patch({"a": 1}))
    assert server.read[0].startswith(b"PATCH http://api.test/api/v1/nodes/n1 ")


def test_a_connection_that_was_closed_meanwhile_is_made_anew(server: Server) -> None:
    sender = connection(server)
    sender.send(patch())
    sender.close()
    assert sender.send(patch()) == b"{}"


def test_a_server_that_hangs_up_on_a_request_is_a_transient_failure(server: Server) -> None:
    server.together.abort()
    with pytest.raises(KubeError) as caught:
        connection(server).send(patch({"a": 1}))
    assert caught.value.is_transient
