"""Damaged annotations, quantities and objects through everything that reads them.

`python -m tests.fuzz.run --cases 1000000 --seed 1` prints how the cases ended and exits 1 when one
raised anything but the named errors; `--only N` runs one case of the seed and shows its input,
`--target NAME` only one kind of input.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hami_node.errors import WireError
from tests.fuzz.mutate import Source
from tests.fuzz.targets import TARGETS, Target

SHOWN = 10
"""Failures shown in full; more are only counted."""

CASE_LIMIT_S = 5.0
"""Processor time of one case; damaged input that costs more is as bad as an exception."""


class TooSlow(Exception):
    """A case needs more processor time than any input may cost."""


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise `TooSlow` inside when the time is over; counts processor time, not waiting."""

    def stop(*_: object) -> None:
        raise TooSlow(f"more than {limit_s} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass(slots=True)
class Report:
    """How the cases of one run ended."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: str = ""

    def table(self) -> str:
        """Outcomes by target, for people."""
        rows = [
            f"  {target:16} {result:16} {count:9}"
            for (target, result), count in sorted(self.outcomes.items())
        ]
        return "\n".join(rows)


def run_case(
    seed: int,
    number: int,
    report: Report,
    targets: Mapping[str, Target] = TARGETS,
    limit_s: float = CASE_LIMIT_S,
) -> None:
    """Run one case; a `WireError` is an answer, anything else that it raises a failure."""
    name = list(targets)[number % len(targets)]
    source = Source(f"{seed}:{number}")
    begin = time.perf_counter()
    try:
        with _limited(limit_s):
            result = targets[name](source)
    except WireError:
        result = "WireError"
    except Exception as error:  # noqa: BLE001 - any exception is what is looked for
        result = f"FAILED {type(error).__name__}"
        where = "".join(traceback.format_exception(error)[-4:])
        made = "\n".join(repr(text)[:600] for text in source.made)
        report.failures.append(f"case {seed}:{number} ({name})\n{made}\n{where}")
    spent_s = time.perf_counter() - begin
    if spent_s > report.slowest_s:
        report.slowest_s, report.slowest = spent_s, f"case {seed}:{number} ({name})"
    report.outcomes[name, result] += 1


def run(cases: int, seed: int, first: int = 0, targets: Mapping[str, Target] = TARGETS) -> Report:
    """Run `cases` cases of one seed, all targets in turn; equal arguments, equal cases."""
    report = Report()
    for number in range(first, first + cases):
        run_case(seed, number, report, targets)
    return report


def main(arguments: Sequence[str]) -> int:
    """Command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="number of one case")
    parser.add_argument("--target", choices=TARGETS, help="this one only")
    chosen = parser.parse_args(arguments)
    targets = {chosen.target: TARGETS[chosen.target]} if chosen.target else TARGETS
    begin = time.perf_counter()
    if chosen.only is None:
        report = run(chosen.cases, chosen.seed, targets=targets)
    else:
        report = run(1, chosen.seed, chosen.only, targets)
    print(report.table())
    for failure in report.failures[:SHOWN]:
        print(f"\n{failure}")
    spent_s = time.perf_counter() - begin
    print(
        f"{sum(report.outcomes.values())} cases, {len(report.failures)} failures, {spent_s:.0f} s; "
        f"slowest {report.slowest_s * 1000:.0f} ms: {report.slowest}"
    )
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
