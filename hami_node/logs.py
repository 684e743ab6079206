"""Logging: one event, one line, as `key=value` pairs or JSON; fields travel in `extra=kv(...)`.

Our own records have an event name as message (`node_registered`). Records of libraries keep their
text in the field `message` under the event `library`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TextIO

from hami_node.text import cut

PRODUCT: Final = "hami_node"
MAX_VALUE_CHARS: Final = 1000
"""A longer value is cut: whole annotations and pods do not belong in a log."""
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


def configure(style: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """Send every record of this process to `stream` (standard error), replacing what was set up.

    Libraries log only WARNING and above, unless the level is `debug`.
    """
    # no line has them, and asking for them takes a third of the time that a record takes
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream or sys.stderr)
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
