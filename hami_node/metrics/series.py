"""Gauges as Prometheus text, made while they are sent: for pages of several 100,000 series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

LINES: Final = 1000
"""How many series are written at a time."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gauge(Generic[T]):
    """One family: its name, its meaning, and the value of an item; None for no series."""

    name: str
    doc: str
    value: Callable[[T], float | None]


def families(gauges: Iterable[Gauge[T]], labelled: Sequence[tuple[str, T]]) -> Iterator[str]:
    """The text of families over the same items; `labelled` are items with their labels."""
    for gauge in gauges:
        yield from family(gauge.name, gauge.doc, ((at, gauge.value(of)) for at, of in labelled))


def family(name: str, doc: str, series: Iterable[tuple[str, float | None]]) -> Iterator[str]:
    """The text of one family, some lines at a time; without series it is left out."""
    head, lines = f"# HELP {name} {doc}\n# TYPE {name} gauge\n", list[str]()
    for labels, value in series:
        if value is None:
            continue
        lines.append(f"{name}{labels} {value}\n")
        if len(lines) == LINES:
            yield head + "".join(lines)
            head = ""
            lines.clear()
    if lines:
        yield head + "".join(lines)


def labels_of(**values: object) -> str:
    """Labels as they stand in a line."""
    return "{" + ",".join(f'{name}="{escaped(str(value))}"' for name, value in values.items()) + "}"


def escaped(text: str) -> str:
    """A label's value as it stands between quotes."""
    if '"' not in text and "\\" not in text and "\n" not in text:
        return text
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
