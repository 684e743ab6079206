"""The product's programs as processes of their own, and processes as the system shows them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def started(
    log: Path,
    program: str,
    flags: Mapping[str, object],
    *more: str,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """`hami-node <program>` with these flags; what it logs goes to a file. The caller ends it."""
    given = [f"--{name}={value}" for name, value in flags.items()]
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "hami_node", program, *given, *more], stderr=file, env=env
        )


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that work in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it ended meanwhile
    return [line for line in found if f"{folder}/" in line]
