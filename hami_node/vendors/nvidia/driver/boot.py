"""Which boot of the node this is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(path: Path = BOOT_ID) -> str:
    """Differs after each boot; "" where that can't be read."""
    try:
        return path.read_bytes()[:64].decode("ascii", "replace").strip()
    except OSError:
        return ""
