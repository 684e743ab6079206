"""What the daemon counts about itself, as plain values; `metrics_server` exposes them.

Nothing of prometheus-client is imported here: the daemon counts from its first moment and loads the
exposition after it has registered with kubelet. Units are base units: seconds, bytes, ratios.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from hami_node import __version__
from hami_node import metric_families as of
from hami_node.model import Device
from hami_node.ports import Clock

MIB: Final = 1024 * 1024
MAX_LABEL_CHARS: Final = 120
_ZERO_AT_START: Final = (
    of.CONFIG_FAILURES,
    of.EVENTS_DROPPED,
    of.SIMULATED,
    of.LIMITER_MISSING,
    of.CONFIG_GENERATION,
)
"""Series that stand from the start, so that an alert on their growth works."""
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the Allocate histogram, seconds. Budget without API time: p99 under 0.005."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series; a histogram has `buckets` (bound, cumulative count) and its sum as `value`."""

    labels: tuple[str, ...]
    value: float
    buckets: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """A card as offered, and what is granted on it. `physical_memory_mib` is None when unknown."""

    card: Device
    physical_memory_mib: int | None = None
    slots_used: int = 0
    memory_granted_mib: int = 0
    cores_granted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationReading:
    """A slice that a container holds on one card."""

    namespace: str
    pod: str
    container: str
    uuid: str
    memory_mib: int
    cores: int


@dataclass(slots=True)
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0


class Metrics:
    """All numbers of one process, under one lock. Every method may be called from any thread."""

    def __init__(self, node: str, clock: Clock) -> None:
        """Start with everything at zero."""
        self._node, self._clock = node, clock
        self._lock = threading.Lock()
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self._moments: dict[str, dict[tuple[str, ...], float]] = {}
        self._allocate = _Histogram()
        self._pass_ages: dict[str, Callable[[], float]] = {}
        self._cards: tuple[CardReading, ...] = ()
        self._held: tuple[AllocationReading, ...] = ()
        self._set(of.BUILD_INFO, 1, __version__)
        for zero in _ZERO_AT_START:
            self._set(zero, 0)

    def set_cards(self, readings: tuple[CardReading, ...]) -> None:
        """Replace what is known about the cards; series of cards that are gone vanish."""
        with self._lock:
            self._cards = readings

    def set_allocations(self, readings: tuple[AllocationReading, ...]) -> None:
        """Replace what containers hold; series of ended containers vanish."""
        with self._lock:
            self._held = readings

    def set_simulated(self, is_simulated: bool) -> None:
        """Say whether the cards are real."""
        self._set(of.SIMULATED, is_simulated)

    def count_registration(self, resource: str) -> None:
        """Count a registration that kubelet accepted."""
        self._add(of.REGISTRATIONS, resource)
        self._set(of.REGISTERED, 1, resource)

    def set_registered(self, resource: str, is_registered: bool) -> None:
        """Say whether kubelet holds our registration."""
        self._set(of.REGISTERED, is_registered, resource)

    def count_allocate(self, result: str, seconds: float) -> None:
        """Count one Allocate call; `result` is `ok`, `repeated`, or the kind of refusal."""
        self._add(of.ALLOCATE, result)
        with self._lock:
            self._allocate.counts[bisect_left(BUCKETS_S, seconds)] += 1
            self._allocate.total_s += seconds

    def count_api_request(self, verb: str, resource: str, status: int) -> None:
        """Count one request to the API server; status 0 when no answer came."""
        self._add(of.API_REQUESTS, verb, resource, str(status))

    def mark_reported(self) -> None:
        """Note that the node object holds what it should hold."""
        self._mark(of.REPORT_AGE)

    def set_handshake_unanswered(self, is_unanswered: bool) -> None:
        """Note a scheduler that may speak the generation csv9."""
        self._set(of.HANDSHAKE_UNANSWERED, is_unanswered, "csv9")

    def watch_pass_age(self, backend: str, age_s: Callable[[], float]) -> None:
        """Take the age of the last finished look at the cards from `age_s` at each scrape."""
        with self._lock:
            self._pass_ages[backend] = age_s

    def count_xid(self, uuid: str, xid: int, *, is_ignored: bool) -> None:
        """Count an XID error of a card."""
        self._add(of.XIDS, uuid, str(xid), "true" if is_ignored else "false")

    def count_config_loaded(self) -> None:
        """Count settings taken over."""
        self._add(of.CONFIG_GENERATION)

    def count_config_failure(self) -> None:
        """Count a changed file that was refused."""
        self._add(of.CONFIG_FAILURES)

    def set_limiter_missing(self, is_missing: bool) -> None:
        """Say whether limited containers can be served."""
        self._set(of.LIMITER_MISSING, is_missing)

    def count_lock_removed(self, reason: str) -> None:
        """Count a node lock that we removed: `served`, `refused`, `stale`."""
        self._add(of.LOCKS_REMOVED, reason)

    def count_event_dropped(self) -> None:
        """Count an Event that could not be written."""
        self._add(of.EVENTS_DROPPED)

    def count_neuron_violation(self, rule: str) -> None:
        """Count a Neuron grant that contradicts a rule."""
        self._add(of.NEURON_VIOLATIONS, rule)

    def families(self) -> tuple[tuple[of.Family, tuple[Sample, ...]], ...]:
        """Every family with its series now, sorted; families without series are left out."""
        with self._lock:
            pass_ages = dict(self._pass_ages)
        ages: dict[tuple[str, ...], float] = {}
        for backend, age_s in pass_ages.items():
            ages[(backend,)] = age_s()  # a stranger's call: not under our lock
        now = self._clock.monotonic()
        with self._lock:
            rows = {name: dict(series) for name, series in self._values.items()}
            for name, series in self._moments.items():
                rows[name] = {labels: now - moment for labels, moment in series.items()}
            rows |= _card_rows(self._cards)
            rows |= _held_rows(self._held)
            rows[of.PASS_AGE.name] = ages
            counts, total_s = tuple(self._allocate.counts), self._allocate.total_s
        found = []
        for family in of.FAMILIES:
            samples = [
                Sample(labels=(self._node, *labels), value=value)
                for labels, value in sorted(rows.get(family.name, {}).items())
            ]
            if family is of.ALLOCATE_SECONDS:
                samples = [_histogram(self._node, counts, total_s)]
            if samples:
                found.append((family, tuple(samples)))
        return tuple(found)

    def _add(self, family: of.Family, *labels: str) -> None:
        key = tuple(label[:MAX_LABEL_CHARS] for label in labels)
        with self._lock:
            series = self._values.setdefault(family.name, {})
            series[key] = series.get(key, 0) + 1

    def _set(self, family: of.Family, value: float, *labels: str) -> None:
        with self._lock:
            self._values.setdefault(family.name, {})[labels] = float(value)

    def _mark(self, family: of.Family, *labels: str) -> None:
        with self._lock:
            self._moments.setdefault(family.name, {})[labels] = self._clock.monotonic()


