"""A folder that looks like the driver's root of a host."""

from __future__ import annotations

from pathlib import Path
from typing import Final

VERSION: Final = "550.54.15"
LIBRARIES: Final = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
CONTROL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def lay_driver(
    root: Path,
    version: str = VERSION,
    *,
    folder: str = "usr/lib/x86_64-linux-gnu",
    cards: int = 4,
    has_hook: bool = True,
) -> None:
    """Libraries with their links, nvidia-smi, stand-ins of device nodes, and the hook."""
    libraries = root / folder
    libraries.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        (libraries / f"{name}.so.{version}").write_text(f"{name} {version}")
        link(libraries / f"{name}.so.1", f"{name}.so.{version}")
    link(libraries / "libcuda.so", "libcuda.so.1")
    (libraries / "libc.so.6").write_text("not the driver's")
    programs = root / "usr/bin"
    programs.mkdir(parents=True, exist_ok=True)
    (programs / "nvidia-smi").write_text("#!/bin/sh\n")
    if has_hook:
        (programs / "nvidia-cdi-hook").write_text("#!/bin/sh\n")
    nodes = root / "dev"
    nodes.mkdir(exist_ok=True)
    for name in (*CONTROL, *(f"nvidia{i}" for i in range(cards))):
        (nodes / name).touch()


def link(path: Path, target: str) -> None:
    """Make the link, in place of an older one."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)
