"""Pure: from what was seen to the figures that are printed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.e2e.audit import Request


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which that part of them lies; NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """When a pod was sent to the API server, and when it was seen bound; monotonic seconds."""

    created_s: float
    bound_s: float


def per_second(moments: Sequence[Moments]) -> float:
    """Pods a second, from the first created to the last bound."""
    if not moments:
        return 0.0
    took_s = max(m.bound_s for m in moments) - min(m.created_s for m in moments)
    return len(moments) / took_s if took_s > 0 else float("inf")


def latencies_ms(moments: Iterable[Moments]) -> list[float]:
    """From created to bound, ms."""
    return [(m.bound_s - m.created_s) * 1000 for m in moments]


def kinds_of(requests: Iterable[Request]) -> Counter[str]:
    """How often each kind of request was made: `patch pods`, `create pods/binding`.

    Lists and watches, Leases and their reads are left out: they don't come with pods.
    """
    kinds: Counter[str] = Counter()
    for request in requests:
        resource, *rest = request.what.split("/")
        if request.verb in ("list", "watch") or resource in ("leases", "endpointslices", ""):
            continue
        kinds[f"{request.verb} {'/'.join((resource, *rest[1:]))}"] += 1
    return kinds


def slope(points: Sequence[tuple[float, float]]) -> float:
    """By how much the second value grows with the first, by least squares; 0 of fewer than two."""
    if len({x for x, _ in points}) < 2:
        return 0.0
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


def growth(points: Sequence[tuple[float, float]], after: float, window: int = 6) -> float:
    """How much the second value has grown since the first reached `after`.

    The middle of the first `window` values then, against the middle of the last: one value alone
    says little of memory that comes and goes.
    """
    later = [y for x, y in points if x >= after]
    if len(later) < 2:
        return 0.0
    window = max(1, min(window, len(later) // 2))
    return statistics.median(later[-window:]) - statistics.median(later[:window])


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with the same keys as aligned text: the keys, then a line for each row."""
    if not rows:
        return ""
    lines = [list(rows[0]), *([shown(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def shown(value: object) -> str:
    """A number with as many digits as say something."""
    if not isinstance(value, float):
        return str(value)
    if value != value:
        return "-"
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
