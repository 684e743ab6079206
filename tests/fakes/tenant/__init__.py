"""A program that holds card memory as one under the limiter does: it writes a region file.

It is no CUDA program and there is no limiter in it: what it does with its region is what the
limiter of layout 1.2 was seen to do. `tenant.c` says how it is told what to do.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.nvml_stub.build import gcc

SOURCE = Path(__file__).with_name("tenant.c")
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-static")


def build_tenant(target: Path) -> Path:
    """Compile it for any container of this machine. Returns `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f"{target.name}.new")
    subprocess.run([gcc(), *FLAGS, "-o", str(new), str(SOURCE)], check=True, timeout=60)
    new.replace(target)
    return target


def ask(control: Path, mib: int, *, launches: bool = False) -> None:
    """Tell a tenant what to hold on its first card, and whether to launch kernels."""
    new = control.with_name(f"{control.name}.new")
    new.write_text(f"{mib} {int(launches)}\n")
    new.replace(control)
