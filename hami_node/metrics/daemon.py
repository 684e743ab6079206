"""The daemon's own metrics, as Prometheus series.

Loaded after the registration with kubelet, because prometheus-client is slow to import;
`DeferredMetrics` keeps what is counted before. Units are base units: seconds, bytes, ratios.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hami_node import __version__
from hami_node.metrics.cards import (
    MAX_LABEL_CHARS,
    AllocationReading,
    CardCollector,
    CardReading,
    LimiterReading,
)
from hami_node.metrics.labels import LabelSets
from hami_node.metrics.parts import PartCollector, PartsReadings
from hami_node.metrics.usage import UsageCollector, UsageReadings
from hami_node.ports import Clock, CounterSpec

PREFIX: Final = "hami_node_"
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the Allocate histogram, seconds. Budget without API time: p99 under 0.005."""


class DaemonMetrics:
    """All series of a process. Every method may be called from any thread."""

    def __init__(
        self,
        registry: CollectorRegistry,
        node: str,
        clock: Clock,
        counters: Iterable[CounterSpec] = (),
    ) -> None:
        """Register the series. The first label of each is `node`.

        `counters` are added by the vendors.
        """
        self.registry = registry
        self.families = CollectorRegistry()  # all; `registry` shows those that have series
        registry.register(_WithSeries(self.families))
        self._node, self.clock = node, clock
        self._sets: defaultdict[Counter, LabelSets] = defaultdict(LabelSets)
        build = self._gauge("build_info", "1, with the version of this daemon.", "version")
        build.labels(node, __version__).set(1)
        self._declare_cards()
        self._declare_kubelet()
        self._declare_files()
        self._declare_reports()
        self._declare_upkeep()
        self._declare_record()
        self._of_vendors = {
            spec.name: self._counter(spec.name, spec.doc, spec.label) for spec in counters
        }

    # A family without labels of its own gets its series at once: it is zero from the start, so that
    # an alert on its increase works.
    def _declare_cards(self) -> None:
        self._simulated = self._gauge(
            "simulated", "1 when the cards are simulated, not real."
        ).labels(self._node)
        self._cards = CardCollector(self._node)
        self.families.register(self._cards)
        self._usage = UsageCollector(self._node, self.clock, lambda: self._cards.cards)
        self.families.register(self._usage)
        self._parts = PartCollector(self._node)
        self.families.register(self._parts)
        self._pass_age = self._gauge(
            "backend_pass_age_seconds", "Time since the last finished scan of the cards.", "backend"
        )
        doc = "XID errors that the driver reported; ignored errors are harmless."
        self._xids = self._counter("xid_events", doc, "uuid", "xid", "ignored")

    def _declare_kubelet(self) -> None:
        self._registered = self._gauge(
            "registered", "1 while kubelet has accepted our registration.", "resource"
        )
        self._taken = self._gauge(
            "resource_taken", "1 while another device plugin serves our resource.", "resource"
        )
        self._foreign_pods = self._gauge(
            "foreign_pods", "Pods that hold cards of this node from another device plugin."
        ).labels(self._node)
        self._init_reruns = self._gauge(
            "init_reruns",
            "Pods whose init containers run again on cards of which others got their share since.",
        ).labels(self._node)
        self._registrations = self._counter(
            "registrations", "Registrations with kubelet.", "resource"
        )
        self._allocate = self._counter("allocate", "Allocate calls by result.", "result")
        self._allocate_seconds = Histogram(
            PREFIX + "allocate_seconds",
            "Time of an Allocate call, API requests included.",
            ("node",),
            buckets=BUCKETS_S,
            registry=self.families,
        ).labels(self._node)
        self._limiters = self._gauge(
            "limiter_info", "1, with what new containers are limited by.", "version", "sha256"
        )
        self._served: set[tuple[str, str]] = set()
        self._limiter_missing = self._gauge(
            "limiter_missing", "1 while the limiter's files are missing or unusable on this node."
        ).labels(self._node)
        self._limiter_defective = self._gauge(
            "limiter_defective",
            "1 while the limiter's version is known not to limit every program of a container.",
        ).labels(self._node)

    def _declare_files(self) -> None:
        self._files = self._gauge(
            "container_files_folders", "Containers that have files of ours, ended ones included."
        )
        self._file_bytes = self._gauge(
            "container_files_bytes", "What the files of containers take on the disk."
        )
        self._files_stuck = self._gauge(
            "container_files_stuck", "Files of ended containers that can't be removed."
        )

    def _declare_reports(self) -> None:
        doc = "Requests to the API server; code 0 means no response."
        self._api = self._counter("api_requests", doc, "verb", "resource", "code")
        self._report_age = self._gauge(
            "report_age_seconds", "Time since the node's annotations were last correct."
        )
        self._reported_at_s = 0.0
        self._unanswered = self._gauge(
            "handshake_unanswered",
            "1 while no scheduler answers our handshake: it may need the --register-format in the "
            "label, which auto tries now and then.",
            "try_format",
        )
        self._events_dropped = self._counter(
            "events_dropped", "Events that could not be written."
        ).labels(self._node)

    def _declare_upkeep(self) -> None:
        self._config_generation = self._gauge(
            "config_generation", "Times that settings were applied since the start; 1 at the start."
        ).labels(self._node)
        self._config_failures = self._counter(
            "config_reload_failures", "Changed files that were rejected; the old settings stayed."
        ).labels(self._node)
        self._resizes = self._counter(
            "resizes",
            "Running pods that were resized or refused that, and limits that were written again "
            "(kept).",
            "result",
        )
        self._locks_removed = self._counter(
            "locks_removed", "Node locks that we removed.", "reason"
        )

    def _declare_record(self) -> None:
        self._record_entries = self._gauge(
            "record_entries", "Containers on record as holders of cards.", "source"
        )
        self._record_rebuilt = self._counter(
            "record_rebuilt",
            "Times that the record of grants was rebuilt from pods and kubelet's list.",
            "reason",
        )
        self._record_failures = self._counter(
            "record_write_failures", "Changes of the record of grants that could not be written."
        ).labels(self._node)
        self._record_drift = self._gauge(
            "record_drift_pods",
            "Pods whose annotations say otherwise than the record or kubelet, which count.",
        ).labels(self._node)

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, doc, ("node", *labels), registry=self.families)

    def _gauge(self, name: str, doc: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, doc, ("node", *labels), registry=self.families)

    def _count(self, counter: Counter, *labels: str) -> None:
        counter.labels(self._node, *self._sets[counter].bounded(labels)).inc()

    # -- what is counted ---------------------------------------------------------------------------
    def set_cards(self, readings: tuple[CardReading, ...]) -> None:
        """Replace the readings of the cards of all resources; series of removed cards disappear."""
        self._cards.cards = readings

    def set_allocations(self, readings: tuple[AllocationReading, ...]) -> None:
        """Replace what containers hold; series of ended containers disappear."""
        self._cards.held = readings

    def set_container_files(self, folders: int, used_bytes: int, stuck: int) -> None:
        """Set what containers have on the disk, and how much of it can't be removed."""
        self._files.labels(self._node).set(folders)
        self._file_bytes.labels(self._node).set(used_bytes)
        self._files_stuck.labels(self._node).set(stuck)

    def set_container_limiters(self, rows: Collection[LimiterReading]) -> None:
        """Replace what limits each container; series of ended containers disappear."""
        self._cards.limited = tuple(rows)

    def set_usage(self, readings: UsageReadings) -> None:
        """Replace what containers and everybody use of cards."""
        self._usage.readings = readings

    def watch_parts(self, read: Callable[[], PartsReadings]) -> None:
        """Read what is shown of divided cards from `read` at each scrape."""
        self._parts.read = read

    def set_simulated(self, is_simulated: bool) -> None:
        """Set whether the cards are simulated."""
        self._simulated.set(is_simulated)

    def count_registration(self, resource: str) -> None:
        """Count a registration that kubelet accepted."""
        self._count(self._registrations, resource)
        self.set_registered(resource, True)

    def set_registered(self, resource: str, is_registered: bool) -> None:
        """Set whether kubelet has our registration."""
        self._registered.labels(self._node, resource).set(is_registered)

    def set_resource_taken(self, resource: str, *, is_taken: bool) -> None:
        """Set whether kubelet calls another plugin for the resource."""
        self._taken.labels(self._node, resource).set(is_taken)

    def set_foreign_pods(self, count: int) -> None:
        """Set how many pods hold cards from another device plugin."""
        self._foreign_pods.set(count)

    def set_init_reruns(self, count: int) -> None:
        """Set how many pods run init containers again whose share others have got since."""
        self._init_reruns.set(count)

    def count_allocate(self, result: str, seconds: float) -> None:
        """Count an Allocate call; `result` is `ok`, `repeated`, or the kind of refusal."""
        self._count(self._allocate, result)
        self._allocate_seconds.observe(seconds)

    def count_resize(self, result: str) -> None:
        """Count a resize that is over: `resized` or `refused`; `kept`: limits written again."""
        self._count(self._resizes, result)

    def count_api_request(self, verb: str, resource: str, status: int) -> None:
        """Count a request to the API server; status 0 when there was no response."""
        self._count(self._api, verb, resource, str(status))

    def mark_reported(self) -> None:
        """Note that the node's annotations are correct now."""
        self._reported_at_s = self.clock.monotonic()
        self._report_age.labels(self._node).set_function(
            lambda: self.clock.monotonic() - self._reported_at_s
        )

    def set_handshake_unanswered(self, is_unanswered: bool) -> None:
        """Set whether no scheduler answers, which may need the register format csv9."""
        self._unanswered.labels(self._node, "csv9").set(is_unanswered)

    def watch_pass_age(self, backend: str, age_s: Callable[[], float]) -> None:
        """Read the age of the last finished scan of the cards from `age_s` at each scrape."""
        self._pass_age.labels(self._node, backend).set_function(age_s)

    def count_xid(self, uuid: str, xid: int, *, is_ignored: bool) -> None:
        """Count an XID error of a card."""
        self._count(self._xids, uuid, str(xid), "true" if is_ignored else "false")

    def count_config_loaded(self) -> None:
        """Count settings that were applied."""
        self._config_generation.inc()

    def count_config_failure(self) -> None:
        """Count a changed file that was rejected."""
        self._config_failures.inc()

    def set_limiters(
        self, served: Iterable[tuple[str, str]], *, is_missing: bool, is_defective: bool
    ) -> None:
        """Set version and sha256 of what limits new containers, and what is wrong with it.

        `is_missing`: files are missing or unusable; `is_defective`: it leaves some programs
        unlimited.
        """
        shown = {(version[:MAX_LABEL_CHARS], sha256) for version, sha256 in served}
        for labels in shown:
            self._limiters.labels(self._node, *labels).set(1)
        for labels in self._served - shown:
            self._limiters.remove(self._node, *labels)
        self._served = shown
        self._limiter_missing.set(is_missing)
        self._limiter_defective.set(is_defective)

    def set_record(self, entries: Mapping[str, int], drifted_pods: int) -> None:
        """Set the number of entries on record by source, and of pods that differ from it."""
        for source, count in entries.items():
            self._record_entries.labels(self._node, source).set(count)
        self._record_drift.set(drifted_pods)

    def count_record_rebuilt(self, reason: str) -> None:
        """Count a rebuilt record: it was `missing`, `damaged` or `newer`."""
        self._count(self._record_rebuilt, reason)

    def count_record_failure(self) -> None:
        """Count a change of the record that could not be written."""
        self._record_failures.inc()

    def count_lock_removed(self, reason: str) -> None:
        """Count a node lock that we removed: `served`, `refused`, `stale`."""
        self._count(self._locks_removed, reason)

    def count_event_dropped(self) -> None:
        """Count an Event that could not be written."""
        self._events_dropped.inc()

    def count_for_vendor(self, name: str, label: str) -> None:
        """Count in a vendor's own counter."""
        self._count(self._of_vendors[name], label)


class _WithSeries(Collector):
    """The families that have series, without their `_created` samples."""

    def __init__(self, families: CollectorRegistry) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families.collect():
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            if family.samples:
                yield family
