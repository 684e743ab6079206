"""What is served over plain HTTP: /metrics and /config, and the probes /healthz and /readyz.

The standard server, with at most `MAX_CONNECTIONS` at a time, each with a deadline for its whole
request and for its answer; beyond that, the client that has been sending its request longest makes
way for a new one. Probes have an address of their own where one is set, so that nobody who may read
metrics can keep kubelet out. Load it after the registration.
"""

from __future__ import annotations

import io
import json
import logging
import math
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from hami_node.logs import dropped_lines, kv
from hami_node.metrics.listener import listen

log: Final = logging.getLogger(__name__)
MAX_CONNECTIONS: Final = 64
MAX_HEAD_BYTES: Final = 16 * 1024
CLIENT_TIMEOUT_S: Final = 5.0
"""For a whole request, and for each part of the answer."""
MAX_PAGES: Final = 4
"""Requests for /metrics at a time; one page is made at a time, which costs decisions time."""
PAGE_KEPT_S: Final = 1.0
"""The cards of all nodes are served again for so long."""
MAX_NODES: Final = 100
"""Names of nodes in one request for /metrics."""
PAGE_TIMEOUT_S: Final = 30.0
"""Until a client has read the whole of /metrics."""
END: Final = b"# EOF\n"
"""The last line of OpenMetrics text."""

Page = Callable[["PageHandler"], None]
Check = Callable[[], str]
"""Returns "" when healthy, else the reason in words. Called for each probe: must not block."""

CardPages = Callable[[Collection[str] | None], Iterator[str]]
"""The series of the cards of these nodes, some lines at a time; None for all nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The checks of /healthz (`live`) and /readyz (`ready`), by their name in the response."""

    live: Mapping[str, Check] = field(default_factory=dict)
    ready: Mapping[str, Check] = field(default_factory=dict)

    def pages(self) -> dict[str, Page]:
        """Both pages."""
        return {"/healthz": _probe(self.live), "/readyz": _probe(self.ready)}


class LogCollector(Collector):
    """What this process's log has lost."""

    def collect(self) -> Iterator[Metric]:
        """One family."""
        doc = "Lines of the log that were dropped because nobody read them in time."
        yield CounterMetricFamily("hami_node_log_lines_dropped", doc, value=dropped_lines())


class PageServer(ThreadingHTTPServer):
    """Serves in threads of its own between `start` and `close`."""

    daemon_threads = True

    def __init__(
        self, setting: str, address: str | socket.socket, pages: Mapping[str, Page]
    ) -> None:
        """Take over a socket that listens, or bind the address that is this setting's.

        Raises:
            ConfigError: the address can't be bound.
        """
        listener = listen(setting, address) if isinstance(address, str) else address
        super().__init__(listener.getsockname()[:2], PageHandler, bind_and_activate=False)
        self.socket.close()  # unbound: the base class makes one in any case
        self.socket, self.pages = listener, pages
        self._name = setting.partition("-")[0]
        self._thread = threading.Thread(
            target=self.serve_forever, name=f"{self._name}-server", daemon=True
        )
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, bool] = {}
        """Oldest first, and whether its request is complete."""

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self.server_address[1])

    def start(self) -> Self:
        """Start serving."""
        self._thread.start()
        log.info(f"{self._name}_served", extra=kv(port=self.port))
        return self

    def close(self) -> None:
        """Stop serving and release the port."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join(CLIENT_TIMEOUT_S)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - http.server's types
        """Serve in a thread; close the connection at once when all others are being served."""
        slowest = None
        with self._lock:
            if len(self._clients) >= MAX_CONNECTIONS:
                asking = (client for client, is_served in self._clients.items() if not is_served)
                slowest = next(asking, None)
                if slowest is not None:
                    del self._clients[slowest]
            is_taken = len(self._clients) < MAX_CONNECTIONS
            if is_taken:
                self._clients[request] = False
        if slowest is not None:
            _hang_up(slowest)
        if is_taken:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - http.server's types
        """Release the slot, even on error."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._clients.pop(request, None)

    def begin_service(self, client: socket.socket) -> None:
        """Its request is complete: it no longer makes way. Raises OSError when it has to go."""
        with self._lock:
            if client not in self._clients:
                raise ConnectionAbortedError("made way for a newer client")
            self._clients[client] = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - http.server's types
        """Log a failure: of a client, such as a closed connection, at debug level only."""
        error = sys.exception()
        fields = kv(client=client_address, error=repr(error))
        if isinstance(error, OSError):
            log.debug("metrics_client_failed", extra=fields)
        else:
            log.error("metrics_page_failed", extra=fields, exc_info=error)


def _hang_up(client: socket.socket) -> None:
    """Its thread reads the end of the connection, and ends."""
    try:
        client.shutdown(socket.SHUT_RDWR)
    except OSError as e:
        log.debug("metrics_client_failed", extra=kv(error=repr(e)))


class PageHandler(BaseHTTPRequestHandler):
    """One client; `pages` of the server answer it."""

    server: PageServer
    server_version = "hami-node"
    sys_version = ""

    def setup(self) -> None:
        """Read the request, limited as a whole."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(_head(self.connection))
        self.server.begin_service(self.connection)
        self.connection.settimeout(CLIENT_TIMEOUT_S)

    def do_GET(self) -> None:
        """Serve one of the pages."""
        pages = self.server.pages
        page = pages.get(self.path.partition("?")[0])
        if page is None:
            self.answer(HTTPStatus.NOT_FOUND, " ".join(pages) + "\n")
            return
        page(self)

    def answer(
        self, status: HTTPStatus, body: str, kind: str = "text/plain; charset=utf-8"
    ) -> None:
        """The whole answer."""
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log requests at debug level only."""
        log.debug("metrics_request", extra=kv(line=format % args))


