"""Measure the extender on a fleet: a real control plane, nodes on paper, no kubelet.

usage: python -m tests.bench.fleet throughput   pods a second, latency: plain pods and ours
       python -m tests.bench.fleet soak         an hour of churn: memory, state, what is left behind

Each has its own --help. etcd has to be on PATH; the other programs are built once, by Go.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import Final

from tests.bench.fleet.processes import ending_on_signals
from tests.e2e import prepare

_PARTS: Final = ("throughput", "soak")


def main() -> int:
    """Run one part; its exit code."""
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("part", choices=_PARTS)
    given, rest = parser.parse_known_args()
    run: Callable[[list[str]], int]
    run = importlib.import_module(f"tests.bench.fleet.{given.part}").main
    with ending_on_signals():
        if "-h" not in rest and "--help" not in rest:
            prepare.build_programs()
        return run(rest)


if __name__ == "__main__":
    sys.exit(main())
