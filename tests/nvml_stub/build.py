"""Build the stand-in for the driver's library, `libnvidia-ml.so.1`, with gcc.

`python -m tests.nvml_stub.build FOLDER` puts it there. What it answers: see `libnvidia-ml.c`, and
`mig_models.c` for MIG.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SOURCES = (
    "libnvidia-ml.c",
    "mig_models.c",
    "mig_parts.c",
    "mig_gpu.c",
    "mig_compute.c",
    "mig_devices.c",
    "mig_hardware.c",
)
READ = (*SOURCES, "stub.h", "mig.h", "models.inc")
LIBRARY_NAME = "libnvidia-ml.so.1"
FLAGS = (
    *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"),
    *("-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY_NAME}"),
)


NO_COMPILER = "gcc is not installed: what stands in for the driver can't be built"


def gcc() -> str:
    """The compiler's path; a test that needs it where there is none is skipped."""
    path = shutil.which("gcc")
    if path is None:
        pytest.skip(NO_COMPILER)
    return path


def build(folder: Path, *defines: str) -> Path:
    """Compile into `folder` unless an up-to-date library stands there. Returns its path.

    `WITHOUT_MEMORY_LIMITS` among the defines makes it a driver that can't limit memory itself.

    Raises:
        RuntimeError: gcc refuses; the text is its own.
    """
    target = folder / LIBRARY_NAME
    changed = max((FOLDER / name).stat().st_mtime for name in READ)
    if target.exists() and target.stat().st_mtime >= changed:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        gcc(),
        *FLAGS,
        *(f"-D{name}" for name in defines),
        "-o",
        str(target),
        *(str(FOLDER / name) for name in SOURCES),
        "-lpthread",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return target


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
