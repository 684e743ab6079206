"""Replay recorded decisions through the product's public functions and show every difference.

Usage: python tests/conformance/replay.py [FILE...]     (no FILE: all of tests/conformance/vectors)

A FILE is `.jsonl` or `.jsonl.gz`; its form is in vectors/README.md. Exit status 1 on any mismatch,
2 where a FILE can't be read.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hami_node.engine.compat import Compat  # noqa: E402  the script's folder is not the root
from tests.conformance import engine_ops, wire_ops  # noqa: E402  the script's folder is not the root
from tests.conformance.compare import differences, is_stricter  # noqa: E402  as above
from tests.conformance.filter_op import answer_filter  # noqa: E402  as above
from tests.conformance.objects import COMPAT_OF, Json  # noqa: E402  as above

VECTORS = Path(__file__).parent / "vectors"
SHOWN = 20


class UnreadableError(Exception):
    """A file that holds no cases; the text names it."""


"""Mismatches printed in full; the rest is only counted."""

ERROR: Json = {"error": True}
"""The answer where the product raises a named error."""

Answer = Callable[[Json, Compat], Json]

OPS: dict[str, Answer] = {
    "device_score": engine_ops.answer_device_score,
    "node_score": engine_ops.answer_node_score,
    "visit_order": engine_ops.answer_visit_order,
    "fit": engine_ops.answer_fit,
    "account": engine_ops.answer_account,
    "collapse": engine_ops.answer_collapse,
    "filter": answer_filter,
    "requests": wire_ops.answer_requests,
    "codec": wire_ops.answer_codec,
    "neuron_fit": engine_ops.answer_neuron_fit,
}


class Tally:
    """Counts of one replay and the first mismatches as text."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.mismatches: Counter[str] = Counter()
        self.stricter: Counter[str] = Counter()
        self.shown: list[str] = []

    def replay(self, case: Json) -> None:
        kind = f"{case['gen']} {case['op']}"
        if case["op"] == "codec":
            kind += f" {case['in']['kind']}"
        self.cases[kind] += 1
        given = _answer_of(case)
        found = [given] if isinstance(given, str) else differences(case, given)
        if found and given == ERROR and is_stricter(case):
            self.stricter[kind] += 1
        elif found:
            self.mismatches[kind] += 1
            if len(self.shown) < SHOWN:
                self.shown.append(f"{case['id']}: " + "\n    ".join(found))

    def report(self, seconds: float) -> str:
        lines = list(self.shown)
        lines.append(f"{'kind':42} {'cases':>7} {'mismatches':>11} {'stricter':>9}")
        lines += [
            f"{kind:42} {self.cases[kind]:7} {self.mismatches[kind]:11} {self.stricter[kind]:9}"
            for kind in sorted(self.cases)
        ]
        lines.append(
            f"{'total':42} {self.cases.total():7} {self.mismatches.total():11} "
            f"{self.stricter.total():9}   {seconds:.1f} s"
        )
        return "\n".join(lines)


def _answer_of(case: Json) -> Json | str:
    """The product's answer, or what went wrong."""
    answer = OPS.get(case["op"])
    if answer is None:
        return f"no such op: {case['op']}"
    try:
        return answer(case["in"], COMPAT_OF[case["gen"]])
    except Exception:  # noqa: BLE001  any error at all is a mismatch to be shown
        return traceback.format_exc(limit=-3)


def cases_of(path: Path) -> Iterator[Json]:
    """The cases of one file, one JSON object per line.

    Raises:
        UnreadableError: the file is not there, or no vector file.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    yield json.loads(line)
    except (OSError, EOFError, ValueError) as e:
        raise UnreadableError(f"{path}: line {number}: not a vector file: {e}") from e


def replay(paths: Sequence[Path]) -> Tally:
    """Replay every case of the files."""
    tally = Tally()
    for path in paths:
        for case in cases_of(path):
            tally.replay(case)
    return tally


def main(arguments: Sequence[str]) -> int:
    """Print the differences and a table; 1 when there was a mismatch or no case at all."""
    paths = [Path(argument) for argument in arguments] or sorted(VECTORS.glob("*/*.jsonl.gz"))
    start = time.perf_counter()
    try:
        tally = replay(paths)
    except UnreadableError as e:
        print(e, file=sys.stderr)
        return 2
    print(tally.report(time.perf_counter() - start))
    return 1 if tally.mismatches or not tally.cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
