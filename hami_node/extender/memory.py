"""The process's own memory: many objects at once, and what was freed goes back to the system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_STEADY: Final = (10_000, 10, 10)
"""Thresholds of a process that holds much and decides often: hardly any of its garbage is in
cycles, and by default the collector would look at new objects after every few calls."""
_MANY: Final = (100_000, 50, 100)
"""Thresholds of the garbage collector while nearly everything that is made also stays."""


_M_MMAP_THRESHOLD: Final = -3
"""glibc's number of the option. Source: malloc.h."""
_LARGE_BYTES: Final = 128 << 10
"""What is larger is returned as soon as it is freed. By default glibc keeps what is smaller than
the largest that was ever freed, which is quicker while pages of a list are read, and fills with
gaps afterwards."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """While a large list is read: by default the collector would look at all of it again and again.

    Garbage is still found, only later, and what there is now before. What `settle` has set within
    stays.
    """
    gc.collect()
    usual = gc.get_threshold()
    gc.set_threshold(*_MANY)
    try:
        yield
    finally:
        if gc.get_threshold() == _MANY:
            gc.set_threshold(*usual)


def settle() -> None:
    """What is there now stays for long: no later collection looks at it, and they are rarer.

    Only what is young is searched for garbage: of millions of objects that takes seconds, and what
    a list leaves behind is young.
    """
    gc.collect(0)
    gc.set_threshold(*_STEADY)
    gc.freeze()  # collecting all pods of a large cluster would stall decisions
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    give_back()


def give_back() -> bool:
    """Return freed memory to the system, which glibc keeps; True if there was some.

    Other C libraries return it themselves. What is young and only refers to itself, as closed
    connections do, is freed first; that takes milliseconds, however much there is that is old.
    """
    gc.collect(1)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(trim(0)) if trim is not None else False
