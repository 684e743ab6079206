"""Every recorded decision is answered alike, and the replay itself can tell when it is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.compare import differences
from tests.conformance.replay import VECTORS, cases_of, replay

FILES = sorted(VECTORS.glob("*/*.jsonl.gz"))
SCRIPT = Path(__file__).with_name("replay.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name[:-9]}")
def test_vectors_replayed_have_no_mismatch(path: Path) -> None:
    tally = replay([path])
    assert tally.cases.total() > 0
    assert not tally.mismatches, tally.report(0.0)


def test_vectors_are_all_there() -> None:
    assert len(FILES) == 18


def test_stricter_answers_occur_only_where_pod_grants_are_broken() -> None:
    tally = replay([VECTORS / "seed" / "codec.jsonl.gz"])
    assert set(tally.stricter) == {"seed codec pod_decode"}


def _changed(path: Path, tmp_path: Path, change: dict[str, Any]) -> Path:
    case = next(cases_of(path))
    case["out"] |= change
    copy = tmp_path / "changed.jsonl"
    copy.write_text(json.dumps(case))
    return copy


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"reason": "1/1 NoSuchReason"}, 1, "seed-fit-1: .reason: wanted '1/1 NoSuchReason'"),
        ({}, 0, ""),
    ],
)
def test_replay_exits_1_and_names_the_case_only_when_an_answer_differs(
    tmp_path: Path, change: dict[str, Any], code: int, said: str
) -> None:
    copy = _changed(VECTORS / "seed" / "fit.jsonl.gz", tmp_path, change)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout


def test_replay_counts_an_unknown_op_as_mismatch(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"id": "x", "gen": "seed", "op": "odd", "in": {}, "out": {}}\n')
    assert replay([path]).mismatches.total() == 1


@pytest.mark.parametrize(
    ("wanted", "given", "count"),
    [
        ({"score": 16.25}, {"score": 16.2500001}, 0),
        ({"score": 16.25}, {"score": 16.251}, 1),
        ({"order": ["a", "b"]}, {"order": ["b", "a"]}, 2),
        ({"order": ["a"]}, {"order": []}, 1),
        ({"fit": False}, {"fit": True}, 1),
        ({"fit": False}, {}, 1),
        ({}, {"fit": False}, 1),
    ],
)
def test_differences_are_counted(wanted: dict[str, Any], given: dict[str, Any], count: int) -> None:
    assert len(differences({"op": "node_score", "in": {}, "out": wanted}, given)) == count


@pytest.mark.parametrize("name", ["README.md", "nowhere.jsonl"])
def test_script_names_a_file_that_holds_no_vectors(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, SCRIPT, VECTORS / name], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"{VECTORS / name}: line ")
    assert len(ran.stderr.splitlines()) == 1
