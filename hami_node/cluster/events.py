"""Events about pods and nodes, written beside the work and never in its way.

Kubernetes keeps Events in etcd, so a plugin that repeats itself costs the cluster: the same words
about the same object are written once in a while only, and each object has a budget.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from hami_node.errors import KubeError
from hami_node.logs import kv
from hami_node.ports import Clock, EventNote, Kube

log = logging.getLogger(__name__)

_RETRY_S: Final = (0.5, 2.0, 5.0)  # waits between the attempts for one Event


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLimits:
    """How much is written.

    Attributes:
        queue_size: Events that wait to be written; more are dropped.
        repeat_after_s: the same Event about the same object is left out for so long.
        burst: Events about one object at once.
        refill_s: an object gets one more Event after this time.
        remembered: Events, and objects, of which that is known; the oldest are forgotten.
    """

    queue_size: int = 64
    repeat_after_s: float = 300.0
    burst: int = 25
    refill_s: float = 60.0
    remembered: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCounts:
    """What became of the Events so far."""

    written: int = 0
    repeated: int = 0
    limited: int = 0
    overflowed: int = 0
    failed: int = 0


class EventWriter:
    """Takes Events from any thread at once and writes them in its own; `run` is that thread."""

    def __init__(self, kube: Kube, clock: Clock, limits: EventLimits | None = None) -> None:
        """Write through `kube`."""
        self._kube, self._clock = kube, clock
        self._limits = limits or EventLimits()
        self._queue: queue.Queue[EventNote | None] = queue.Queue(self._limits.queue_size)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._last_s: OrderedDict[EventNote, float] = OrderedDict()
        self._budgets: OrderedDict[tuple[str, str, str], tuple[float, float]] = OrderedDict()

    def emit(self, note: EventNote) -> bool:
        """Hand over an Event; never waits. False when it is left out or there is no room."""
        with self._lock:
            refused = self._refusal(note)
            if refused is None:
                try:
                    self._queue.put_nowait(note)
                except queue.Full:
                    refused = "overflowed"
            if refused is not None:
                self._counts[refused] = self._counts.get(refused, 0) + 1
                return False
            self._last_s[note] = self._clock.monotonic()
            self._last_s.move_to_end(note)
            while len(self._last_s) > self._limits.remembered:
                self._last_s.popitem(last=False)
        return True

    def counts(self) -> EventCounts:
        """What became of the Events so far."""
        with self._lock:
            return EventCounts(**self._counts)

    def run(self, stop: threading.Event) -> None:
        """Write Events until stopped and woken; what waits then is tried once, up to a failure."""
        while not stop.is_set():
            note = self._queue.get()
            if note is not None:
                self._write(note, stop)
        is_writable = True
        while is_writable and not self._queue.empty():
            note = self._queue.get_nowait()
            is_writable = note is None or self._write(note, stop)

    def wake(self) -> None:
        """Let `run` look at its stop event."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # then it is awake

    def _refusal(self, note: EventNote) -> str | None:
        """Why an Event is not written: repeated or limited; None when it may be."""
        now_s = self._clock.monotonic()
        last_s = self._last_s.get(note)
        if last_s is not None and now_s - last_s < self._limits.repeat_after_s:
            return "repeated"
        about = (note.kind, note.namespace, note.name)
        left, since_s = self._budgets.pop(about, (float(self._limits.burst), now_s))
        left = min(float(self._limits.burst), left + (now_s - since_s) / self._limits.refill_s)
        self._budgets[about] = (left - 1.0 if left >= 1.0 else left, now_s)
        while len(self._budgets) > self._limits.remembered:
            self._budgets.popitem(last=False)
        return None if left >= 1.0 else "limited"

    def _write(self, note: EventNote, stop: threading.Event) -> bool:
        for wait_s in (*_RETRY_S, None):
            try:
                self._kube.create_event(note)
            except KubeError as error:
                if wait_s is None or not error.is_transient or stop.is_set():
                    about = f"{note.kind} {note.namespace}/{note.name}"
                    fields = kv(about=about, reason=note.reason, error=str(error))
                    log.warning("event_not_written", extra=fields)
                    self._count("failed")
                    return False
                stop.wait(wait_s)
            else:
                self._count("written")
                return True
        return False

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1
