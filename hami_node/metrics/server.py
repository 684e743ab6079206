"""What is served over plain HTTP: /metrics and /config, and the probes /healthz and /readyz.

Probes have an address of their own where one is set, so that nobody who may read metrics can keep
kubelet out.
"""

from __future__ import annotations

import json
import math
import socket
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from hami_node.logs import dropped_lines
from hami_node.metrics.pages import CLIENT_TIMEOUT_S, Page, PageHandler, PageServer

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

    def pages(self) -> dict[str, Page]:
        """Both pages."""
        return {"/healthz": _probe(self.live), "/readyz": _probe(self.ready)}


class LogCollector(Collector):
    """What this process's log has lost."""

    def collect(self) -> Iterator[Metric]:
        """One family."""
        doc = "Lines of the log that were dropped because nobody read them in time."
        yield CounterMetricFamily("hami_node_log_lines_dropped", doc, value=dropped_lines())


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
        cards: CardPages = _no_cards,
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
        encode, content_type = choose_encoder(client.headers.get("Accept", ""))
        with self._making:  # the whole page before the status, so that a failure is no half page
            own = encode(self._registry if nodes is None else CollectorRegistry())
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
