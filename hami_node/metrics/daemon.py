"""The daemon's own metrics, as Prometheus series.

Loaded after the registration with kubelet, because prometheus-client is slow to import: what may
happen before is read from the daemon's state, as everything is that is a state and no event.
Units are base units: seconds, bytes, ratios.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric

from hami_node import __version__
from hami_node.metrics.cards import PREFIX
from hami_node.metrics.families import Counted, Row, counter, gauge, short
from hami_node.ports import CounterSpec

log = logging.getLogger(__name__)

Declared = Mapping[str, tuple[str, tuple[str, ...]]]
"""The meaning of a family and its labels beside `node`, by its name without the prefix."""

GAUGES: Final[Declared] = {
    "build_info": ("1, with the version of this daemon.", ("version",)),
    "simulated": ("1 when the cards are simulated, not real.", ()),
    "card_mode_info": (
        "1 for each card that is divided or about to be, with its mode and the one that it will "
        "have after its next reset, if that is another.",
        ("uuid", "index", "mode", "pending"),
    ),
    "card_parts": ("Parts of a divided card by state.", ("uuid", "index", "state")),
    "part_info": (
        "1 for each part of a divided card, with its state.",
        ("uuid", "part", "kind", "place", "state"),
    ),
    "container_part_info": (
        "1 for each part of a divided card that a container has, or had last.",
        ("namespace", "pod", "container", "uuid", "part"),
    ),
    "backend_pass_age_seconds": ("Time since the last finished scan of the cards.", ("backend",)),
    "registered": ("1 while kubelet has accepted our registration.", ("resource",)),
    "resource_taken": ("1 while another device plugin serves our resource.", ("resource",)),
    "foreign_pods": ("Pods that hold cards of this node from another device plugin.", ()),
    "init_reruns": (
        "Pods whose init containers run again on cards of which others got their share since.",
        (),
    ),
    "container_limiter_info": (
        "1 for each container that is limited, with the version that it was given.",
        ("namespace", "pod", "container", "version"),
    ),
    "limiter_info": ("1, with what new containers are limited by.", ("version", "sha256")),
    "limiter_missing": (
        "1 while the limiter's files are missing or unusable on this node.",
        (),
    ),
    "limiter_defective": (
        "1 while the limiter's version is known not to limit every program of a container.",
        (),
    ),
    "container_files_folders": (
        "Containers that have files of ours, ended ones included.",
        (),
    ),
    "container_files_bytes": ("What the files of containers take on the disk.", ()),
    "container_files_stuck": ("Files of ended containers that can't be removed.", ()),
    "report_age_seconds": ("Time since the node's annotations were last correct.", ()),
    "handshake_unanswered": (
        "1 while no scheduler answers our handshake: it may need the --register-format in the "
        "label, which auto tries now and then.",
        ("try_format",),
    ),
    "config_generation": (
        "Times that settings were applied since the start; 1 at the start.",
        (),
    ),
    "record_entries": ("Containers on record as holders of cards.", ("source",)),
    "record_drift_pods": (
        "Pods whose annotations say otherwise than the record or kubelet, which count.",
        (),
    ),
}
"""States, beside those of cards and of what they are used for."""

KEPT: Final[Declared] = {
    "part_call_failures": (
        "Failed calls into the driver about parts of cards.",
        ("function", "reason"),
    ),
    "container_part_xid_events": (
        "XID errors that the driver blames on a part of a card, and who had it; ignored errors "
        "are harmless. Without a part: nobody known had it.",
        ("namespace", "pod", "container", "uuid", "part", "xid", "ignored"),
    ),
    "xid_events": (
        "XID errors that the driver reported; ignored errors are harmless.",
        ("uuid", "xid", "ignored"),
    ),
    "registrations": ("Registrations with kubelet.", ("resource",)),
    "config_reload_failures": ("Changed files that were rejected; the old settings stayed.", ()),
}
"""What is counted elsewhere."""


class DaemonMetrics(Counted):
    """All series of a process: what is counted here, and what `sources` read at each scrape."""

    def __init__(self, node: str, counters: Iterable[CounterSpec] = ()) -> None:
        """Count nothing yet. `counters` are added by the vendors."""
        super().__init__(PREFIX, node)
        self.sources: list[Callable[[], Iterable[Metric]]] = []
        """Each must read memory alone: a scrape waits for no driver, disk or API server."""
        doc = "Time of an Allocate call, API requests included."
        self._seconds = self.histogram("allocate_seconds", doc, "node").labels(node)
        self.allocate = self.counter("allocate", "Allocate calls by result.", "result")
        doc = "Requests to the API server; code 0 means no response."
        self.api_requests = self.counter("api_requests", doc, "verb", "resource", "code")
        self.events_dropped = self.counter("events_dropped", "Events that could not be written.")
        doc = (
            "Running pods that were resized or refused that, and limits that were written again "
            "(kept)."
        )
        self.resizes = self.counter("resizes", doc, "result")
        self.locks_removed = self.counter("locks_removed", "Node locks that we removed.", "reason")
        doc = "Times that the record of grants was rebuilt from pods and kubelet's list."
        self.record_rebuilt = self.counter("record_rebuilt", doc, "reason")
        doc = "Changes of the record of grants that could not be written."
        self.record_failures = self.counter("record_write_failures", doc)
        self.of_vendors = {
            spec.name: self.counter(spec.name, spec.doc, spec.label) for spec in counters
        }

    def count_allocate(self, result: str, seconds: float) -> None:
        """Count an Allocate call; `result` is `ok`, `repeated`, or the kind of refusal."""
        self.allocate.count(result)
        self._seconds.observe(seconds)

    # -- what a source makes -----------------------------------------------------------------------
    def gauge(self, name: str, rows: Iterable[Row]) -> Metric:
        """One of `GAUGES`."""
        doc, labels = GAUGES[name]
        named = (((self.node, *values), value) for values, value in rows)
        return gauge(PREFIX + name, doc, ("node", *labels), named)

    def value(self, name: str, value: float | None) -> Metric:
        """One of `GAUGES` without other labels; None is no series."""
        return self.gauge(name, [((), value)])

    def kept(self, name: str, counts: Iterable[tuple[tuple[str, ...], int]]) -> Metric:
        """One of `KEPT`."""
        doc, labels = KEPT[name]
        named = (((self.node, *short(values)), count) for values, count in counts)
        return counter(PREFIX + name, doc, ("node", *labels), named)

    # -- the scrape --------------------------------------------------------------------------------
    def families(self) -> Iterator[Metric]:
        """All, also those without series."""
        yield self.gauge("build_info", [((__version__,), 1)])
        for source in self.sources:
            try:
                yield from list(source())
            except Exception:  # any bug: rather some series missing than the page
                log.exception("series_not_read")
        for each in self.counted:
            yield from each.collect()

    def collect(self) -> Iterator[Metric]:
        """The families that have series, without their `_created` samples."""
        for family in self.families():
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            if family.samples:
                yield family
