"""Build the stand-in for the driver's library, `libnvidia-ml.so.1`, with gcc.

`python -m tests.nvml_stub.build FOLDER` puts it there. What it answers: see `libnvidia-ml.c`, and
`mig_models.c` for MIG.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

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


class NoCompiler(RuntimeError):
    """gcc is not installed: tests that need the library are skipped."""


def build(folder: Path, *defines: str) -> Path:
    """Compile into `folder` unless an up-to-date library stands there. Returns its path.

    `WITHOUT_MEMORY_LIMITS` among the defines makes it a driver that can't limit memory itself.

    Raises:
        NoCompiler: there is no gcc.
        RuntimeError: gcc refuses; the text is its own.
    """
    target = folder / LIBRARY_NAME
    changed = max((FOLDER / name).stat().st_mtime for name in READ)
    if target.exists() and target.stat().st_mtime >= changed:
        return target
    compiler = shutil.which("gcc")
    if compiler is None:
        raise NoCompiler("gcc is not installed: the NVML stand-in can't be built")
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        compiler,
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
