"""Who makes way when all places are taken: clients of several addresses."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing, suppress
from dataclasses import replace

from hami_node.extender.http.server import ExtenderServer
from tests.reliability import shows
from tests.unit.extender.http.test_server import ECHO, LIMITS, HeldCall, ask, serving


def crowd(server: ExtenderServer, number: int, data: bytes) -> list[socket.socket]:
    """As many connections from an address that no other client of these tests has."""
    address = ("127.0.0.1", server.port)
    made = [
        socket.create_connection(address, 10, source_address=("127.0.0.2", 0))
        for _ in range(number)
    ]
    for connection in made:
        with suppress(OSError):
            connection.sendall(data)
    return made


@shows(
    "E4",
    fault="a pod opens connections to the webhook without end",
    happens="its own make way; those of the API server stay, however long they are idle",
)
def test_idle_connection_outlasts_a_crowd_from_elsewhere() -> None:
    limits = replace(LIMITS, max_connections=8, request_s=20.0)
    with serving(limits=limits) as server:
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        with closing(kept):
            kept.request("POST", "/webhook", b"{}")
            assert kept.getresponse().read() != b""
            assert kept.sock is not None
            before = kept.sock
            others = crowd(server, 40, b"POST /webhook HTTP/1.1\r\n")
            assert ask(server, "GET", "/healthz")[0] == 200
            kept.request("POST", "/webhook", b"{}")
            assert kept.getresponse().status == 200
            assert kept.sock is before
        for connection in others:
            connection.close()


@shows(
    "E4",
    fault="a pod keeps every connection of the webhook at work",
    happens="some of its own make way for the API server's",
)
def test_crowd_that_is_all_at_work_makes_way_for_another_address() -> None:
    gate = HeldCall()
    limits = replace(LIMITS, max_connections=4, bind_workers=4)
    with serving(replace(ECHO, bind=gate), limits) as server:
        bind = b"POST /bind HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
        others = crowd(server, 4, bind)
        for _ in others:
            assert gate.entered.acquire(timeout=10)
        late = crowd(server, 1, bind)
        with suppress(ConnectionResetError):
            assert late[0].recv(1) == b""
        assert ask(server, "GET", "/healthz")[0] == 200
        gate.opened.set()
        answers = [received(connection) for connection in others]
        for connection in (*others, *late):
            connection.close()
    assert [answer.startswith(b"HTTP/1.1 200 ") for answer in answers].count(True) == 3


def received(connection: socket.socket) -> bytes:
    """What comes first; nothing where the connection was ended."""
    try:
        return connection.recv(1000)
    except ConnectionResetError:
        return b""
