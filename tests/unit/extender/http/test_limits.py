"""What a client of the extender's server may use: bytes, values, time and connections."""

from __future__ import annotations

import gc
import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from weakref import WeakSet

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_node.extender.http.server import ExtenderServer
from hami_node.extender.http.serving import ClientConnection
from tests.fakes.waiting import eventually
from tests.reliability import shows
from tests.unit.extender.http.test_server import (
    ECHO,
    LIMITS,
    HeldCall,
    Seen,
    ask,
    error_of,
    serving,
    talk,
)


def test_refused_body_is_dropped_and_the_connection_serves_on() -> None:
    with serving() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        with closing(connection):
            connection.request("POST", "/bind", b"x" * 5_000_000)
            refused = connection.getresponse()
            assert (refused.status, bool(refused.read())) == (413, True)
            kept = connection.sock
            connection.request("POST", "/bind", b"x")
            assert connection.getresponse().status == 200
            assert connection.sock is kept


def test_two_lengths_of_one_body_are_400() -> None:
    head = b"POST /bind HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc"
    with serving() as server:
        assert talk(server, head).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
    ],
    ids=["tls", "word", "no-path", "spaces"],
)
def test_what_is_no_http_is_400(data: bytes) -> None:
    with serving() as server:
        assert talk(server, data).startswith(b"HTTP/1.1 400 ")
        assert ask(server, "GET", "/healthz")[0] == 200


def test_slow_body_is_408_in_time() -> None:
    with serving() as server:
        received = talk(server, b"POST /bind HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
    assert received.startswith(b"HTTP/1.1 408 ")
    assert "0.4 s" in error_of(received.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("data", [b"POST /bi", b"GET /x HTTP/1.1\r\nHost"], ids=["line", "header"])
def test_slow_head_is_408_in_time(data: bytes) -> None:
    with serving() as server:
        assert talk(server, data).startswith(b"HTTP/1.1 408 ")


def test_client_that_closes_in_its_body_costs_nothing() -> None:
    seen = Seen()
    called = threading.Event()

    def work(_body: bytes) -> bytes:
        called.set()
        return b""

    with serving(replace(ECHO, bind=work), seen=seen) as server:
        talk(server, b"POST /bind HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc", closes=True)
        eventually(lambda: seen.requests)
        assert not called.is_set()
        assert ask(server, "GET", "/healthz")[0] == 200
    assert seen.requests[0] == ("/bind", 499)


@shows(
    "E4",
    fault="a pod sends whole reviews to the webhook without end, and leaves each of them",
    happens="what has not begun is dropped with its client: the API server's waits for none of it",
)
def test_work_of_clients_that_have_left_is_dropped() -> None:
    seen, gate, worked = Seen(), HeldCall(), list[bytes]()

    def review(body: bytes) -> bytes:
        worked.append(body)
        return gate(body)

    with (
        serving(replace(ECHO, webhook=review), seen=seen) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(ask, server, "POST", "/webhook", b"first")
        assert gate.entered.acquire(timeout=10)
        for _ in range(30):
            left = b"POST /webhook HTTP/1.1\r\nContent-Length: 4\r\n\r\nleft"
            talk(server, left, closes=True)
        eventually(lambda: len(seen.requests) == 30)
        last = pool.submit(ask, server, "POST", "/webhook", b"last")
        gate.opened.set()
        assert (first.result(10)[0], last.result(10)[0]) == (200, 200)
    assert worked == [b"first", b"last"]
    assert seen.requests[:30] == [("/webhook", 499)] * 30


@shows(
    "E4",
    fault="a pod keeps as many reviews waiting at the webhook as it can",
    happens="their bytes, and so the work ahead, are bounded: the largest make way for others",
)
def test_largest_waiting_bodies_make_way_for_smaller_ones() -> None:
    gate = HeldCall()
    limits = replace(LIMITS, bodies_bytes=5_000, request_s=20.0)
    with (
        serving(replace(ECHO, webhook=gate), limits) as server,
        ThreadPoolExecutor(9) as pool,
    ):
        busy = pool.submit(ask, server, "POST", "/webhook", b"x" * 1_000)
        assert gate.entered.acquire(timeout=10)
        crowd = [pool.submit(ask, server, "POST", "/webhook", b"x" * 1_900) for _ in range(7)]
        eventually(lambda: sum(call.done() for call in crowd) == 5)
        small = pool.submit(ask, server, "POST", "/webhook", b"x" * 1_000)
        eventually(lambda: sum(call.done() for call in crowd) == 6)
        gate.opened.set()
        assert (busy.result(10)[0], small.result(10)[0]) == (200, 200)
        assert sorted(call.result(10)[0] for call in crowd) == [200] + [503] * 6


@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda head, body: head + b"\r\n" + body,
            st.sampled_from(
                [
                    b"POST /filter HTTP/1.1\r\nContent-Length: 20\r\n",
                    b"POST /bind HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
                    b"POST /webhook HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 9\r\n",
                    b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n",
                    b"GET http://x:y/%ff?\xff HTTP/1.1\r\n",
                    b"CONNECT a:1 HTTP/1.1\r\n",
                    b"OPTIONS * HTTP/1.1\r\n",
                ]
            ),
            st.binary(max_size=60),
        ),
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_bytes_are_survived(shared: ExtenderServer, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=20) as raw:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        try:
            answer = raw.recv(65536)
        except ConnectionResetError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert ask(shared, "GET", "/healthz")[0] == 200


@pytest.fixture
def shared() -> Iterator[ExtenderServer]:
    with serving(limits=replace(LIMITS, request_s=5.0)) as server:
        yield server


def test_large_bodies_at_work_leave_room_for_small_ones_only() -> None:
    gate = HeldCall()
    work = replace(ECHO, filter=lambda body: gate(body) if len(body) > 100_000 else b"{}")
    with serving(work) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, server, "POST", "/filter", b"x" * 200_000)
        assert gate.entered.acquire(timeout=10)
        status, body, _ = ask(server, "POST", "/filter", b"x" * 200_000)
        assert (status, error_of(body)) == (503, "busy with other large requests, try again")
        assert ask(server, "POST", "/filter", b"x")[0] == 200
        gate.opened.set()
        assert first.result(10)[0] == 200
        assert ask(server, "POST", "/filter", b"x" * 200_000)[0] == 200


def test_body_of_too_many_values_is_413_before_it_is_read() -> None:
    with serving(limits=replace(LIMITS, values=1_000)) as server:
        assert ask(server, "POST", "/filter", b"[" + b"1," * 900 + b"1]")[0] == 200
        status, body, _ = ask(server, "POST", "/filter", b"[" + b"1," * 1_100 + b"1]")
    assert (status, "1000 values" in error_of(body)) == (413, True)


def test_compressed_body_is_415() -> None:
    with serving() as server:
        for coding in ("gzip", "deflate", "br", "gzip, gzip"):
            headers = {"Content-Encoding": coding}
            assert ask(server, "POST", "/webhook", b"x", headers)[0] == 415
        assert ask(server, "POST", "/webhook", b"x", {"Content-Encoding": "identity"})[0] == 200


def test_request_that_does_not_wait_for_the_answer_before_is_hung_up_on() -> None:
    gate = HeldCall()
    with serving(replace(ECHO, bind=gate)) as server:
        bind = b"POST /bind HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
        received = talk(server, bind + b"GET /healthz HTTP/1.1\r\n\r\n" * 5_000)
        gate.opened.set()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1") == 1


def test_whole_request_has_one_deadline_however_steady_it_comes() -> None:
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), 20) as raw:
        raw.sendall(b"POST /bind HTTP/1.1\r\nContent-Length: 900\r\n\r\n")
        raw.settimeout(0.05)
        received = b""
        for _ in range(400):
            try:
                raw.sendall(b"x")
                received = raw.recv(1000)
                break
            except TimeoutError:
                continue
    assert received.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 101,
        b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 9_000 + b"\r\n",
        b"GET /" + b"z" * 9_000 + b" HTTP/1.1\r\n",
    ],
    ids=["many", "long", "url"],
)
def test_large_head_in_one_piece_is_431(head: bytes) -> None:
    with serving() as server:
        assert talk(server, head + b"\r\n").startswith(b"HTTP/1.1 431 ")


