"""The limit of large bodies: the oldest that is still arriving makes way for a new one."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from hami_node.errors import HamiError


class TooManyBodies(HamiError):
    """The bytes of other large bodies leave none for this one."""


class BodyLimit:
    """Bytes of large bodies that are held at a time. For one event loop."""

    def __init__(self, size: int, ordinary: int) -> None:
        """Hold `size` bytes at most; bodies up to `ordinary` bytes are not counted."""
        self._size, self._ordinary = size, ordinary
        self._held: dict[HeldBody, int] = {}

    def body(self, deadline_s: float) -> HeldBody:
        """A body that has to arrive by that time of the event loop."""
        return HeldBody(self, deadline_s)

    def hold(self, body: HeldBody, size: int) -> None:
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

    def release(self, body: HeldBody) -> None:
        """It has been answered."""
        self._held.pop(body, None)


class HeldBody:
    """One body, from its first byte to its answer. Raises TimeoutError when it comes too late.

    Attributes:
        is_whole: it has arrived, and is kept until it is answered.
        had_to_go: it made way for another.
    """

    def __init__(self, bodies: BodyLimit, deadline_s: float) -> None:
        """Count it in `bodies`."""
        self._bodies, self._arrival = bodies, asyncio.timeout_at(deadline_s)
        self.is_whole = self.had_to_go = False

    async def __aenter__(self) -> Self:
        await self._arrival.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bodies.release(self)
        await self._arrival.__aexit__(kind, error, trace)

    def hold(self, size: int) -> None:
        """It has grown to `size`. Raises TooManyBodies."""
        self._bodies.hold(self, size)

    def complete(self) -> None:
        """All of it is there; from now on it may take its time."""
        self.is_whole = True
        self._arrival.reschedule(None)

    def make_way(self) -> None:
        """End its arrival now."""
        self.had_to_go = True
        self._arrival.reschedule(0.0)
