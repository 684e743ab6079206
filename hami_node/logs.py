"""Logging: one event, one line, as `key=value` pairs or JSON; fields travel in `extra=kv(...)`.

Our own records have an event name as message (`node_registered`). Records of libraries keep their
text in the field `message` under the event `library`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import threading
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from hami_node.text import cut

PRODUCT: Final = "hami_node"
MAX_VALUE_CHARS: Final = 1000
"""A longer value is cut: whole annotations and pods do not belong in a log."""
MAX_LINES: Final = 1000
"""Lines that may wait until standard error takes them."""
FLUSH_S: Final = 1.0
"""How long the end of the process waits for them."""
_PLAIN: Final = re.compile(r"[^\s\"=\\\x00-\x1f\x7f]+")
_ATTRIBUTE: Final = "kv"


class LogFormat(StrEnum):
    """How a line is written."""

    KV = "kv"
    JSON = "json"


class LogLevel(StrEnum):
    """The least important record that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def kv(**fields: object) -> dict[str, object]:
    """Fields of an event: `log.info("node_registered", extra=kv(node=name, devices=8))`."""
    return {_ATTRIBUTE: fields}


class EventFormatter(logging.Formatter):
    """Writes a record, exception included, as one line."""

    def __init__(self, style: LogFormat) -> None:
        """Choose the form of the lines."""
        super().__init__()
        self._form = style
        self._second = (-1, "")  # the last one and its text: many lines are of the same second

    def format(self, record: logging.LogRecord) -> str:
        """Make the line: time, level, event, its fields, where it came from, the error."""
        fields = dict(self._fields(record))
        if self._form is LogFormat.JSON:
            return json.dumps(fields, ensure_ascii=False, default=str)
        return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())

    def _time(self, seconds: float) -> str:
        when, milliseconds = divmod(round(seconds * 1_000_000) // 1000, 1000)
        known = self._second
        if known[0] != when:
            known = self._second = (when, f"{datetime.fromtimestamp(when, UTC):%Y-%m-%dT%H:%M:%S}")
        return f"{known[1]}.{milliseconds:03}Z"

    def _fields(self, record: logging.LogRecord) -> Iterator[tuple[str, object]]:
        yield "time", self._time(record.created)
        yield "level", record.levelname.lower()
        if record.name.partition(".")[0] == PRODUCT:
            yield "event", record.getMessage()
        else:
            yield "event", "library"
            yield "message", _bounded(record.getMessage())
        for key, value in getattr(record, _ATTRIBUTE, {}).items():
            yield key, _bounded(value)
        yield "logger", record.name
        if record.exc_info:
            yield "trace", self.formatException(record.exc_info)


def _bounded(value: object) -> object:
    if type(value) is str:  # nearly all are
        return cut(value, MAX_VALUE_CHARS)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, tuple | list | frozenset | set):
        items = sorted(value, key=str) if isinstance(value, frozenset | set) else value
        value = ",".join(str(item) for item in items)
    return cut(str(value), MAX_VALUE_CHARS)


def _quoted(value: object) -> str:
    if type(value) is str:
        text = value
    elif value is None:
        return "-"
    elif isinstance(value, bool):
        return "true" if value else "false"
    else:
        text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


class LineQueue(logging.Handler):
    """Hands each line to a thread that writes it: nobody waits for whoever reads the log.

    A line that finds the queue full is dropped and counted; the log names the sum later.
    """

    def __init__(self, file: int = 2) -> None:
        """Write to that descriptor, not to `sys.stderr`: the end of a process waits for its lock.

        Signals should be blocked already: the thread inherits that.
        """
        super().__init__()
        self.dropped = 0
        self._file = file
        self._lines: queue.Queue[str] = queue.Queue(MAX_LINES)
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record. Never waits, never raises."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a message that does not fit its arguments
            line = traceback.format_exc()
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def flush(self) -> None:
        """Wait until all lines are written, but not for ever. Called as the process ends."""
        lines = self._lines
        with lines.all_tasks_done:
            lines.all_tasks_done.wait_for(lambda: not lines.unfinished_tasks, FLUSH_S)

    def _write(self) -> None:
        named = 0
        while True:
            lines = [self._lines.get()]
            lines += [self._lines.get() for _ in range(self._lines.qsize())]
            text = "".join(f"{line}\n" for line in lines)
            if self.dropped > named:
                named = self.dropped
                text += f"{self.format(_dropped(named))}\n"
            left = text.encode(errors="backslashreplace")
            with contextlib.suppress(OSError):  # the reader is gone
                while left:
                    left = left[os.write(self._file, left) :]
            for _ in lines:
                self._lines.task_done()


def _dropped(count: int) -> logging.LogRecord:
    event = {"name": __name__, "levelname": "WARNING", "msg": "log_lines_dropped"}
    return logging.makeLogRecord(event | kv(since_start=count))


def dropped_lines() -> int:
    """How many lines of this process's log were dropped."""
    handlers = logging.getLogger().handlers
    return sum(handler.dropped for handler in handlers if isinstance(handler, LineQueue))


def configure(style: LogFormat, level: LogLevel, handler: logging.Handler | None = None) -> None:
    """Send every record of this process to `handler`, in place of what was set up.

    By default to standard error, which may keep the caller waiting. Libraries log only WARNING and
    above, unless the level is `debug`.
    """
    # no line has them, and asking for them takes a third of the time that a record takes
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = handler or logging.StreamHandler()
    handler.setFormatter(EventFormatter(style))
    logging.getLogger().handlers[:] = [handler]
    adjust(style, level)


def adjust(style: LogFormat, level: LogLevel) -> None:
    """Change form and level of what `configure` set up."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler.formatter, EventFormatter):
            handler.setFormatter(EventFormatter(style))
    ours = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(ours if level is LogLevel.DEBUG else max(ours, logging.WARNING))
    logging.getLogger(PRODUCT).setLevel(ours)