def test_headers_after_the_body_count_too() -> None:
    begin = b"POST /bind HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    with serving() as server:
        received = talk(server, begin + b"a: b\r\n" * 200 + b"\r\n")
    assert received.startswith(b"HTTP/1.1 431 ")


def test_answer_that_is_read_byte_by_byte_has_a_deadline() -> None:
    pages = replace(ECHO, metrics=lambda _: (b"x" * 30_000_000, "text/plain"))
    with serving(pages) as server, socket.create_connection(("127.0.0.1", server.port), 20) as raw:
        raw.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")

        def is_cut_off() -> bool:
            try:
                return raw.recv(100) == b""
            except ConnectionError:
                return True

        eventually(is_cut_off, limit_s=30)


def test_header_after_a_chunked_body_that_never_ends_is_431() -> None:
    head = b"POST /bind HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    with (
        serving() as server,
        closing(socket.create_connection(("127.0.0.1", server.port), 20)) as client,
    ):
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")  # so the rest comes by itself
        client.sendall(b"0\r\nX: " + b"a" * LIMITS.head_bytes)
        assert client.recv(100).startswith(b"HTTP/1.1 431 ")


def connections() -> list[ClientConnection]:
    """Those that anything still refers to."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, ClientConnection)]


def test_connection_that_its_client_has_reset_leaves_nothing_behind() -> None:
    others = WeakSet(connections())
    with serving() as server:
        client = socket.create_connection(("127.0.0.1", server.port), 20)
        client.sendall(b"POST /bind HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert set(connections()) - set(others)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        eventually(lambda: not set(connections()) - set(others))
