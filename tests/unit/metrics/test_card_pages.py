"""The page of many nodes' cards: which are shown, and what greedy clients may do."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import Gauge
from prometheus_client.registry import CollectorRegistry

from hami_node.metrics import server as served
from hami_node.metrics.server import MAX_NODES, MAX_PAGES, MetricsServer, Probes
from tests.fakes.waiting import eventually
from tests.reliability import shows


class CardServer:
    """A page with one series for each node, of two that there are."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        Gauge("own", "Ours.", registry=registry).set(1)
        self.server = MetricsServer("127.0.0.1:0", registry, Probes(), dict, self._cards).start()

    def _cards(self, nodes: Collection[str] | None) -> Iterator[str]:
        yield "# HELP cards Ä.\n# TYPE cards gauge\n"
        for node in ("a", "b"):
            if nodes is None or node in nodes:
                yield f'cards{{node="{node}"}} 1\n'

    def fetch(self, query: str = "", accept: str = "") -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        try:
            connection.request("GET", f"/metrics{query}", headers={"Accept": accept})
            answer = connection.getresponse()
            assert answer.getheader("Transfer-Encoding") == "chunked"
            return answer.read().decode()
        finally:
            connection.close()


@pytest.fixture
def card_server() -> Iterator[CardServer]:
    made = CardServer()
    yield made
    made.server.close()


def test_cards_of_all_nodes_follow_our_own_series(card_server: CardServer) -> None:
    text = card_server.fetch()
    assert "own 1.0" in text
    assert text.endswith('cards{node="a"} 1\ncards{node="b"} 1\n')


@pytest.mark.parametrize(
    ("query", "shown"),
    [("?node=b", ["b"]), ("?node=a&node=b", ["a", "b"]), ("?node=c", []), ("?other=a", ["a", "b"])],
)
def test_cards_of_some_nodes_on_request(
    card_server: CardServer, query: str, shown: list[str]
) -> None:
    text = card_server.fetch(query)
    assert [node for node in ("a", "b") if f'node="{node}"' in text] == shown
    assert ("own" in text) == ("node=" not in query)


def test_openmetrics_ends_once(card_server: CardServer) -> None:
    text = card_server.fetch(accept="application/openmetrics-text; version=1.0.0")
    assert text.count("# EOF\n") == 1
    assert text.endswith('cards{node="b"} 1\n# EOF\n')


def test_old_client_gets_the_page_without_chunks(card_server: CardServer) -> None:
    with socket.create_connection(("127.0.0.1", card_server.server.port), 20) as connection:
        connection.sendall(b"GET /metrics?node=a HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.0 200")
    assert answer.endswith(b'gauge\ncards{node="a"} 1\n')


def test_node_without_a_name_has_no_cards(card_server: CardServer) -> None:
    text = card_server.fetch("?node=")
    assert "own" not in text
    assert "cards{" not in text


def answer_of(server: MetricsServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_too_many_names_of_nodes_are_refused(card_server: CardServer) -> None:
    query = "&".join(["node=a"] * (MAX_NODES + 1))
    status, text = answer_of(card_server.server, f"/metrics?{query}")
    assert (status, text) == (400, f"name at most {MAX_NODES} nodes\n")


class CountedPages:
    """A server whose page takes a while; how many were made, and the most at a time."""

    def __init__(self) -> None:
        self.made = self.most = self._now = 0
        registry = CollectorRegistry()
        self.server = MetricsServer("127.0.0.1:0", registry, Probes(), dict, self._cards).start()

    def _cards(self, nodes: Collection[str] | None) -> Iterator[str]:
        self.made += 1
        self._now += 1
        self.most = max(self.most, self._now)
        time.sleep(0.05)
        yield "all\n" if nodes is None else "some\n"
        self._now -= 1

    def loop(self, path: str, until_s: float) -> None:
        while time.monotonic() < until_s:
            assert answer_of(self.server, path)[0] in {200, 503}


@shows(
    "E4",
    fault="clients that may read metrics fetch the page of all cards, or of some nodes, in loops",
    happens="one page is made at a time, and that of all cards once a second: decisions go on",
)
def test_looping_clients_have_one_page_made_at_a_time() -> None:
    pages = CountedPages()
    until_s = time.monotonic() + 1.5
    with ThreadPoolExecutor(8) as clients:
        for number in range(8):
            path = "/metrics?node=a" if number == 0 else "/metrics"
            clients.submit(pages.loop, path, until_s)
    of_all = [answer_of(pages.server, "/metrics") for _ in range(2)]
    pages.server.close()
    assert pages.most == 1
    assert all(status == 200 and text.endswith("all\n") for status, text in of_all)


def test_page_of_all_cards_is_served_again_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = CountedPages()
    texts = {answer_of(pages.server, "/metrics")[1].partition("all")[1] for _ in range(5)}
    assert (texts, pages.made) == ({"all"}, 1)
    monkeypatch.setattr(served, "PAGE_KEPT_S", 0.0)
    answer_of(pages.server, "/metrics")
    assert pages.made == 2
    pages.server.close()


class GreedyPages:
    """A server whose page of cards is more than sockets hold, or fails."""

    def __init__(self) -> None:
        self.error = ""
        registry = CollectorRegistry()
        self.server = MetricsServer("127.0.0.1:0", registry, Probes(), dict, self._cards).start()

    def _cards(self, nodes: Collection[str] | None) -> Iterator[str]:
        del nodes
        if self.error:
            raise ValueError(self.error)
        for _ in range(1000):
            yield "#" * 100_000 + "\n"

    def open(self) -> int:
        """Threads that serve a client."""
        return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.fixture
def greedy() -> Iterator[GreedyPages]:
    made = GreedyPages()
    yield made
    made.server.close()


def test_page_that_fails_is_no_half_page_and_is_logged(
    greedy: GreedyPages, caplog: pytest.LogCaptureFixture
) -> None:
    greedy.error = "no such card"
    with caplog.at_level(logging.ERROR), pytest.raises(http.client.RemoteDisconnected):
        answer_of(greedy.server, "/metrics")
    eventually(lambda: "metrics_page_failed" in caplog.messages)


def test_slow_readers_of_metrics_do_not_keep_the_probes_out(greedy: GreedyPages) -> None:
    readers = [
        socket.create_connection(("127.0.0.1", greedy.server.port), 20) for _ in range(MAX_PAGES)
    ]
    for reader in readers:
        reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert [reader.recv(1) for reader in readers] == [b"H"] * MAX_PAGES
    assert answer_of(greedy.server, "/metrics")[0] == 503
    assert answer_of(greedy.server, "/healthz") == (200, "ok\n")
    for reader in readers:
        reader.close()
    eventually(lambda: greedy.open() == 0)


def test_page_that_is_read_too_slowly_is_given_up(
    greedy: GreedyPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "PAGE_TIMEOUT_S", 0.5)
    stop = threading.Event()
    with socket.create_connection(("127.0.0.1", greedy.server.port), 20) as reader:
        reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        eventually(lambda: greedy.open() == 1)
        while not stop.wait(0.01) and greedy.open():  # a reader that always takes something
            reader.recv(1000)
    assert greedy.open() == 0