def _head(client: socket.socket) -> bytes:
    """A request up to its empty line. Raises TimeoutError: it is too long, or came too slowly."""
    head, deadline_s = b"", time.monotonic() + CLIENT_TIMEOUT_S
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or len(head) >= MAX_HEAD_BYTES:
            raise TimeoutError("the request is too long, or came too slowly")
        client.settimeout(left_s)
        part = client.recv(MAX_HEAD_BYTES - len(head))
        if not part:
            break
        head += part
    return head


class ProbeServer(PageServer):
    """/healthz and /readyz and nothing else."""

    def __init__(self, address: str | socket.socket, probes: Probes) -> None:
        """Take over a socket that listens, or bind the address. Raises ConfigError."""
        super().__init__("probe-address", address, probes.pages())


class MetricsServer(PageServer):
    """/metrics and /config, and the probes where they have no address of their own."""

    def __init__(
        self,
        address: str | socket.socket,
        registry: CollectorRegistry,
        probes: Probes | None,
        config: Callable[[], Mapping[str, object]],
        cards: CardPages = lambda _: iter(()),
    ) -> None:
        """Take over a socket that listens, or bind the address.

        `cards` are the series that are too many for `registry`.

        Raises:
            ConfigError: the address can't be bound.
        """
        ProcessCollector(registry=registry)
        registry.register(LogCollector())

        def show_config(client: PageHandler) -> None:
            text = json.dumps(config(), indent=2, default=str) + "\n"
            client.answer(HTTPStatus.OK, text, "application/json")

        pages: dict[str, Page] = {"/metrics": _MetricsPage(registry, cards)}
        if probes is not None:
            pages |= probes.pages()
        super().__init__("metrics-address", address, {**pages, "/config": show_config})


def _probe(checks: Mapping[str, Check]) -> Page:
    def page(client: PageHandler) -> None:
        reasons = [f"{name}: {reason}" for name, check in checks.items() if (reason := check())]
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        client.answer(status, "\n".join(reasons or ["ok"]) + "\n")

    return page


class _MetricsPage:
    """Our own series and those of the cards; with `?node=NAME` the cards of that node alone."""

    def __init__(self, registry: CollectorRegistry, cards: CardPages) -> None:
        self._registry, self._cards = registry, cards
        self._free = threading.BoundedSemaphore(MAX_PAGES)
        self._making = threading.Lock()
        self._kept: list[bytes] = []
        self._read: dict[str, tuple[float, bytes]] = {}
        self._made_s = -math.inf

    def __call__(self, client: PageHandler) -> None:
        try:
            query = parse_qs(
                client.path.partition("?")[2], keep_blank_values=True, max_num_fields=MAX_NODES
            )
        except ValueError:
            client.answer(HTTPStatus.BAD_REQUEST, f"name at most {MAX_NODES} nodes\n")
            return
        if not self._free.acquire(blocking=False):
            why = f"{MAX_PAGES} requests for /metrics are being answered\n"
            client.answer(HTTPStatus.SERVICE_UNAVAILABLE, why)
            return
        try:
            self._send_page(client, query.get("node"))
        finally:
            self._free.release()

    def _send_page(self, client: PageHandler, nodes: Collection[str] | None) -> None:
        try:
            encode, content_type = choose_encoder(client.headers.get("Accept", ""))
        except (TypeError, ValueError):  # a version that is no number
            encode, content_type = choose_encoder("")
        with self._making:  # the whole page before the status, so that a failure is no half page
            own = self._own(encode, content_type) if nodes is None else encode(CollectorRegistry())
            packed = self._packed(nodes)
        deadline_s = time.monotonic() + PAGE_TIMEOUT_S
        end = END if own.endswith(END) else b""
        is_chunked = client.request_version == "HTTP/1.1"
        if is_chunked:  # so that a client notices a page that was cut off
            client.protocol_version = client.request_version
        client.send_response(HTTPStatus.OK)
        client.send_header("Content-Type", content_type)
        client.send_header("Connection", "close")
        if is_chunked:
            client.send_header("Transfer-Encoding", "chunked")
        client.end_headers()
        _send(client, own.removesuffix(end), is_chunked)
        for part in packed:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the page was not read within {PAGE_TIMEOUT_S:.0f} s")
            client.connection.settimeout(min(CLIENT_TIMEOUT_S, left_s))
            _send(client, zlib.decompress(part), is_chunked)
        _send(client, end, is_chunked)
        if is_chunked:
            client.wfile.write(b"0\r\n\r\n")

    def _own(self, encode: Callable[[CollectorRegistry], bytes], content_type: str) -> bytes:
        """Our own series: read again after a second, however many ask."""
        kept_s = time.monotonic() - PAGE_KEPT_S
        self._read = {kind: page for kind, page in self._read.items() if page[0] > kept_s}
        if content_type not in self._read:
            self._read[content_type] = time.monotonic(), encode(self._registry)
        return self._read[content_type][1]

    def _packed(self, nodes: Collection[str] | None) -> list[bytes]:
        """The cards, compressed: slow readers would hold a page of many MiB each."""
        if nodes is not None:
            return _pack(self._cards(nodes))
        if time.monotonic() >= self._made_s + PAGE_KEPT_S:
            self._kept = _pack(self._cards(None))
            self._made_s = time.monotonic()
        return self._kept


def _pack(texts: Iterator[str]) -> list[bytes]:
    return [zlib.compress(text.encode(errors="replace"), 1) for text in texts]


def _send(client: PageHandler, part: bytes, is_chunked: bool) -> None:
    if part:
        client.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
