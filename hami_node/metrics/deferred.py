"""Counts of the daemon from before its metrics are loaded, which is after its registration."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # prometheus-client is slow to import, and kubelet must not wait for it
    from hami_node.metrics.daemon import DaemonMetrics


class DeferredMetrics:
    """Passes events on to the metrics; events from before the metrics exist are kept until then."""

    def __init__(self) -> None:
        """Start without metrics."""
        self._lock = threading.Lock()
        self._metrics: DaemonMetrics | None = None
        self._early: list[Callable[[DaemonMetrics], None]] = []

    def put(self, metrics: DaemonMetrics) -> None:
        """Set the metrics: the events that were kept are counted now."""
        with self._lock:
            for event in self._early:
                event(metrics)
            self._early.clear()
            self._metrics = metrics

    def note(self, event: Callable[[DaemonMetrics], None]) -> None:
        """Count an event, now or as soon as there are metrics."""
        with self._lock:
            if self._metrics is None:
                self._early.append(event)
            else:
                event(self._metrics)
