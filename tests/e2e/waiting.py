"""Wait for something to become true, with a deadline and with what was seen last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import httpx

from tests.e2e.api import ApiError

T = TypeVar("T")

LIMIT_S: Final = 180.0
"""Of use in hopeless cases alone: far more than a loaded machine needs."""


def eventually(
    what: str, probe: Callable[[], T], limit_s: float = LIMIT_S, every_s: float = 0.2
) -> T:
    """The probe's first true value. Its failed assertions, API and file errors count as not yet.

    Raises:
        AssertionError: it stayed false; the last thing seen is in the text.
    """
    deadline = time.monotonic() + limit_s
    seen: object = None
    while True:
        try:
            seen = value = probe()
            if value:
                return value
        except (AssertionError, ApiError, httpx.HTTPError, OSError, RuntimeError) as error:
            seen = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {limit_s} s; last seen: {seen}")
        time.sleep(every_s)


def stays(what: str, probe: Callable[[], object], for_s: float, every_s: float = 0.2) -> None:
    """The probe is true all the time.

    Raises:
        AssertionError: it was false once, or failed itself.
    """
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        value = probe()
        assert value, f"{what}: was {value!r}"
        time.sleep(every_s)
