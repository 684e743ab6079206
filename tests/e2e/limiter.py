"""Stand-ins for the limiter's files on the node; what they do is not ours to test."""

from __future__ import annotations

from typing import Final

from tests.e2e.machine import NODE_DIR
from tests.fakes.limiter import build_library

HOOK: Final = NODE_DIR / "hook"  # the daemon's HOOK_PATH
LIBRARY: Final = HOOK / "vgpu" / "libvgpu.so"
PRELOAD: Final = HOOK / "vgpu" / "ld.so.preload"
CONTAINERS: Final = HOOK / "vgpu" / "containers"
LOCK: Final = HOOK / "vgpu" / "lock"  # for the limiter's version is unknown here


def install() -> None:
    """Lay the files where the real limiter's installer puts them; every program loads them."""
    build_library(LIBRARY)
    PRELOAD.write_text(f"{LIBRARY}\n")
    PRELOAD.chmod(0o644)


def remove() -> None:
    """As on a node where nobody installed it."""
    LIBRARY.unlink(missing_ok=True)
    PRELOAD.unlink(missing_ok=True)