def _card_rows(readings: tuple[CardReading, ...]) -> dict[str, dict[tuple[str, ...], float]]:
    rows: dict[str, dict[tuple[str, ...], float]] = {}
    for reading in readings:
        card = reading.card
        key = (str(card.uuid), str(card.index), card.model)
        values: dict[str, float] = {
            of.CARD_HEALTHY.name: card.healthy,
            of.CARD_SLOTS.name: card.slots,
            of.CARD_SLOTS_USED.name: reading.slots_used,
            of.CARD_MEMORY.name: card.memory_mib * MIB,
            of.CARD_MEMORY_GRANTED.name: reading.memory_granted_mib * MIB,
            of.CARD_CORES.name: card.cores / 100,
            of.CARD_CORES_GRANTED.name: reading.cores_granted / 100,
        }
        if reading.physical_memory_mib is not None:
            values[of.CARD_PHYSICAL.name] = reading.physical_memory_mib * MIB
        for name, value in values.items():
            rows.setdefault(name, {})[key] = float(value)
        numa = "" if card.numa is None else str(card.numa)
        facts = (*key, str(card.vendor), card.mode, numa, card.pci_bus)
        rows.setdefault(of.CARD_INFO.name, {})[facts] = 1.0
        if not card.healthy:
            reason = (card.unhealthy_reason or "unknown")[:MAX_LABEL_CHARS]
            rows.setdefault(of.CARD_UNHEALTHY.name, {})[(*key, reason)] = 1.0
    return rows


def _held_rows(readings: tuple[AllocationReading, ...]) -> dict[str, dict[tuple[str, ...], float]]:
    memory: dict[tuple[str, ...], float] = {}
    cores: dict[tuple[str, ...], float] = {}
    for held in readings:
        key = (held.namespace, held.pod, held.container, held.uuid)
        memory[key] = memory.get(key, 0.0) + held.memory_mib * MIB
        cores[key] = cores.get(key, 0.0) + held.cores / 100
    return {of.HELD_MEMORY.name: memory, of.HELD_CORES.name: cores}


def _histogram(node: str, counts: tuple[int, ...], total_s: float) -> Sample:
    bounds = [*(str(bound) for bound in BUCKETS_S), "+Inf"]
    buckets = tuple(zip(bounds, (float(n) for n in accumulate(counts)), strict=True))
    return Sample(labels=(node,), value=total_s, buckets=buckets)
