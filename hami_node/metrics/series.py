"""Gauges as Prometheus text, made while they are sent: for pages of several 100,000 series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

LINES: Final = 1000
"""How many series are written at a time."""


class Family(NamedTuple):
    """A gauge: its name and its meaning."""

    name: str
    doc: str


def table(
    gauges: Iterable[Family], labels: Sequence[str], columns: Iterable[Sequence[float | None]]
) -> Iterator[str]:
    """The text of several families over the same labels. None is no series."""
    for gauge, values in zip(gauges, columns, strict=True):
        yield from family(gauge, labels, values)


def family(gauge: Family, labels: Sequence[str], values: Iterable[float | None]) -> Iterator[str]:
    """The text of one family, some lines at a time; without series it is left out."""
    name, doc = gauge
    head = f"# HELP {name} {doc}\n# TYPE {name} gauge\n"
    series = zip(labels, values, strict=True)
    for _ in range(0, len(labels), LINES):
        lines = [
            f"{name}{label} {value}\n"
            for label, value in islice(series, LINES)
            if value is not None
        ]
        if lines:
            yield head + "".join(lines)
            head = ""


def escaped(text: str) -> str:
    """A label's value as it stands between quotes."""
    if '"' not in text and "\\" not in text and "\n" not in text:
        return text
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
