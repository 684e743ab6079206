"""The checks themselves: exceptions that still hide something, and help that names every target."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
TARGETS: Final = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def unused() -> frozenset[str]:
    """All names that the product defines and does not use itself."""
    done = subprocess.run(
        (
            sys.executable,
            "-m",
            "vulture",
            "hami_node",
            "--exclude",
            "*_pb2*",
            "--config",
            "/dev/null",
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return frozenset(re.findall(r"unused \w+ '(\w+)'", done.stdout))


def ignored() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["vulture"]
    names: list[str] = settings["ignore_names"]
    return names


@pytest.mark.parametrize("pattern", ignored())
def test_name_that_the_dead_code_check_ignores_is_one_it_would_report(
    unused: frozenset[str], pattern: str
) -> None:
    assert any(fnmatchcase(name, pattern) for name in unused)


@pytest.mark.parametrize("target", TARGETS)
def test_target_is_in_the_help_and_in_contributing(target: str) -> None:
    shown = subprocess.run(("make", "help"), cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(rf"^  make {target} +\S", shown.stdout, re.MULTILINE)
    assert f"| `make {target}` |" in (ROOT / "CONTRIBUTING.md").read_text()


def test_modules_of_the_product_have_at_most_700_lines() -> None:
    modules = (ROOT / "hami_node").rglob("*.py")
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in modules}
    long = {str(path): count for path, count in lines.items() if count > 700}
    assert {path for path in long if "kubelet_api" not in path} == set()
