"""Wait for something that another thread brings about."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(is_true: Callable[[], object], limit_s: float = 10.0) -> None:
    """Return as soon as it is true; fail when it never is. The limit is for hopeless cases."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {limit_s} s")
        time.sleep(0.005)
