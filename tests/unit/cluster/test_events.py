"""Events: never in the way, not repeated, within a budget, retried while it makes sense."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hami_node.cluster.client import KubeClient
from hami_node.cluster.events import EventLimits, EventWriter
from hami_node.ports import EventNote
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import FakeClock
from tests.fakes.kept import kept_bytes
from tests.fakes.waiting import eventually

NOTE = EventNote(kind="Pod", namespace="ns", name="p1", uid="u1", reason="Refused", message="full")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class RunningWriter:
    """A writer with its thread."""

    def __init__(self, writer: EventWriter) -> None:
        self.writer, self.stop = writer, threading.Event()
        self.thread = threading.Thread(target=writer.run, args=(self.stop,), daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.writer.wake()
        self.thread.join(10.0)
        assert not self.thread.is_alive()


@pytest.fixture
def running(kube: KubeClient, clock: FakeClock) -> Iterator[RunningWriter]:
    running = RunningWriter(EventWriter(kube, clock))
    yield running
    running.end()


def messages(server: FaultyApiServer) -> list[str]:
    return sorted(event["message"] for event in server.list("events"))


def test_emit_writes_the_event(server: FaultyApiServer, running: RunningWriter) -> None:
    assert running.writer.emit(NOTE)
    eventually(lambda: messages(server) == ["full"])


def test_same_event_is_left_out_for_five_minutes(
    server: FaultyApiServer, running: RunningWriter, clock: FakeClock
) -> None:
    assert running.writer.emit(NOTE)
    assert not running.writer.emit(NOTE)
    clock.advance(299.0)
    assert not running.writer.emit(NOTE)
    clock.advance(2.0)
    assert running.writer.emit(NOTE)
    eventually(lambda: messages(server) == ["full", "full"])


def test_memory_of_events_is_as_large_as_told(kube: KubeClient, clock: FakeClock) -> None:
    """Thousands of pods that wait are refused in turns: each costs one Event, not one each time."""
    writer = EventWriter(kube, clock, EventLimits(queue_size=8, remembered=3))
    notes = [replace(NOTE, name=f"p{number}") for number in range(4)]
    assert all(writer.emit(note) for note in notes[:3])
    assert not any(writer.emit(note) for note in notes[:3])
    assert writer.emit(notes[3])
    assert writer.emit(notes[0])


def test_remembered_events_do_not_keep_their_texts(kube: KubeClient, clock: FakeClock) -> None:
    writer = EventWriter(kube, clock, EventLimits(remembered=1000, burst=1000))
    before = kept_bytes(writer)
    for number in range(1000):  # each takes the place of the one before in the queue
        assert writer.emit(replace(NOTE, is_routine=True, message=f"{number} " * 1000))
    assert kept_bytes(writer) - before < 1000 * 300


@pytest.mark.parametrize(
    "other",
    [replace(NOTE, message="other"), replace(NOTE, uid="u2"), replace(NOTE, reason="Other")],
    ids=["message", "pod of the same name", "reason"],
)
def test_another_event_is_no_repetition(
    server: FaultyApiServer, running: RunningWriter, other: EventNote
) -> None:
    assert running.writer.emit(NOTE)
    assert running.writer.emit(other)
    eventually(lambda: len(server.list("events")) == 2)


def test_one_object_has_a_budget_that_refills(kube: KubeClient, clock: FakeClock) -> None:
    writer = EventWriter(kube, clock, EventLimits(burst=3, refill_s=60.0))
    taken = [writer.emit(replace(NOTE, message=str(number))) for number in range(5)]
    assert taken == [True, True, True, False, False]
    assert writer.emit(replace(NOTE, name="p2", message="another pod's"))
    clock.advance(61.0)
    assert writer.emit(replace(NOTE, message="later"))
    assert not writer.emit(replace(NOTE, message="at once after"))


def test_emit_never_waits_and_refuses_what_has_no_room(kube: KubeClient, clock: FakeClock) -> None:
    writer = EventWriter(kube, clock, EventLimits(queue_size=2))
    taken = [writer.emit(replace(NOTE, name=f"p{number}")) for number in range(5)]
    assert taken == [True, True, False, False, False]
    writer.wake()  # harmless when there is no room


@pytest.mark.parametrize("outcome", [429, 500, "reset"])
def test_transient_failure_is_tried_again(
    server: FaultyApiServer, running: RunningWriter, outcome: int | str
) -> None:
    server.fail_next("create", "events", outcome)
    running.writer.emit(NOTE)
    eventually(lambda: messages(server) == ["full"])


@pytest.mark.parametrize("status", [403, 404, 422])
def test_final_failure_is_logged_and_the_next_event_written(
    server: FaultyApiServer, running: RunningWriter, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.fail_next("create", "events", status)
    running.writer.emit(NOTE)
    running.writer.emit(replace(NOTE, message="next"))
    eventually(lambda: messages(server) == ["next"])
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["event_not_written"]


def test_stop_writes_what_waits_and_ends_at_the_first_failure(
    server: FaultyApiServer, kube: KubeClient, clock: FakeClock
) -> None:
    writer = EventWriter(kube, clock)
    for number in range(3):
        writer.emit(replace(NOTE, message=str(number)))
    stop = threading.Event()
    stop.set()
    server.fail_next("create", "events", 500)
    writer.run(stop)
    assert messages(server) == []
    assert len(server.requests(verb="create")) == 1
    writer.run(stop)
    assert messages(server) == ["1", "2"]
