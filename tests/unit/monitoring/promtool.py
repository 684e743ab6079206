"""Rules in promtool, which is in Debian's package `prometheus`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

needs_promtool = pytest.mark.programs


def promtool(*arguments: object) -> None:
    """Run it; its words are the failure."""
    done = subprocess.run(
        ("promtool", *map(str, arguments)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_rules(folder: Path, file: Path, tests: Sequence[Mapping[str, Any]]) -> None:
    """`promtool test rules` with these tests of one file."""
    path = folder / "tests.yaml"
    page = {"rule_files": [str(file)], "evaluation_interval": "1m", "tests": list(tests)}
    path.write_text(yaml.safe_dump(page))
    promtool("test", "rules", path)
