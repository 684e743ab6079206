"""The extender's server over real sockets."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import pytest

from hami_node import __version__
from hami_node.errors import ConfigError, NotLeading, WireError
from hami_node.extender.http.server import Endpoints, ExtenderServer, ServerLimits
from tests.fakes.waiting import eventually

LIMITS = ServerLimits(
    filter_body_bytes=300_000,
    bind_body_bytes=1_000,
    webhook_body_bytes=2_000,
    bodies_bytes=300_000,
    head_bytes=8_000,
    request_s=0.4,
    answer_s=0.5,
    handshake_s=0.5,
    filter_workers=2,
    webhook_workers=1,
    max_connections=40,
    unread_answer_s=0.5,
    certificate_check_s=0.02,
)


def no_pages(_accept: str) -> tuple[bytes, str]:
    return b"up 1\n", "text/plain; version=0.0.4"


ECHO = Endpoints(
    filter=lambda body: b'{"filter": %d}' % len(body),
    bind=lambda body: b'{"bind": %d}' % len(body),
    preempt=lambda body: b'{"preempt": %d}' % len(body),
    webhook=lambda body: b'{"webhook": %d}' % len(body),
    live={},
    ready={},
    metrics=no_pages,
)


@dataclass
class Seen:
    """The calls of `on_request`."""

    requests: list[tuple[str, int]] = field(default_factory=list)

    def note(self, route: str, status: int, seconds: float) -> None:
        assert seconds >= 0
        self.requests.append((route, status))


@contextmanager
def serving(
    endpoints: Endpoints = ECHO,
    limits: ServerLimits = LIMITS,
    seen: Seen | None = None,
    grace_s: float = 5.0,
) -> Iterator[ExtenderServer]:
    note = (seen or Seen()).note
    server = ExtenderServer("127.0.0.1:0", endpoints, limits=limits, on_request=note)
    try:
        yield server.start()
    finally:
        server.close(grace_s)


@dataclass
class HeldCall:
    """A call that waits until it is let go."""

    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    opened: threading.Event = field(default_factory=threading.Event)

    def __call__(self, _body: bytes) -> bytes:
        self.entered.release()
        assert self.opened.wait(20.0)
        return b'{"Error": ""}'


def ask(
    server: ExtenderServer,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with closing(connection):
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read(), response


def error_of(body: bytes) -> str:
    value = json.loads(body)
    assert list(value) == ["Error"]
    return str(value["Error"])


def talk(server: ExtenderServer, data: bytes, *, closes: bool = False) -> bytes:
    """Send bytes, and read until the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
        raw.sendall(data)
        if closes:
            return b""
        received = b""
        while piece := raw.recv(65536):
            received += piece
        return received


# -- routes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["filter", "bind", "webhook"])
def test_post_answers_what_the_endpoint_made(path: str) -> None:
    seen = Seen()
    with serving(seen=seen) as server:
        status, body, response = ask(server, "POST", f"/{path}", b"x" * 700)
    assert (status, json.loads(body)) == (200, {path: 700})
    assert response.headers["Content-Type"] == "application/json"
    assert "Server" not in response.headers
    assert "Date" not in response.headers
    assert seen.requests == [(f"/{path}", 200)]


def test_chunked_body_is_put_together() -> None:
    connection_body = iter([b"ab", b"", b"cde"])
    with serving() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        with closing(connection):
            connection.request("POST", "/filter", connection_body, encode_chunked=True)
            assert json.loads(connection.getresponse().read()) == {"filter": 5}


def test_probes_name_each_reason_and_recover() -> None:
    reasons = {"nodes": "not listed yet", "lease": ""}
    checks: dict[str, Callable[[], str]] = {
        "nodes": lambda: reasons["nodes"],
        "lease": lambda: reasons["lease"],
    }
    with serving(replace(ECHO, ready=checks)) as server:
        assert ask(server, "GET", "/readyz")[:2] == (503, b"nodes: not listed yet\n")
        assert ask(server, "GET", "/healthz")[:2] == (200, b"ok\n")
        reasons["nodes"] = ""
        assert ask(server, "GET", "/readyz")[:2] == (200, b"ok\n")


