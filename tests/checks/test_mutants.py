"""`make mutants`: what a test holds dies by it, what none holds lives, the working tree stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.mutants import ALIVE, NOT_JUDGED, ROOT, Trial, mutants_of

FILE: Final = "hami_node/room/small.py"
TEST: Final = "tests/unit/test_small.py"
SOURCE: Final = '''"""A room: Σ."""
def is_small(cards: int) -> bool:
    return 0 < cards and cards <= 2

def count_down(cards: int) -> int:
    while cards:
        cards -= 1
    return 3
'''
TESTS: Final = """from hami_node.room import small

def test_is_small() -> None:
    assert [small.is_small(cards) for cards in range(4)] == [False, True, True, False]
"""
MUTANTS: Final = [
    "3 return 0 < cards and cards <= 2: (None)",
    "3 and/or 0 < cards and cards <= 2: (0 < cards or cards <= 2)",
    "3 compare 0 < cards: (0 <= cards)",
    "3 constant 0: (1)",
    "3 constant 0: (-1)",
    "3 compare cards <= 2: (cards < 2)",
    "3 constant 2: (3)",
    "3 constant 2: (1)",
    "6 negate cards: (not cards)",
    "7 drop cards -= 1: pass",
    "7 constant 1: (2)",
    "7 constant 1: (0)",
    "8 constant 3: (4)",
    "8 constant 3: (2)",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(SOURCE)
    (tmp_path / TEST).parent.mkdir(parents=True)
    (tmp_path / TEST).write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\ntestpaths = ["tests/unit"]\naddopts = "-ra"\n'
    )
    return tmp_path


def outcome(tree: Path, number: int, limit_s: float = 60) -> str:
    return Trial(tree, (), limit_s).outcome([*mutants_of(tree / FILE, FILE)][number])


def test_every_kind_of_fault_is_made(tree: Path) -> None:
    found = [f"{m.line} {m.kind} {m.old}: {m.new}" for m in mutants_of(tree / FILE, FILE)]
    assert sorted(found) == sorted(MUTANTS)


def test_mutant_that_a_test_holds_dies_by_that_test(tree: Path) -> None:
    number = next(n for n, m in enumerate(mutants_of(tree / FILE, FILE)) if m.new == "(0 <= cards)")
    assert outcome(tree, number) == f"{TEST}::test_is_small"
    (tree / TEST).write_text(TESTS.replace("range(4)", "range(1, 4)").replace("False, T", "T", 1))
    assert outcome(tree, number) == ALIVE


def test_failure_without_a_mutant_judges_none(tree: Path) -> None:
    (tree / TEST).write_text(f"{TESTS}    assert False\n")
    assert outcome(tree, 0).startswith(NOT_JUDGED)


def test_mutant_is_tried_in_a_copy_and_written_as_json(tree: Path) -> None:
    def judged(*options: str) -> list[dict[str, object]]:
        command = (sys.executable, "-m", "tests.mutants", "room", "--root", str(tree), *options)
        rows: list[dict[str, object]] = json.loads(
            subprocess.check_output((*command, "--count", "1", "--json"), cwd=ROOT)
        )
        return rows

    (tree / FILE).write_text("STEP = 1\n")
    (tree / FILE).chmod(0o444)
    (tree / TEST).write_text(
        "from hami_node.room.small import STEP\n\ndef test_step() -> None:\n    assert STEP == 1\n"
    )
    (row,) = judged("--seed", "2")
    assert row.pop("new") in {"(0)", "(2)"}
    assert row == {
        "file": FILE, "line": 1, "kind": "constant", "old": "1", "outcome": f"{TEST}::test_step"
    }  # fmt: skip
    assert (tree / FILE).read_text() == "STEP = 1\n"
