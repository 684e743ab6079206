"""Calls that arrive while the lead changes are held for a moment, so that none of them is lost.

They end in one of three ways: this replica decides now, and the call is worked on; another one
decides and is found under the same address, where the call is sent again (307); or nobody knows, as
in an outage, and the call is refused. Go's HTTP client, and so kube-scheduler, follows a 307 with
the same method and body, up to nine times, over a new connection where this one is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Final, TypeVar

from hami_node.errors import NotLeading

HOLD_S: Final = 3.0
"""A call is held for so long at most."""
FIRST_HOP_S: Final = 0.1
"""Before a call is sent on that has waited for the next leader."""
HOP_S: Final = 0.25
"""Before one that comes later: as often as a client follows, kube-proxy has two seconds."""
LOOK_S: Final = 0.01

T = TypeVar("T")


class Advice(Enum):
    """What becomes of a call that this replica can't decide."""

    AGAIN = auto()
    """It can by now."""
    WAIT = auto()
    """It, or another one, can in a moment."""
    ELSEWHERE = auto()
    """Another replica can, under the same address."""
    REFUSE = auto()


class SentOn(Exception):
    """The call has to be sent again, to the same address, over a new connection."""


class HeldCalls:
    """Works on calls; all in the server's event loop, but for `running`."""

    def __init__(self, advise: Callable[[], Advice]) -> None:
        """`advise` is asked often, and returns at once."""
        self._advise = advise
        self._elsewhere_s: float | None = None
        self.running = 0

    async def answer(self, work: Callable[[], Awaitable[T]]) -> T:
        """Work until this replica decides, or has decided otherwise.

        Raises:
            NotLeading: another replica decides, or nobody.
            SentOn: the call has to be sent again.
        """
        ends_s = asyncio.get_running_loop().time() + HOLD_S
        try:
            return await self._counted(work)
        except NotLeading as e:
            error = e
        return await self.go_on(work, error, ends_s)

    async def go_on(self, work: Callable[[], Awaitable[T]], error: NotLeading, ends_s: float) -> T:
        """The same for a call that has failed with `error`; it is held until `ends_s` at most."""
        while await self._held(ends_s):
            try:
                return await self._counted(work)
            except NotLeading as e:
                error = e
        raise error

    async def _counted(self, work: Callable[[], Awaitable[T]]) -> T:
        self.running += 1
        try:
            return await work()
        finally:
            self.running -= 1

    async def _held(self, ends_s: float) -> bool:
        """Wait for a change; True if the call can be worked on now."""
        now = asyncio.get_running_loop().time
        while now() < ends_s:
            match self._advise():
                case Advice.REFUSE:
                    return False
                case Advice.ELSEWHERE:
                    await asyncio.sleep(self._hop_s(now()))
                    raise SentOn
                case Advice.AGAIN:
                    await asyncio.sleep(LOOK_S)
                    return True
                case Advice.WAIT:
                    self._elsewhere_s = None
                    await asyncio.sleep(LOOK_S)
        return False

    def _hop_s(self, now_s: float) -> float:
        if self._elsewhere_s is None:
            self._elsewhere_s = now_s
        return FIRST_HOP_S if now_s - self._elsewhere_s < FIRST_HOP_S else HOP_S