def test_metrics_are_made_for_what_the_client_accepts() -> None:
    def metrics(accept: str) -> tuple[bytes, str]:
        return accept.encode(), "application/openmetrics-text; version=1.0.0"

    with serving(replace(ECHO, metrics=metrics)) as server:
        status, body, response = ask(server, "GET", "/metrics", headers={"Accept": "a/b"})
    assert (status, body) == (200, b"a/b")
    assert response.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0"


def test_version_is_the_products_version() -> None:
    with serving() as server:
        assert json.loads(ask(server, "GET", "/version")[1]) == {"version": __version__}


def test_unknown_path_is_told_which_paths_there_are() -> None:
    seen = Seen()
    with serving(seen=seen) as server:
        status, body, _ = ask(server, "GET", "/filter/")
    assert status == 404
    for path in ("/filter", "/bind", "/webhook", "/healthz", "/readyz", "/metrics", "/version"):
        assert path in error_of(body)
    assert seen.requests == [("other", 404)]


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("GET", "/filter", "POST"), ("POST", "/metrics", "GET")]
)
def test_wrong_method_is_told_the_right_one(method: str, path: str, allowed: str) -> None:
    with serving() as server:
        status, body, response = ask(server, method, path, b"x" * 10)
    assert status == 405
    assert allowed in response.headers["Allow"]
    assert allowed in error_of(body)


# -- errors of endpoints ---------------------------------------------------------------------------


def test_wire_error_is_400_with_its_sentence() -> None:
    def refuse(_body: bytes) -> bytes:
        raise WireError("Pod", "{", "is cut off")

    with serving(replace(ECHO, filter=refuse)) as server:
        status, body, _ = ask(server, "POST", "/filter", b"{")
    assert (status, error_of(body)) == (400, "Pod: is cut off: '{'")


def test_not_leading_is_503_with_its_sentence() -> None:
    def refuse(_body: bytes) -> bytes:
        raise NotLeading("replica b decides")

    with serving(replace(ECHO, bind=refuse)) as server:
        status, body, response = ask(server, "POST", "/bind", b"{}")
    assert (status, error_of(body)) == (503, "replica b decides")
    # else the caller would ask this replica for as long as it keeps its connection
    assert response.headers["Connection"] == "close"
    assert response.will_close


def test_unexpected_error_is_500_and_logged_and_the_server_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(body: bytes) -> bytes:
        raise RecursionError("secret detail")

    def check() -> str:
        raise KeyError("secret detail")

    with serving(replace(ECHO, filter=fail, live={"one": check})) as server:
        for method, path in (("POST", "/filter"), ("GET", "/healthz")):
            status, body, _ = ask(server, method, path)
            assert (status, error_of(body)) == (500, "internal error, see the log")
        assert ask(server, "POST", "/webhook", b"12")[0] == 200
    failures = [r for r in caplog.records if r.message == "extender_request_failed"]
    assert len(failures) == 2
    assert all(record.exc_info for record in failures)


# -- many at a time --------------------------------------------------------------------------------


def test_waiting_binds_hold_up_nothing_else() -> None:
    gate = HeldCall()
    limits = replace(LIMITS, bind_workers=8)
    with serving(replace(ECHO, bind=gate), limits) as server, ThreadPoolExecutor(20) as pool:
        binds = [pool.submit(ask, server, "POST", "/bind", b"{}") for _ in range(20)]
        for _ in range(8):
            assert gate.entered.acquire(timeout=10)
        for method, path in (
            ("POST", "/filter"),
            ("POST", "/webhook"),
            ("GET", "/healthz"),
            ("GET", "/readyz"),
            ("GET", "/metrics"),
        ):
            assert ask(server, method, path)[0] == 200, path
        assert not any(bind.done() for bind in binds)
        gate.opened.set()
        assert [bind.result(10)[0] for bind in binds] == [200] * 20


