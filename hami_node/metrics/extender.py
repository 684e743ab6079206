"""The extender's own metrics, as Prometheus series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from hami_node import __version__
from hami_node.metrics.held_up import HeldUp, HeldUpCollector
from hami_node.metrics.labels import LabelSets

PREFIX: Final = "hami_node_extender_"
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram, seconds. Budget of a filter: p99 under 0.03."""


class ExtenderMetrics:
    """All series of a process. Every method may be called from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series."""
        self.registry = registry
        self._decided, self._requested = LabelSets(), LabelSets()
        self._found: dict[tuple[object, ...], Counter] = {}  # found again without a lock
        self._timed: dict[tuple[str, int], Histogram] = {}

        def counter(name: str, doc: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, doc, labels, registry=registry)

        def gauge(name: str, doc: str, *labels: str) -> Gauge:
            return Gauge(PREFIX + name, doc, labels, registry=registry)

        gauge("build_info", "1, with the version.", "version").labels(__version__).set(1)
        self._decisions = counter("decisions", "Calls by result.", "call", "result")
        self._cut_searches = counter(
            "link_searches_cut", "Choices of linked cards after a search that was cut short."
        )
        self._resizes = counter("resizes", "Requests to resize running pods by result.", "result")
        self._requests = Histogram(
            PREFIX + "request_seconds",
            "Time of an answered request, waiting for the API server and locks included.",
            ("route", "code"),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._api = counter(
            "api_requests",
            "Requests to the API server; code 0 means no response.",
            "verb",
            "resource",
            "code",
        )
        self._leading = gauge("leading", "1 while this replica is the leader.")
        self._nodes = gauge("nodes", "Nodes that offer cards.")
        self._pods = gauge("pods", "Pods that hold cards or have a reservation.")
        self._events = counter("events_dropped", "Events that could not be written.")
        self._held_up = HeldUpCollector(PREFIX)
        registry.register(self._held_up)

    def watch_held_up(self, read: Callable[[], HeldUp]) -> None:
        """Read what is held up from `read` at each scrape."""
        self._held_up.read = read

    def count_decision(self, call: str, result: str) -> None:
        """Count a call of filter, bind or webhook with its result."""
        counter = self._found.get((call, result))
        if counter is None:
            bounded = self._decided.bounded((call, result))
            counter = self._decisions.labels(*bounded)
            if bounded == (call, result):
                self._found[call, result] = counter
        counter.inc()

    def count_cut_search(self) -> None:
        """Count a choice of linked cards that need not be the best."""
        self._cut_searches.inc()

    def count_resize(self, result: str) -> None:
        """Count a request that was approved or refused."""
        self._resizes.labels(result).inc()

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        timed = self._timed.get((route, status))
        if timed is None:
            timed = self._timed[route, status] = self._requests.labels(route, str(status))
        timed.observe(seconds)

    def count_api_request(self, verb: str, resource: str, status: int) -> None:
        """Count a request to the API server."""
        counter = self._found.get((verb, resource, status))
        if counter is None:
            labels = (verb, resource, str(status))
            bounded = self._requested.bounded(labels)
            counter = self._api.labels(*bounded)
            if bounded == labels:
                self._found[verb, resource, status] = counter
        counter.inc()

    def count_event_dropped(self) -> None:
        """Count an Event that was left out or lost."""
        self._events.inc()

    def set_leading(self, is_leading: bool) -> None:
        """Set whether this replica is the leader."""
        self._leading.set(is_leading)

    def set_sizes(self, nodes: int, pods: int) -> None:
        """Set the numbers of nodes and pods with cards."""
        self._nodes.set(nodes)
        self._pods.set(pods)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that the client accepts, and the content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
