"""Events about pods and nodes, written in the background so that they never delay other work.

Kubernetes keeps Events in etcd, so a plugin that repeats itself burdens the cluster: the same text
about the same object is written only once in a while, each object has a budget, and so has the
process.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from hami_node.errors import KubeError
from hami_node.logs import kv
from hami_node.ports import Clock, EventNote, Kube
from hami_node.text import cut_to_bytes

log = logging.getLogger(__name__)


_MESSAGE_BYTES: Final = 1024  # the API server refuses longer messages of Events
_RETRY_S: Final = (0.5, 2.0, 5.0)  # waits between the attempts to write an Event
_LOOK_S: Final = 1.0  # between two looks at the clock while the minute's budget is spent

_Key = tuple[str, str, str, str | int]


class Allowance:
    """A budget of at most `per_minute` in any 60 s: half at once, half as time goes by."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        """Start with all that may be spent at once."""
        self._most = max(1.0, per_minute / 2)
        self._per_s = self._most / 60.0
        self._left, self._since_s = self._most, now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until something may be spent; 0 for at once."""
        left = min(self._most, self._left + max(0.0, now_s - self._since_s) * self._per_s)
        self._left, self._since_s = left, now_s
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_s

    def spend(self) -> None:
        """Take one; only after `wait_s` was 0."""
        self._left -= 1.0


