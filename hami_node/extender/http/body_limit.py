"""The limit of bodies: when too many bytes are held, some of them make way."""

from __future__ import annotations

from typing import Protocol

from hami_node.errors import HamiError


class TooManyBodies(HamiError):
    """The bytes of other bodies leave none for this one."""


class HeldBody(Protocol):
    """One body, from its first byte to its answer.

    Attributes:
        is_whole: it has arrived.
        is_at_work: a thread reads it.
    """

    is_whole: bool
    is_at_work: bool

    def make_way(self) -> None:
        """Release its bytes now: they are for another one."""


class BodyLimit:
    """Bytes of bodies that are held at a time. For one event loop."""

    def __init__(self, most: int) -> None:
        """Hold so many bytes at most."""
        self._most = most
        self._held: dict[HeldBody, int] = {}

    def hold(self, body: HeldBody, size: int) -> None:
        """It has grown to `size`. Raises TooManyBodies when no other makes way for it.

        First those make way that are still arriving, for they may never be whole; then, so that
        small ones are answered whatever waits before them, the largest that waits for a thread.
        """
        self._held[body] = size

        def claim(other: HeldBody) -> tuple[bool, int]:
            return other is body or other.is_whole, -self._held[other]

        while sum(self._held.values()) > self._most:
            least = min((other for other in self._held if not other.is_at_work), key=claim)
            if least is body:
                raise TooManyBodies("busy with other large requests, try again")
            least.make_way()

    def release(self, body: HeldBody) -> None:
        """It has been answered."""
        self._held.pop(body, None)
