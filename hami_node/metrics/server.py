"""HTTP for people and probes: /metrics, /healthz, /readyz and /config. Load it after registration.

At most `MAX_CONNECTIONS` at a time, `MAX_PAGES` of them for /metrics, each with a time limit: slow
or greedy clients don't keep the probes out.
"""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any, Final, Self
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from hami_node.errors import ConfigError
from hami_node.logs import kv

log: Final = logging.getLogger(__name__)
MAX_CONNECTIONS: Final = 16
MAX_PAGES: Final = 4
"""Requests for /metrics at a time: a page of all nodes takes time and memory."""
MAX_NODES: Final = 100
"""Names of nodes in one request for /metrics."""
CLIENT_TIMEOUT_S: Final = 5.0
PAGE_TIMEOUT_S: Final = 30.0
"""Until a client has read the whole of /metrics."""
END: Final = b"# EOF\n"
"""The last line of OpenMetrics text."""

Check = Callable[[], str]
"""Returns "" when healthy, else the reason in words. Called for each probe: must not block."""

CardPages = Callable[[Collection[str] | None], Iterator[str]]
"""The series of the cards of these nodes, some lines at a time; None for all nodes."""


def _no_cards(nodes: Collection[str] | None) -> Iterator[str]:
    del nodes
    return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The checks of /healthz (`live`) and /readyz (`ready`), by their name in the response."""

    live: Mapping[str, Check] = field(default_factory=dict)
    ready: Mapping[str, Check] = field(default_factory=dict)


class MetricsServer:
    """Serves in threads of its own between `start` and `close`."""

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        probes: Probes,
        config: Callable[[], Mapping[str, object]],
        cards: CardPages = _no_cards,
    ) -> None:
        """Bind the address `HOST:PORT` or `:PORT` (0: any free port).

        `cards` are the series that are too many for `registry`.

        Raises:
            ConfigError: the address can't be bound.
        """
        ProcessCollector(registry=registry)
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            pages = _Pages(registry, probes, config, cards)
            self._server = _Server((host, int(port)), pages)
        except (OSError, OverflowError) as e:
            hint = f"choose another address ({e})"
            raise ConfigError("settings", "metrics-address", address, hint) from e
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics-server", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self._server.server_address[1])

    def start(self) -> Self:
        """Start serving."""
        self._thread.start()
        log.info("metrics_served", extra=kv(port=self.port))
        return self

    def close(self) -> None:
        """Stop serving and release the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(CLIENT_TIMEOUT_S)
        self._server.server_close()


@dataclass(frozen=True, slots=True)
class _Pages:
    """What is served."""

    registry: CollectorRegistry
    probes: Probes
    config: Callable[[], Mapping[str, object]]
    cards: CardPages


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], pages: _Pages) -> None:
        self.pages = pages
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.free_pages = threading.BoundedSemaphore(MAX_PAGES)
        host, port = address
        if not host and socket.has_dualstack_ipv6():
            host = "::"
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind for IPv4 and IPv6, without the DNS lookup of our own name in http.server."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "hami-node", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - http.server's types
        """Serve in a thread, or close the connection at once when all are busy."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - http.server's types
        """Release the thread's permit, whatever happened."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - http.server's types
        """Log a failure: of a client, such as a closed connection, at debug level only."""
        error = sys.exception()
        fields = kv(client=client_address, error=repr(error))
        if isinstance(error, OSError):
            log.debug("metrics_client_failed", extra=fields)
        else:
            log.error("metrics_page_failed", extra=fields, exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_S
    server: _Server
    server_version = "hami-node"
    sys_version = ""

    def do_GET(self) -> None:
        """Serve one of the four pages."""
        page = {
            "/metrics": self._metrics,
            "/healthz": lambda: self._probe(self.server.pages.probes.live),
            "/readyz": lambda: self._probe(self.server.pages.probes.ready),
            "/config": self._config,
        }.get(self.path.partition("?")[0])
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, "/metrics /healthz /readyz /config\n")
            return
        page()

    def _metrics(self) -> None:
        """Our own series and those of the cards; with `?node=NAME` the cards of that node alone."""
        try:
            query = parse_qs(
                self.path.partition("?")[2], keep_blank_values=True, max_num_fields=MAX_NODES
            )
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, f"name at most {MAX_NODES} nodes\n")
            return
        if not self.server.free_pages.acquire(blocking=False):
            why = f"{MAX_PAGES} requests for /metrics are being answered\n"
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, why)
            return
        try:
            self._page(query.get("node"))
        finally:
            self.server.free_pages.release()

    def _page(self, nodes: Collection[str] | None) -> None:
        pages, deadline_s = self.server.pages, time.monotonic() + PAGE_TIMEOUT_S
        cards = pages.cards(nodes)
        first = next(cards, "")  # before the status, so that a failure is no half page
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        own = encode(pages.registry if nodes is None else CollectorRegistry())
        end = END if own.endswith(END) else b""
        is_chunked = self.request_version == "HTTP/1.1"
        if is_chunked:  # so that a client notices a page that was cut off
            self.protocol_version = self.request_version
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Connection", "close")
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send(own.removesuffix(end), is_chunked)
        for text in chain((first,), cards):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the page was not read within {PAGE_TIMEOUT_S:.0f} s")
            self.connection.settimeout(min(CLIENT_TIMEOUT_S, left_s))
            self._send(text.encode(errors="replace"), is_chunked)
        self._send(end, is_chunked)
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _send(self, part: bytes, is_chunked: bool) -> None:
        if part:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)

    def _probe(self, checks: Mapping[str, Check]) -> None:
        reasons = [f"{name}: {reason}" for name, check in checks.items() if (reason := check())]
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        self._answer(status, "\n".join(reasons or ["ok"]) + "\n")

    def _config(self) -> None:
        text = json.dumps(self.server.pages.config(), indent=2, default=str) + "\n"
        self._answer(HTTPStatus.OK, text, "application/json")

    def _answer(
        self, status: HTTPStatus, body: str | bytes, kind: str = "text/plain; charset=utf-8"
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log requests at debug level only."""
        log.debug("metrics_request", extra=kv(line=format % args))
