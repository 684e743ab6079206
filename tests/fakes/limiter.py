"""Stand-ins of the limiter's files, as a node has them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hami_node.vendors.nvidia.demo import limiter_files
from tests.nvml_stub.build import gcc

LIBRARY_NAME = "libvgpu.so"


def lay_limiter(hook: Path, version: str = "") -> None:
    """Put them below this hook path; with a version, the library has only that name."""
    for name, content in limiter_files(hook).items():
        path = hook / name
        if version and path.name == LIBRARY_NAME:
            path = path.with_name(f"{LIBRARY_NAME}.{version}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(content)
        new.chmod(0o644)
        new.replace(path)


def build_library(target: Path, mark: str = "") -> None:
    """Link a library that does nothing, for containers whose linker really loads it.

    Another `mark` makes another build of it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f"{target.name}.new")
    flags = ("-shared", "-nostdlib", "-x", "c", "-", "-o", str(new))
    source = f'const char mark[] = "{mark}";'
    subprocess.run([gcc(), *flags], input=source, text=True, check=True, timeout=60)
    new.chmod(0o644)
    new.replace(target)


def take_limiter(hook: Path) -> None:
    """Remove them."""
    for pattern in (f"{LIBRARY_NAME}*", "ld.so.preload"):
        for path in (hook / "vgpu").glob(pattern):
            path.unlink()
