"""Where the slow-to-make things lie between runs: programs, base file system, product image."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(os.environ.get("HAMI_E2E_ASSETS") or "~/.cache/hami-e2e/bin").expanduser()
OLDER: Final = os.environ.get("HAMI_E2E_KUBERNETES")  # `1.34`: the cluster is of that version
KUBERNETES: Final = PROGRAMS / f"kubernetes-{OLDER}" if OLDER else PROGRAMS
ROOTFS: Final = PROGRAMS / "python-rootfs"
IMAGE_TAR: Final = PROGRAMS / "hami-node.tar"
IMAGE: Final = "localhost/hami-node:e2e"
IMAGE_NEXT: Final = "localhost/hami-node:e2e-next"  # the same bytes under another name
REPOSITORY: Final = Path(__file__).parents[2]
NODE_DIR: Final = Path("/var/lib/hami-e2e")  # the node's own files: limiter, driver, runtimes
SOURCES: Final = Path(__file__).parent / "programs"


def program(name: str) -> str | None:
    """Where that program is: on PATH, or where `prepare` builds it; None if nowhere."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}{os.pathsep}{PROGRAMS}")
