"""Wait for something that another thread brings about."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path


def eventually(is_true: Callable[[], object], limit_s: float = 10.0) -> None:
    """Return as soon as it is true; fail when it never is. The limit is for hopeless cases."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {limit_s} s")
        time.sleep(0.005)


def remove(folder: Path) -> None:
    """Remove a folder in which a thread of the record may still be writing its last file."""

    def is_gone() -> bool:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return not folder.exists()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
        return True

    eventually(is_gone)
