"""The limit of large bodies: the oldest that is still arriving makes way for a new one."""

from __future__ import annotations

from typing import Protocol

from hami_node.errors import HamiError


class TooManyBodies(HamiError):
    """The bytes of other large bodies leave none for this one."""


class Arriving(Protocol):
    """One body, from its first byte to its answer.

    Attributes:
        is_whole: it has arrived, and is kept until it is answered.
    """

    is_whole: bool

    def make_way(self) -> None:
        """End its arrival now: the bytes are for another one."""


class BodyLimit:
    """Bytes of large bodies that are held at a time. For one event loop."""

    def __init__(self, size: int, ordinary: int) -> None:
        """Hold `size` bytes at most; bodies up to `ordinary` bytes are not counted."""
        self._size, self._ordinary = size, ordinary
        self._held: dict[Arriving, int] = {}

    def hold(self, body: Arriving, size: int) -> None:
        """It has grown to `size`. Raises TooManyBodies when nothing can make way for it."""
        if size <= self._ordinary:
            return
        self._held[body] = size
        while sum(self._held.values()) > self._size:
            oldest = next((held for held in self._held if not held.is_whole), None)
            if oldest is None or oldest is body:
                raise TooManyBodies("busy with other large requests, try again")
            del self._held[oldest]
            oldest.make_way()

    def release(self, body: Arriving) -> None:
        """It has been answered."""
        self._held.pop(body, None)
