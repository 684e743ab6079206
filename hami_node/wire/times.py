"""Times as written in annotations, to and from Unix seconds. Reads no clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_TIME: Final = re.compile(
    r"(\d{4})([-.])(\d\d)\2(\d\d)[T ](\d\d):(\d\d):(\d\d)(\.\d{1,9})?"
    r"(?:Z| ?([+-])(\d\d):?(\d\d))?(?: [A-Z][A-Z0-9+-]*)?(?: m=[+-][0-9.]+)?",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> float | None:
    """Unix seconds of any spelling of the protocol; None for anything else.

    Known: RFC 3339, `2006-01-02 15:04:05`, `2006.01.02 15:04:05` and Go's own
    `2006-01-02 15:04:05.999999999 +0000 UTC m=+1.5`. Without a zone it is taken as UTC.
    """
    found = _TIME.fullmatch(text)
    if not found:
        return None
    year, _, month, day, hour, minute, second, fraction, sign, off_hours, off_minutes = (
        found.groups()
    )
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC
        )
    except ValueError:
        return None
    offset_s = 0
    if sign:
        offset_s = (int(off_hours) * 3600 + int(off_minutes) * 60) * (-1 if sign == "-" else 1)
    return (moment - _EPOCH) / timedelta(seconds=1) - offset_s + float(fraction or 0)


def format_rfc3339(unix_s: float) -> str:
    """`2006-01-02T15:04:05Z`; fractions of a second are cut off."""
    return _moment(unix_s // 1).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_dashed(unix_s: float) -> str:
    """`2006-01-02 15:04:05` in UTC; fractions of a second are cut off."""
    return _moment(unix_s // 1).strftime("%Y-%m-%d %H:%M:%S")


def format_go(unix_s: float) -> str:
    """`2006-01-02 15:04:05.123456 +0000 UTC`, as Go prints a time without a monotonic reading."""
    return _moment(unix_s).strftime("%Y-%m-%d %H:%M:%S.%f +0000 UTC")


def _moment(unix_s: float) -> datetime:
    return _EPOCH + timedelta(seconds=unix_s)
