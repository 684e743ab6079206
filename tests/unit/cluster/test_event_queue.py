"""Which Event comes next: caps, turns, and sums instead of silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hami_node.cluster.event_queue import SUMMED_UP, EventQueue
from hami_node.extender.parts import EVENT_LIMITS
from hami_node.ports import EventNote
from tests.fakes.clock import FakeClock
from tests.reliability import shows

CHATTER = EventNote(
    kind="Pod",
    namespace="a",
    name="p",
    uid="u",
    reason="FilteringFailed",
    message="full",
    is_routine=True,
)
REFUSAL = replace(CHATTER, reason="BindingFailed", message="no", is_routine=False)


def about(number: int, note: EventNote = CHATTER, namespace: str = "a") -> EventNote:
    return replace(note, name=f"p{number}", uid=f"u{namespace}{number}", namespace=namespace)


def drained(queue: EventQueue, now_s: float) -> Iterator[EventNote]:
    while (note := queue.take(now_s)) is not None:
        yield note


@shows(
    "E9",
    fault="9,000 pods that fit nowhere are tried again and again, 30 a second, for an hour",
    happens="the extender writes at most 240 Events about them in a minute, and sums up the rest",
    lost="single Events of waiting pods; the sum says how many, and inspect lists them",
)
def test_thousands_of_waiting_pods_are_summed_up() -> None:
    clock, written, rate = FakeClock(), list[tuple[float, EventNote]](), 30
    queue = EventQueue(EVENT_LIMITS.queue_size, (120, 240), clock.monotonic())
    for number in range(3600 * rate):
        clock.advance(1 / rate)
        note = replace(about(number % 9000), message=f"try {number}")
        queue.put(note, clock.monotonic())
        taken = queue.take(clock.monotonic())
        if taken is not None:
            written.append((clock.monotonic(), taken))
    minutes = Counter(int(at_s // 60) for at_s, _ in written)
    assert max(minutes.values()) <= 240
    sums = [note for _, note in written if note.reason == SUMMED_UP]
    assert 50 <= len(sums) <= 60
    assert "FilteringFailed of 1" in sums[5].message, "between 1,000 and 1,999 in a minute"
    assert all(note.namespace == "a" for note in sums)


def test_refusals_come_before_chatter_and_have_a_budget_of_their_own() -> None:
    queue = EventQueue(8, (20, 4), 0.0)
    for number in range(8):
        queue.put(about(number), 0.0)
    assert queue.put(about(9, REFUSAL), 0.0) == about(0), "it takes the place of the oldest chatter"
    assert list(drained(queue, 0.0)) == [about(9, REFUSAL), about(1), about(2)]
    queue.put(about(10, REFUSAL), 0.0)
    assert queue.take(0.0) == about(10, REFUSAL), (
        "the budget of chatter is spent, not that of these"
    )


@shows(
    "E11",
    fault="one namespace floods the extender with Events while pods of others wait, too",
    happens="namespaces take turns, and the full one gives up its place: others lose nothing",
    lost="Events of the namespace that floods, beyond its share; it gets a sum of them",
)
@pytest.mark.parametrize("kind", [CHATTER, REFUSAL], ids=["chatter", "refusals"])
def test_flood_of_one_namespace_shuts_nobody_out(kind: EventNote) -> None:
    queue = EventQueue(16, (8, 8), 0.0)
    for number in range(5000):
        queue.put(about(number, kind, "loud"), 0.0)
    quiet = [about(number, kind, f"quiet-{number}") for number in range(3)]
    for note in quiet:
        assert queue.put(note, 0.0) not in quiet
    first = list(drained(queue, 0.0))
    assert len(first) == 4
    assert set(quiet) < set(first)
    later = list(drained(queue, 61.0))
    assert [note.reason for note in later].count(SUMMED_UP) == 1
    (total,) = [note for note in later if note.reason == SUMMED_UP]
    assert total.namespace == "loud"
    assert f"{kind.reason} of 4987 pods" in total.message


def test_many_namespaces_cost_bounded_memory() -> None:
    queue = EventQueue(8, (4, 4), 0.0)
    for number in range(10_000):
        queue.put(about(number, namespace=f"n{number}"), 0.0)
    assert len(list(drained(queue, 1e6))) <= 8
