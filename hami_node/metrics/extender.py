"""The extender's own metrics, as Prometheus series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from hami_node import __version__
from hami_node.metrics.families import Counted, Row, gauge

PREFIX: Final = "hami_node_extender_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderState:
    """What a scrape shows of a replica's state; times in seconds.

    Attributes:
        is_leading: this replica decides; what is held up is known to no other.
        nodes, pods: nodes that offer cards, pods that hold cards or have a reservation.
        waiting: pods for which no node was found, by the reason of most nodes.
        longest_wait_s: since the oldest of them was created.
        locked_nodes: nodes whose lock is held.
        oldest_lock_s: since the first of these locks was taken.
        silent_nodes: nodes whose cards are not offered, because their daemon no longer answers.
        backed_off: nodes that get no pods for a while, by fault.
    """

    is_leading: bool = False
    nodes: int = 0
    pods: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)
    longest_wait_s: float = 0.0
    locked_nodes: int = 0
    oldest_lock_s: float = 0.0
    silent_nodes: int = 0
    backed_off: Mapping[str, int] = field(default_factory=dict)


class ExtenderMetrics(Counted):
    """All series of a process: what is counted here, and what `read` returns at each scrape."""

    def __init__(self) -> None:
        """Count nothing yet."""
        super().__init__(PREFIX)
        self.read: Callable[[], ExtenderState] = ExtenderState
        self.decisions = self.counter("decisions", "Calls by result.", "call", "result")
        doc = "Choices of linked cards after a search that was cut short."
        self.cut_searches = self.counter("link_searches_cut", doc)
        doc = "Requests to resize running pods by result."
        self.resizes = self.counter("resizes", doc, "result")
        doc = "Requests to the API server; code 0 means no response."
        self.api_requests = self.counter("api_requests", doc, "verb", "resource", "code")
        self.events_dropped = self.counter("events_dropped", "Events that could not be written.")
        doc = "Time of an answered request, waiting for the API server and locks included."
        self._requests = self.histogram("request_seconds", doc, "route", "code")
        self._timed: dict[tuple[str, int], Histogram] = {}  # found again without a lock

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        timed = self._timed.get((route, status))
        if timed is None:
            timed = self._timed[route, status] = self._requests.labels(route, str(status))
        timed.observe(seconds)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that the client accepts, and the content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def collect(self) -> Iterator[Metric]:
        """All families; a reason for which no pod waits has no series."""
        yield _gauge("build_info", "1, with the version.", [((__version__,), 1)], "version")
        for counted in self.counted:
            yield from counted.collect()
        now = self.read()
        doc = "Pods for which the last call found no node, by the reason of most nodes."
        yield _gauge("waiting_pods", doc, _by_reason(now.waiting), "reason")
        doc = "Nodes that get no pods for a while, because they could not serve those sent there."
        yield _gauge("nodes_backed_off", doc, _by_reason(now.backed_off), "reason")
        silent = "Nodes whose cards are not offered, because their daemon no longer answers."
        for name, doc, value in (
            ("silent_nodes", silent, now.silent_nodes),
            ("leading", "1 while this replica is the leader.", now.is_leading),
            ("nodes", "Nodes that offer cards.", now.nodes),
            ("pods", "Pods that hold cards or have a reservation.", now.pods),
            ("longest_wait_seconds", "Age of the oldest of these pods.", now.longest_wait_s),
            ("locked_nodes", "Nodes whose lock is held.", now.locked_nodes),
            ("oldest_lock_seconds", "Age of the oldest of these locks.", now.oldest_lock_s),
        ):
            yield _gauge(name, doc, [((), value)])


def _by_reason(counts: Mapping[str, int]) -> Iterable[Row]:
    return (((reason,), count) for reason, count in counts.items())


def _gauge(name: str, doc: str, rows: Iterable[Row], *labels: str) -> Metric:
    return gauge(PREFIX + name, doc, labels, rows)
