"""What is held up in the cluster, read anew at each scrape: its series come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """What waits, and how long, in seconds.

    Attributes:
        pods: pods for which no node was found, by the reason of most nodes.
        longest_wait_s: since the oldest of them was created.
        locked_nodes: nodes whose lock is held.
        oldest_lock_s: since the first of these locks was taken.
        silent_nodes: nodes whose cards are not offered, because their daemon no longer answers.
        backed_off: nodes that get no pods for a while, by fault.
    """

    pods: Mapping[str, int] = field(default_factory=dict)
    longest_wait_s: float = 0.0
    locked_nodes: int = 0
    oldest_lock_s: float = 0.0
    silent_nodes: int = 0
    backed_off: Mapping[str, int] = field(default_factory=dict)


class HeldUpCollector(Collector):
    """The series of what `read` returns."""

    def __init__(self, prefix: str) -> None:
        """Show that nothing is held up before `read` is set."""
        self._prefix = prefix
        self.read: Callable[[], HeldUp] = HeldUp

    def collect(self) -> Iterator[Metric]:
        """All families; a reason for which no pod waits has no series."""
        now = self.read()
        doc = "Pods for which the last call found no node, by the reason of most nodes."
        pods = GaugeMetricFamily(f"{self._prefix}waiting_pods", doc, labels=("reason",))
        for reason, count in now.pods.items():
            pods.add_metric((reason,), count)
        yield pods
        doc = "Nodes that get no pods for a while, because they could not serve those sent there."
        nodes = GaugeMetricFamily(f"{self._prefix}nodes_backed_off", doc, labels=("reason",))
        for reason, count in now.backed_off.items():
            nodes.add_metric((reason,), count)
        yield nodes
        for name, doc, value in (
            ("longest_wait_seconds", "Age of the oldest of these pods.", now.longest_wait_s),
            ("locked_nodes", "Nodes whose lock is held.", now.locked_nodes),
            ("oldest_lock_seconds", "Age of the oldest of these locks.", now.oldest_lock_s),
            (
                "silent_nodes",
                "Nodes whose cards are not offered, because their daemon no longer answers.",
                now.silent_nodes,
            ),
        ):
            yield GaugeMetricFamily(self._prefix + name, doc, value=value)
