"""Which Event is written next: refusals before chatter, namespaces in turns, a cap a minute.

What has no room or no turn is counted, and each namespace gets one Event that sums it up.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from hami_node.ports import EventNote

SUMMED_UP: Final = "EventsSummedUp"
"""Reason of the Event that says what was left out."""
_MOST_COUNTED: Final = 20_000
"""Pods that are counted at a time; beyond that the sum is too low."""
_ADVICE: Final = "`hami-node inspect` lists every waiting pod with its reason"


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


_Key = tuple[str, str, str, str]


@dataclass(slots=True)
class _Lane:
    """What waits of one namespace. `left_out` is what has no Event, since `since_s`."""

    urgent: OrderedDict[_Key, EventNote] = field(default_factory=OrderedDict)
    routine: OrderedDict[_Key, EventNote] = field(default_factory=OrderedDict)
    left_out: set[tuple[str, str]] = field(default_factory=set)
    last: EventNote | None = None
    since_s: float = 0.0

    def __len__(self) -> int:
        return len(self.urgent) + len(self.routine)

    def of(self, note: EventNote) -> OrderedDict[_Key, EventNote]:
        return self.routine if note.is_routine else self.urgent

    def is_due(self, now_s: float, after_s: float) -> bool:
        return bool(self.left_out) and now_s - self.since_s >= after_s


class EventQueue:
    """Notes that wait, by namespace. Not thread-safe: its owner holds a lock."""

    def __init__(self, size: int, per_minute: tuple[int, int], now_s: float) -> None:
        """Hold at most `size` notes; `per_minute` is for urgent and for routine ones."""
        self._size = size
        urgent, routine = per_minute
        self._urgent, self._routine = Allowance(urgent, now_s), Allowance(routine, now_s)
        self._lanes: OrderedDict[str, _Lane] = OrderedDict()
        self._count = self._counted_out = self._serial = 0
        self._sum_after_s = 60.0

    def put(self, note: EventNote, now_s: float) -> EventNote | None:
        """Take a note; the one that is left out for it, which may be the note itself, or None.

        A newer routine note replaces an older one of the same reason about the same object. Without
        room the namespace with the most notes gives one up.
        """
        lane = self._lane(note.namespace)
        if lane is None:
            return note
        waiting, key, left_out = lane.of(note), self._key(note), None
        if key not in waiting:
            if self._count >= self._size:
                left_out = self._make_room(lane, note, now_s)
            if left_out is note:
                return note
            self._count += 1
        waiting[key] = note
        return left_out

    def take(self, now_s: float) -> EventNote | None:
        """The next note that may be written now: urgent before routine, namespaces in turns."""
        if not self._urgent.wait_s(now_s):
            note = self._next(lambda lane: _pop(lane.urgent))
            if note is not None:
                self._urgent.spend()
                self._count -= 1
                return note
        if not self._routine.wait_s(now_s):
            note = self._next(lambda lane: self._routine_of(lane, now_s))
            if note is not None:
                self._routine.spend()
                return note
        return None

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until `take` may have a note; None while nothing waits."""
        waits = list(self._waits(now_s))
        return min(waits) if waits else None

    def _waits(self, now_s: float) -> Iterator[float]:
        lanes = self._lanes.values()
        if any(lane.urgent for lane in lanes):
            yield self._urgent.wait_s(now_s)
        if any(lane.routine for lane in lanes):
            yield self._routine.wait_s(now_s)
        sums = [lane.since_s + self._sum_after_s - now_s for lane in lanes if lane.left_out]
        if sums:
            yield max(0.0, min(sums), self._routine.wait_s(now_s))

    def _lane(self, namespace: str) -> _Lane | None:
        lane = self._lanes.get(namespace)
        if lane is None and len(self._lanes) < 2 * self._size:
            lane = self._lanes[namespace] = _Lane()
        return lane

    def _key(self, note: EventNote) -> _Key:
        if note.is_routine:
            return note.kind, note.name, note.uid, note.reason
        self._serial += 1
        return note.kind, note.name, note.uid, str(self._serial)

    def _make_room(self, own: _Lane, note: EventNote, now_s: float) -> EventNote:
        """The note to leave out: routine before urgent, then one of the fullest namespace."""
        lanes = self._lanes.values()
        lane = max(lanes, key=lambda lane: len(lane.routine))
        if note.is_routine or not lane.routine:
            lane = max(lanes, key=lambda lane: len(lane.of(note)))
            if len(lane.of(note)) <= len(own.of(note)) + 1:
                self._leave_out(own, note, now_s)
                return note
        notes = lane.routine if lane.routine else lane.urgent
        _, victim = notes.popitem(last=False)
        self._count -= 1
        self._leave_out(lane, victim, now_s)
        return victim

    def _leave_out(self, lane: _Lane, note: EventNote, now_s: float) -> None:
        if not lane.left_out:
            lane.since_s = now_s
        what = (note.reason, note.uid)
        is_countable = not lane.left_out or self._counted_out < _MOST_COUNTED
        if is_countable and what not in lane.left_out:
            lane.left_out.add(what)
            self._counted_out += 1
        lane.last = note

    def _next(self, take: Callable[[_Lane], EventNote | None]) -> EventNote | None:
        for namespace, lane in self._lanes.items():
            note = take(lane)
            if note is not None:
                self._lanes.move_to_end(namespace)
                if not lane and not lane.left_out:
                    del self._lanes[namespace]
                return note
        return None

    def _routine_of(self, lane: _Lane, now_s: float) -> EventNote | None:
        if lane.is_due(now_s, self._sum_after_s):
            return self._sum_up(lane)
        note = _pop(lane.routine)
        if note is not None:
            self._count -= 1
        return note

    def _sum_up(self, lane: _Lane) -> EventNote | None:
        counts = sorted(Counter(reason for reason, _ in lane.left_out).items())
        last = lane.last
        self._counted_out -= len(lane.left_out)
        lane.left_out, lane.last = set(), None
        if last is None:
            return None
        texts = ", ".join(f"{reason} of {number} pods" for reason, number in counts)
        return EventNote(
            kind=last.kind,
            namespace=last.namespace,
            name=last.name,
            uid=last.uid,
            reason=SUMMED_UP,
            message=f"too many for an Event each, in this namespace: {texts}; {_ADVICE}. "
            f"The last of them: {last.message}",
            is_warning=last.is_warning,
            is_routine=True,
        )


def _pop(notes: OrderedDict[_Key, EventNote]) -> EventNote | None:
    return notes.popitem(last=False)[1] if notes else None
