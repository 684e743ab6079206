from __future__ import annotations

import fcntl
import io
import json
import logging
import os
from collections.abc import Iterator

import pytest

from hami_node.logs import (
    MAX_LINES,
    EventFormatter,
    LineQueue,
    LogFormat,
    LogLevel,
    configure,
    dropped_lines,
    kv,
)
from tests.fakes.waiting import eventually

log = logging.getLogger("hami_node.x")


def record(
    message: str, name: str = "hami_node.node.report.reporter", **fields: object
) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.INFO, "x.py", 1, message, None, None)
    made.created = 1_700_000_000.123
    made.__dict__.update(kv(**fields))
    return made


def test_kv_line_has_time_level_event_fields_and_logger() -> None:
    line = EventFormatter(LogFormat.KV).format(record("node_registered", node="n1", devices=8))
    assert line == (
        "time=2023-11-14T22:13:20.123Z level=info event=node_registered node=n1 devices=8 "
        "logger=hami_node.node.report.reporter"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("two words", '"two words"', id="space"),
        pytest.param("a\nlevel=error", r'"a\nlevel=error"', id="newline_cannot_forge_a_line"),
        pytest.param('say "x"', r'"say \"x\""', id="quote"),
        pytest.param("", '""', id="empty"),
        pytest.param(None, "-", id="absent"),
        pytest.param(True, "true", id="true"),
        pytest.param(0.12345678, "0.123457", id="float"),
        pytest.param(("a", "b"), "a,b", id="tuple"),
        pytest.param(frozenset({"b", "a"}), "a,b", id="set_is_sorted"),
        pytest.param("x=1", '"x=1"', id="equals"),
    ],
)
def test_kv_value_is_quoted_only_when_needed(value: object, text: str) -> None:
    line = EventFormatter(LogFormat.KV).format(record("e", field=value))
    assert f"event=e field={text} logger=" in line


def test_json_line_parses_back() -> None:
    line = EventFormatter(LogFormat.JSON).format(record("card_lost", uuid="GPU-1", ok=False, n=3))
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "info",
        "event": "card_lost",
        "uuid": "GPU-1",
        "ok": False,
        "n": 3,
        "logger": "hami_node.node.report.reporter",
    }


def test_long_value_is_cut() -> None:
    line = EventFormatter(LogFormat.JSON).format(record("e", blob="x" * 5000))
    assert len(json.loads(line)["blob"]) == 1000


def test_library_text_becomes_a_message_field() -> None:
    line = EventFormatter(LogFormat.KV).format(record("Retrying (a=b)", name="urllib3.pool"))
    assert 'event=library message="Retrying (a=b)" logger=urllib3.pool' in line


@pytest.mark.parametrize("style", list(LogFormat))
def test_exception_stays_on_one_line(style: LogFormat) -> None:
    stream = io.StringIO()
    configure(style, LogLevel.INFO, logging.StreamHandler(stream))
    try:
        int("first\nsecond")
    except ValueError:
        logging.getLogger("hami_node.x").exception("tick_failed", extra=kv(node="n"))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert "tick_failed" in lines[0]
    assert "ValueError" in lines[0]


@pytest.mark.parametrize(
    ("level", "events"),
    [
        pytest.param(LogLevel.DEBUG, ["d", "i", "w", "library", "library"], id="debug"),
        pytest.param(LogLevel.INFO, ["i", "w", "library"], id="info"),
        pytest.param(LogLevel.WARNING, ["w", "library"], id="warning"),
        pytest.param(LogLevel.ERROR, [], id="error"),
    ],
)
def test_level_selects_our_events_and_libraries_speak_from_warning(
    level: LogLevel, events: list[str]
) -> None:
    stream = io.StringIO()
    configure(LogFormat.JSON, level, logging.StreamHandler(stream))
    ours, library = logging.getLogger("hami_node.a"), logging.getLogger("urllib3")
    ours.debug("d")
    ours.info("i")
    ours.warning("w")
    library.info("quiet")
    library.warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == events


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes 4096 bytes."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    os.close(reader)  # ends a write that waits
    logging.getLogger().handlers[0].flush()
    configure(LogFormat.KV, LogLevel.INFO)
    os.close(writer)


def test_lines_are_written_in_order_before_the_end(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    configure(LogFormat.KV, LogLevel.INFO, LineQueue(writer))
    for number in range(20):
        log.info("event", extra=kv(number=number))
    logging.getLogger().handlers[0].flush()
    lines = os.read(reader, 4096).decode().splitlines()
    assert [line.partition("number=")[2][:2].strip() for line in lines] == [*map(str, range(20))]


def test_lines_that_nobody_reads_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, bytes(4096))
    lines = LineQueue(writer)
    configure(LogFormat.KV, LogLevel.INFO, lines)
    log.info("taken_first")
    eventually(lambda: not lines._lines.qsize())
    for number in range(MAX_LINES + 5):
        log.info("waits", extra=kv(number=number))
    assert dropped_lines() == 5
    lines.flush()  # returns, though nothing is written
    read = b""
    while b"log_lines_dropped" not in read:
        read += os.read(reader, 4096)
    assert b"since_start=5" in read
    assert read.count(b"event=waits") == MAX_LINES


def test_message_that_does_not_fit_its_arguments_is_told(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    configure(LogFormat.KV, LogLevel.INFO, LineQueue(writer))
    logging.getLogger("library").warning("%d devices", "two")
    assert b"TypeError" in os.read(reader, 4096)