def test_page_waits_while_another_one_is_made() -> None:
    gate = HeldCall()
    pages = replace(ECHO, metrics=lambda _: (gate(b""), "text/plain"))
    with serving(pages) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, server, "GET", "/metrics")
        assert gate.entered.acquire(timeout=10)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert ask(server, "GET", "/healthz")[0] == 200
            gate.opened.set()
            assert raw.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert first.result(10)[0] == 200


# -- start and stop --------------------------------------------------------------------------------


def test_taken_address_is_a_config_error_with_a_cure() -> None:
    with serving() as server:
        second = ExtenderServer(f"127.0.0.1:{server.port}", ECHO)
        with pytest.raises(ConfigError, match="stop the program that holds it"):
            second.start()
        second.close()


@pytest.mark.parametrize("address", [":0", "[::1]:0", "localhost:0"])
def test_address_forms_are_served(address: str) -> None:
    server = ExtenderServer(address, ECHO, limits=LIMITS).start()
    host = "::1" if "::1" in address else "127.0.0.1"
    try:
        connection = http.client.HTTPConnection(host, server.port, timeout=10)
        with closing(connection):
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
    finally:
        server.close()


def test_stop_lets_a_running_bind_finish_and_takes_no_new_ones() -> None:
    gate = HeldCall()
    with serving(replace(ECHO, bind=gate)) as server, ThreadPoolExecutor(2) as pool:
        idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        idle.request("GET", "/healthz")
        idle.getresponse().read()
        bind = pool.submit(ask, server, "POST", "/bind", b"{}")
        assert gate.entered.acquire(timeout=10)
        stop = pool.submit(server.close, 20.0)

        def is_refused() -> bool:
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
            except ConnectionRefusedError:
                return True
            return False

        eventually(is_refused)
        assert not stop.done()
        gate.opened.set()
        assert bind.result(10)[:2] == (200, b'{"Error": ""}')
        stop.result(10)
        idle.close()


def test_stop_ends_what_takes_longer_than_its_grace(caplog: pytest.LogCaptureFixture) -> None:
    gate = HeldCall()
    with serving(replace(ECHO, bind=gate)) as server, ThreadPoolExecutor(1) as pool:
        bind = pool.submit(ask, server, "POST", "/bind", b"{}")
        assert gate.entered.acquire(timeout=10)
        server.close(1.0)
        status, body, _ = bind.result(10)
        gate.opened.set()
    assert (status, error_of(body)) == (503, "the server is stopping")
    assert not [r for r in caplog.records if r.exc_info]


# -- one connection, request by request ------------------------------------------------------------


def test_client_that_waits_for_100_sends_its_body_after_it() -> None:
    head = b"POST /bind HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), 20) as raw:
        raw.sendall(head)
        assert raw.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b"{}")
        answer = raw.recv(1000)
        while piece := b"" if answer.endswith(b"}") else raw.recv(1000):
            answer += piece
        assert answer.endswith(b'{"bind": 2}')


def test_client_that_waits_for_100_is_refused_without_it() -> None:
    head = b"POST /bind HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999\r\n\r\n"
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), 20) as raw:
        raw.sendall(head)
        assert raw.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_idle_connection_serves_on_after_the_time_that_a_request_has() -> None:
    with serving() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        with closing(connection):
            connection.request("POST", "/bind", b"{}")
            connection.getresponse().read()
            kept = connection.sock
            threading.Event().wait(2 * LIMITS.request_s)
            connection.request("POST", "/bind", b"{}")
            assert connection.getresponse().status == 200
            assert connection.sock is kept


def test_stop_waits_for_work_whose_client_has_gone() -> None:
    gate, seen = HeldCall(), Seen()
    with serving(replace(ECHO, bind=gate), seen=seen) as server, ThreadPoolExecutor(1) as pool:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(b"POST /bind HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
            assert gate.entered.acquire(timeout=10)
        stop = pool.submit(server.close, 20.0)
        threading.Event().wait(0.2)
        assert not stop.done()
        gate.opened.set()
        stop.result(10)
    assert seen.requests == [("/bind", 200)]
