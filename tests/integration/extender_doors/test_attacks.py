"""Whoever reaches the ports: probes and callers are served, and memory stays below the limit."""

from __future__ import annotations

import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.fakes.api_server import FaultyApiServer
from tests.fakes.reviews import review_of
from tests.integration.extender_process import (
    CALLER,
    Mounted,
    Replica,
    call,
    context_of,
    tls_flags,
)
from tests.reliability import shows
from tests.unit.daemonset.manifests import FOLDER

MANY: Final = 4500
REVIEW: Final = review_of(
    {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "c"}]}}
)
FILTER: Final = {
    "Pod": {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "c"}]},
    },
    "NodeNames": ["n0"],
}


class Target:
    """A replica under attack."""

    def __init__(self, folder: Path, api: FaultyApiServer) -> None:
        secrets = Mounted(folder, api)
        secrets.certify()
        self.caller = secrets.mount(CALLER)
        server = secrets.mount("hami-node-extender-tls")
        self.replica = Replica(folder / "replica", api, *tls_flags(server))
        self.replica.wait_ready()
        self.tls = context_of(self.caller / "ca.crt", self.caller)
        self.api_server = context_of(self.caller / "ca.crt")

    def is_served(self) -> bool:
        """Probes, kube-scheduler and the API server, each on a new connection."""
        replica = self.replica
        return (
            (replica.probe("/healthz"), replica.probe("/readyz")) == (200, 200)
            and call(replica.decisions, self.tls, "/filter", FILTER)[0] == 200
            and call(replica.webhook, self.api_server, "/webhook", REVIEW)[0] == 200
        )

    def ports(self) -> tuple[int, ...]:
        replica = self.replica
        return replica.decisions, replica.webhook, replica.metrics, replica.probes


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with FaultyApiServer() as api:
        made = Target(tmp_path_factory.mktemp("target"), api)
        try:
            yield made
        finally:
            made.replica.end()


@pytest.fixture
def target(attacked: Target) -> Iterator[Target]:
    """What one attack leaves behind, the next one meets."""
    yield attacked
    assert attacked.is_served()
    assert attacked.replica.peak_mib() < limit_mib() / 2, "the cluster's pods need room too"


def limit_mib() -> int:
    """The container's limit in the manifest."""
    deployment = next(yaml.safe_load_all((FOLDER / "extender" / "deployment.yaml").read_text()))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {"1Gi": 1024, "512Mi": 512}[container["resources"]["limits"]["memory"]]


@contextmanager
def open_files(most: int) -> Iterator[None]:
    """Let this process open so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(most, hard) if hard != resource.RLIM_INFINITY else most
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(stack: ExitStack, port: int, data: bytes = b"") -> None:
    """One connection that stays as long as the server lets it."""
    raw = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
    with suppress(OSError):
        raw.sendall(data)


@shows(
    "E4",
    fault="4,500 idle connections that never finish their TLS handshake",
    happens="they are counted from accept; the oldest make way, callers and probes are served",
)
def test_connections_without_a_handshake_cost_little(target: Target) -> None:
    begun = (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    with open_files(3 * MANY), ExitStack() as stack:
        for number in range(MANY):
            connected(stack, target.ports()[number % 2], begun[number // 2 % 2])
            if number % 1500 == 1499:
                assert target.is_served()


@shows(
    "E4",
    fault="16 and more connections send a byte now and then to the port for metrics",
    happens="probes have a port of their own and are answered",
)
def test_slow_connections_to_every_port_keep_no_probe_out(target: Target) -> None:
    for port in target.ports():
        with ExitStack() as stack:
            for _ in range(200):
                connected(stack, port, b"G")
            assert target.is_served()


@shows(
    "E4",
    fault="more idle keep-alive connections than there are places, one request on each",
    happens="the longest idle one makes way for each new caller",
)
def test_idle_keep_alives_make_way(target: Target) -> None:
    head = b"POST /webhook HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    with open_files(4096), ExitStack() as stack:
        for _ in range(300):
            raw = socket.create_connection(("127.0.0.1", target.replica.webhook), timeout=20)
            secure = target.api_server.wrap_socket(
                raw, server_hostname="hami-node-webhook.hami-system.svc"
            )
            stack.enter_context(secure)
            secure.sendall(head)
            assert secure.recv(12) == b"HTTP/1.1 400"
        assert target.is_served()


def chunks(piece: bytes, most: int) -> Iterator[bytes]:
    for _ in range(most // len(piece)):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)


def flood(port: int, context: ssl.SSLContext, pieces: Iterator[bytes]) -> bytes:
    """Send until the server hangs up; what it said."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=20)
    with context.wrap_socket(raw, server_hostname="hami-node-webhook.hami-system.svc") as secure:
        with suppress(OSError):
            for piece in pieces:
                secure.sendall(piece)
        with suppress(OSError):
            return secure.recv(65536)
    return b""


def body_of(size: int, item: bytes) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield b"POST /webhook HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        yield from chunks(b"[" + item * (60_000 // len(item)), size)
        yield b"0\r\n\r\n"

    return pieces


ATTACKS: Final = {
    "380-mib": body_of(380 * 2**20, b"x"),
    "tiny-items": body_of(4 * 2**20 - 70_000, b"{},"),
    "headers": lambda: iter([b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 100_000]),
    "long-header": lambda: iter([b"GET / HTTP/1.1\r\na: ", b"b" * 2**24]),
    "pipelining": lambda: iter([b"POST /webhook HTTP/1.1\r\nContent-Length: 0\r\n\r\n" * 50_000]),
    "compressed": lambda: iter(
        [
            b"POST /webhook HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n",
            b"\x1f\x8b\x08\x00xxxxx",
        ]
    ),
}


@shows(
    "E4",
    fault="bodies of 380 MiB, bodies of tiny items, endless heads, pipelining, compressed bodies",
    happens="each is refused at a fixed size; memory stays below the container's limit",
)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_too_much_of_anything_is_refused(
    target: Target, attack: Callable[[], Iterator[bytes]]
) -> None:
    for _ in range(3):
        flood(target.replica.webhook, target.api_server, attack())
        assert target.is_served()


def test_many_large_bodies_that_never_end_do_not_add_up(target: Target) -> None:
    head = b"POST /webhook HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n"
    with open_files(4096), ExitStack() as stack:
        for _ in range(60):
            raw = socket.create_connection(("127.0.0.1", target.replica.webhook), timeout=20)
            secure = stack.enter_context(
                target.api_server.wrap_socket(
                    raw, server_hostname="hami-node-webhook.hami-system.svc"
                )
            )
            with suppress(OSError):
                secure.sendall(head + b" " * 3_900_000)
        assert target.is_served()