class EventQueue:
    """Notes that wait: failures before chatter, each with a budget. Its owner holds a lock."""

    def __init__(self, size: int, per_minute: tuple[int, int], now_s: float) -> None:
        """Hold at most `size` notes; `per_minute` is for urgent and for routine ones."""
        urgent, routine = per_minute
        self._size, self._serial = size, 0
        self._urgent: dict[_Key, EventNote] = {}
        self._routine: dict[_Key, EventNote] = {}
        self._kinds = (
            (self._urgent, Allowance(urgent, now_s)),
            (self._routine, Allowance(routine, now_s)),
        )
        self._served: dict[str, int] = {}

    def put(self, note: EventNote) -> EventNote | None:
        """Take a note; the one that is left out for it, which may be the note itself, or None.

        A newer routine note replaces an older one of the same reason about the same object. Without
        room the namespace with the most notes gives one up, its oldest; routine before urgent.
        """
        self._serial += 1
        waiting = self._routine if note.is_routine else self._urgent
        key = (note.kind, note.name, note.uid, note.reason if note.is_routine else self._serial)
        left_out = None
        if key not in waiting and len(self._urgent) + len(self._routine) >= self._size:
            crowd = self._routine or self._urgent
            counts = Counter(each.namespace for each in crowd.values())
            most = max(counts, key=counts.__getitem__)
            if crowd is not waiting and note.is_routine:
                return note
            if crowd is self._urgent and counts[note.namespace] + 1 >= counts[most]:
                return note
            left_out = crowd.pop(next(at for at in crowd if crowd[at].namespace == most))
        waiting[key] = note
        return left_out

    def take(self, now_s: float) -> EventNote | None:
        """The next note that may be written now: urgent before routine, namespaces in turns."""
        for waiting, allowance in self._kinds:
            if waiting and not allowance.wait_s(now_s):
                allowance.spend()
                return self._next(waiting)
        return None

    def _next(self, waiting: dict[_Key, EventNote]) -> EventNote:
        """The oldest note of the namespace whose last turn was the longest ago."""
        turns = self._served
        note = waiting.pop(min(waiting, key=lambda at: turns.get(waiting[at].namespace, 0)))
        if len(turns) > self._size:
            turns.clear()
        self._serial += 1
        turns[note.namespace] = self._serial
        return note

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until `take` may have a note; None while nothing waits."""
        waits = [allowance.wait_s(now_s) for waiting, allowance in self._kinds if waiting]
        return min(waits, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLimits:
    """Limits on how many Events are written.

    Attributes:
        queue_size: Events that wait to be written; more are left out, first those of the namespace
            with the most.
        urgent_per_minute: Events of the process in any minute, those that are not routine.
        routine_per_minute: routine Events in any minute.
        repeat_after_s: the same Event about the same object is left out for this long.
        burst: Events about one object at once.
        refill_s: an object may have one more Event after this time.
        remembered: how many Events, and objects, are remembered; the oldest are forgotten.
    """

    queue_size: int = 64
    urgent_per_minute: int = 120
    routine_per_minute: int = 120
    repeat_after_s: float = 300.0
    burst: int = 25
    refill_s: float = 60.0
    remembered: int = 1024


class EventWriter:
    """Accepts Events from any thread and writes them in its own; `run` is that thread."""

    def __init__(self, kube: Kube, clock: Clock, limits: EventLimits | None = None) -> None:
        """Write through `kube`."""
        self._kube, self._clock = kube, clock
        self._limits = limits or EventLimits()
        per_minute = (self._limits.urgent_per_minute, self._limits.routine_per_minute)
        self._waiting = EventQueue(self._limits.queue_size, per_minute, clock.monotonic())
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # put() is safe anywhere
        self._lock = threading.Lock()
        self._looks_soon = False
        # By hash: thousands are remembered, and a text has up to a KiB. Two Events with one hash
        # would cost one of them.
        self._last_s: OrderedDict[int, float] = OrderedDict()
        self._budgets: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def emit(self, note: EventNote) -> bool:
        """Queue an Event; never waits. False when it is left out, or another to make room."""
        with self._lock:
            if not self._is_allowed(note):
                return False
            now_s = self._clock.monotonic()
            left_out = self._waiting.put(note)
            if left_out is not None:
                self._last_s.pop(hash(left_out), None)  # may come again
            if left_out is not note:
                self._remember(note, now_s)
            # a thread that waits for the budget would be woken for nothing, for every pod
            is_awaited = self._looks_soon and note.is_routine
        if not is_awaited and self._bell.empty():
            self._bell.put(None)
        return left_out is None

    def run(self, stop: threading.Event) -> None:
        """Write Events until stopped and woken; then those that may be, until a write fails."""
        while not stop.is_set():
            note, wait_s = self._next()
            if note is None:
                self._rest(wait_s)
            else:
                self._write(note, stop)
        note, _ = self._next()
        while note is not None and self._write(note, stop):
            note, _ = self._next()

    def wake(self) -> None:
        """Make `run` check its stop event."""
        self._bell.put(None)

    def _next(self) -> tuple[EventNote | None, float | None]:
        """The next Event, else how long to wait; None for until another is queued."""
        with self._lock:
            now_s = self._clock.monotonic()
            note = self._waiting.take(now_s)
            wait_s = None if note else self._waiting.wait_s(now_s)
            self._looks_soon = wait_s is not None
            return note, wait_s

    def _rest(self, wait_s: float | None) -> None:
        with suppress(queue.Empty):
            self._bell.get(timeout=None if wait_s is None else min(wait_s, _LOOK_S))

    def _remember(self, note: EventNote, now_s: float) -> None:
        key = hash(note)
        self._last_s[key] = now_s
        self._last_s.move_to_end(key)
        while len(self._last_s) > self._limits.remembered:
            self._last_s.popitem(last=False)

    def _is_allowed(self, note: EventNote) -> bool:
        """False for an Event that repeats another, or whose object has had too many."""
        now_s = self._clock.monotonic()
        last_s = self._last_s.get(hash(note))
        if last_s is not None and now_s - last_s < self._limits.repeat_after_s:
            return False
        about = hash((note.kind, note.namespace, note.name))
        left, since_s = self._budgets.pop(about, (float(self._limits.burst), now_s))
        left = min(float(self._limits.burst), left + (now_s - since_s) / self._limits.refill_s)
        self._budgets[about] = (left - 1.0 if left >= 1.0 else left, now_s)
        while len(self._budgets) > self._limits.remembered:
            self._budgets.popitem(last=False)
        return left >= 1.0

    def _write(self, note: EventNote, stop: threading.Event) -> bool:
        for wait_s in (*_RETRY_S, None):
            try:
                self._kube.create_event(note)
            except KubeError as error:
                if wait_s is None or not error.is_transient or stop.is_set():
                    about = f"{note.kind} {note.namespace}/{note.name}"
                    fields = kv(about=about, reason=note.reason, error=str(error))
                    log.warning("event_not_written", extra=fields)
                    return False
                self._clock.wait(stop, wait_s)
            else:
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOrigin:
    """Who writes an Event: `daemon` or `extender`, and on which node ("" for none)."""

    component: str
    host_name: str = ""


def event_body(
    event: EventNote, namespace: str, origin: EventOrigin, unix_s: float
) -> Mapping[str, object]:
    """The Event as the API server stores it, written at `unix_s`."""
    stamp = datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    source = {"component": "hami-node"}
    if origin.host_name:
        source["host"] = origin.host_name
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": namespace,
            "name": f"{event.name[:200].rstrip('-.')}.{int(unix_s * 1e9):x}",
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": event.kind,
            "namespace": event.namespace,
            "name": event.name,
            "uid": event.uid,
        },
        "reason": event.reason,
        "message": cut_to_bytes(event.message, _MESSAGE_BYTES),
        "type": "Warning" if event.is_warning else "Normal",
        "source": source,
        "reportingComponent": f"hami-node-{origin.component}",
        "reportingInstance": origin.host_name or "hami-node",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
