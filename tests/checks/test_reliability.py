"""The table of tests/reliability.md: every fault has a row, and every row a test that is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.reliability import shown

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = tuple(shown())
MOST: Final = {
    "N": 19,  # on the node
    "E": 15,  # at the extender and webhook
    "R": 10,  # in the record
    "P": 15,  # in everyday use
    "F": 11,  # foreign holders, NUMA nodes, Neuron
    "L": 11,  # the limiter's and containers' files
    "S": 10,  # fixed shares
    "Z": 13,  # the resize of a running pod
    "D": 15,  # the driver, the node's paths
    "H": 10,  # how cards are handed over
    "U": 9,  # in reading what is used
    "B": 5,
    "M": 19,  # with cards in MIG mode: the hazards of other plugins
    "G": 29,  # with cards in MIG mode: everything else
}
NUMBERS: Final = frozenset(
    f"{letter}{number}" for letter, most in MOST.items() for number in range(1, most + 1)
)


def test_every_fault_has_a_row_and_no_row_another_number() -> None:
    assert {row.number for row in ROWS} == NUMBERS


def test_cells_are_filled_and_fit_into_a_table() -> None:
    for row in ROWS:
        for cell in (row.fault, row.happens, row.lost):
            assert cell == " ".join(cell.split()) != "", row
            assert "|" not in cell, row
            assert not cell.endswith("."), row


def test_no_fault_is_told_twice_and_no_test_has_two_rows() -> None:
    assert len({(row.number, row.fault) for row in ROWS}) == len(ROWS)
    assert len({row.test for row in ROWS}) == len(ROWS)


def test_every_named_test_is_collected_under_its_name() -> None:
    files = sorted({f"tests/{row.test.partition('::')[0]}" for row in ROWS})
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "")
    done = subprocess.run(
        (*command, "-p", "no:cacheprovider", *files),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    collected = {line.partition("[")[0] for line in done.stdout.splitlines()}
    assert {f"tests/{row.test}" for row in ROWS} <= collected
