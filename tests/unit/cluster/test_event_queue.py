"""Which Event comes next, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hami_node.cluster.events import EventQueue
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
    happens="the extender writes at most 240 Events about them in a minute",
    lost="Events of waiting pods; a metric counts them, and inspect lists the pods",
)
def test_thousands_of_waiting_pods_have_a_few_events_each_minute() -> None:
    clock, written, rate = FakeClock(), list[tuple[float, EventNote]](), 30
    queue = EventQueue(EVENT_LIMITS.queue_size, (120, 240), clock.monotonic())
    for number in range(3600 * rate):
        clock.advance(1 / rate)
        note = replace(about(number % 9000), message=f"try {number}")
        queue.put(note)
        taken = queue.take(clock.monotonic())
        if taken is not None:
            written.append((clock.monotonic(), taken))
    minutes = Counter(int(at_s // 60) for at_s, _ in written)
    assert max(minutes.values()) <= 240
    assert len(written) > 59 * 100


def test_refusals_come_before_chatter_and_have_a_budget_of_their_own() -> None:
    queue = EventQueue(8, (20, 4), 0.0)
    for number in range(8):
        queue.put(about(number))
    assert queue.put(about(9, REFUSAL)) == about(0), "it takes the place of the oldest chatter"
    assert list(drained(queue, 0.0)) == [about(9, REFUSAL), about(1), about(2)]
    queue.put(about(10, REFUSAL))
    assert queue.take(0.0) == about(10, REFUSAL), (
        "the budget of chatter is spent, not that of these"
    )


@shows(
    "E11",
    fault="one namespace floods the extender with Events while pods of others wait, too",
    happens="namespaces take turns, and the full one gives up its place: others lose nothing",
    lost="Events of the namespace that floods, beyond its share",
)
@pytest.mark.parametrize("kind", [CHATTER, REFUSAL], ids=["chatter", "refusals"])
def test_flood_of_one_namespace_shuts_nobody_out(kind: EventNote) -> None:
    queue = EventQueue(16, (8, 8), 0.0)
    for number in range(5000):
        queue.put(about(number, kind, "loud"))
    quiet = [about(number, kind, f"quiet-{number}") for number in range(3)]
    for note in quiet:
        assert queue.put(note) not in quiet
    first = list(drained(queue, 0.0))
    assert len(first) == 4
    assert set(quiet) < set(first)


def test_many_namespaces_cost_bounded_memory() -> None:
    queue = EventQueue(8, (4, 4), 0.0)
    for number in range(10_000):
        queue.put(about(number, namespace=f"n{number}"))
        queue.take(60.0 * number)
    assert len(list(drained(queue, 1e6))) <= 8


def test_full_queue_keeps_failures_and_the_newest_chatter() -> None:
    queue = EventQueue(3, (8, 8), 0.0)
    queue.put(about(0, REFUSAL))
    left_out = [queue.put(about(number)) for number in range(1, 5)]
    assert left_out == [None, None, about(1), about(2)]
    assert list(drained(queue, 0.0)) == [about(0, REFUSAL), about(3), about(4)]


def test_newer_chatter_about_a_pod_replaces_the_older() -> None:
    queue = EventQueue(3, (8, 8), 0.0)
    for text in ("first", "second"):
        assert queue.put(replace(CHATTER, message=text)) is None
    assert [note.message for note in drained(queue, 0.0)] == ["second"]


def test_queue_tells_when_it_may_have_a_note() -> None:
    queue = EventQueue(8, (2, 2), 0.0)
    assert queue.wait_s(0.0) is None
    for number in range(2):
        queue.put(about(number))
    assert queue.wait_s(0.0) == 0.0
    assert queue.take(0.0) == about(0)
    assert queue.take(0.0) is None
    assert queue.wait_s(0.0) == 60.0
