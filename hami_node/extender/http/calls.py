"""One request to the extender's server, from its head to its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Final

from hami_node.errors import NotLeading, WireError
from hami_node.extender.http.answers import Answer, refusal
from hami_node.extender.http.body_limit import BodyLimit, TooManyBodies
from hami_node.extender.http.held_calls import HOLD_S, HeldCalls, SentOn
from hami_node.extender.http.server_limits import ServerLimits
from hami_node.logs import kv

log: Final = logging.getLogger(__name__)

CLIENT_GONE: Final = 499
"""Counted, never sent: the client disconnected before its request was complete."""

Header = tuple[bytes, bytes]
OnRequest = Callable[[str, int, float], None]
"""Called per response with route, HTTP status, seconds since the request. Must not block."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    """What is served under one path.

    Attributes:
        path: the path.
        methods: the accepted ones, sorted.
        make: from a body, or an Accept header, to the answer; it may block.
        max_bytes: of a body; None for a page, whose body is not read.
        workers: the threads that do the work.
    """

    path: str
    methods: tuple[str, ...]
    make: Callable[[bytes], Answer]
    max_bytes: int | None
    workers: Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What all calls of a server share; for one event loop."""

    limits: ServerLimits
    bodies: BodyLimit
    held: HeldCalls
    on_request: OnRequest


class Workers:
    """The threads of some routes, and the calls that wait for one. For one event loop.

    Calls wait here, not in the pool, so that none waits whose client has left.

    Attributes:
        pool: the threads.
    """

    def __init__(self, name: str, most: int) -> None:
        """Work on `most` calls at a time."""
        self.pool = ThreadPoolExecutor(most, thread_name_prefix=name)
        self._idle, self._waiting = most, dict[Call, None]()

    def add(self, call: Call) -> None:
        """Begin its work as soon as a thread is idle."""
        self._waiting[call] = None
        self._begin()

    def remove(self, call: Call) -> None:
        """Nobody waits for its answer any more."""
        self._waiting.pop(call, None)

    def end(self) -> None:
        """The work on a call has ended."""
        self._idle += 1
        self._begin()

    def _begin(self) -> None:
        if self._idle and self._waiting:
            self._idle -= 1
            call = next(iter(self._waiting))
            del self._waiting[call]
            call.begin_work()


class Call:
    """One request and its answer, which is sent once. In the event loop, but for the work.

    Attributes:
        is_whole: it has arrived.
        is_at_work: a thread works on it.
        is_answered: its answer has been given to `send`, or nobody is there to read it.
    """

    __slots__ = (
        "_began_s",
        "_body",
        "_loop",
        "_parts",
        "_route",
        "_send",
        "_shared",
        "_size",
        "_task",
        "is_answered",
        "is_at_work",
        "is_whole",
    )

    def __init__(
        self,
        route: Route,
        shared: Counters,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Answer], None],
    ) -> None:
        """A request to `route`; `send` takes the answer."""
        self._route, self._shared, self._loop, self._send = route, shared, loop, send
        self._began_s = loop.time()
        self._body = b""
        self._parts: BytesIO | None = None
        self._size = 0
        self._task: asyncio.Task[None] | None = None
        self.is_whole = self.is_at_work = self.is_answered = False

    def begin(self, headers: Sequence[Header]) -> None:
        """Its head has come; a body that won't be read is refused."""
        most = self._route.max_bytes
        for name, value in headers:
            if most is None:
                if name == b"accept":
                    self._body = value
            elif name == b"content-encoding" and value.lower() != b"identity":
                self.refuse(415, "the body must not be compressed")
                return
            elif name == b"content-length" and int(value) > most:  # the parser refuses other texts
                self.refuse(413, _too_large(most))
                return
        if most is None:
            self._route.workers.add(self)

    def take(self, data: bytes) -> None:
        """A part of its body."""
        most = self._route.max_bytes
        if most is None or self.is_answered:
            return
        size = self._size + len(data)
        if size > most:
            self.refuse(413, _too_large(most))
            return
        try:
            self._shared.bodies.hold(self, size)
        except TooManyBodies as e:
            self.refuse(503, str(e))
            return
        self._size = size
        if not self._body and self._parts is None:
            self._body = data  # most have one part
            return
        if self._parts is None:
            self._parts = BytesIO()  # getvalue() makes no copy
            self._parts.write(self._body)
        self._parts.write(data)

    def complete(self) -> None:
        """All of it is there; from now on it may take its time."""
        self.is_whole = True
        if self.is_answered or self._route.max_bytes is None:
            return
        body = self._body if self._parts is None else self._parts.getvalue()
        most = self._shared.limits.values
        # each value has a byte of its own: a body with fewer bytes has no more values
        if len(body) > most and sum(map(body.count, (b",", b"{", b"["))) > most:
            self.refuse(413, f"the body holds more than {most} values")
            return
        self._body, self._parts = body, None
        self._route.workers.add(self)

    # -- ends --------------------------------------------------------------------------------------
    def refuse(self, status: int, sentence: str) -> None:
        """Answer at once, whatever is still to come."""
        self._answer(refusal(status, sentence))

    def expire(self) -> None:
        """Its body has not arrived in time."""
        limit_s = self._shared.limits.request_s
        self.refuse(408, f"the body did not arrive within {limit_s:g} s")

    def make_way(self) -> None:
        """Its bytes are for another one."""
        self._give_up()
        self.refuse(503, "made way for a newer large request, try again")

    def stop(self) -> None:
        """The server ends."""
        self._give_up()
        self.refuse(503, "the server is stopping")

    def leave(self) -> None:
        """The client has gone. Work that has begun goes on, and is counted; other is dropped."""
        if self.is_at_work or self.is_answered:
            return
        log.debug("extender_client_gone", extra=kv(path=self._route.path))
        self._give_up()
        self._end(CLIENT_GONE)

    # -- work --------------------------------------------------------------------------------------
    def begin_work(self) -> None:
        """A thread is idle."""
        self.is_at_work = True
        self._count_running(1)
        given = self._body
        self._drop()
        self._route.workers.pool.submit(self._run, given)

    def _end_work(self) -> None:
        self.is_at_work = False
        self._route.workers.end()
        self._count_running(-1)

    def _give_up(self) -> None:
        """Nobody waits for work that has not begun."""
        self._route.workers.remove(self)
        if self._task is not None:
            self._task.cancel()

    def _run(self, given: bytes) -> None:
        """In a thread of the route."""
        try:
            answer = self._route.make(given)
        except NotLeading as e:
            self._deliver(partial(self._hold, given, e))
        except Exception as e:  # noqa: BLE001 - the HTTP handler is where unexpected errors end
            self._deliver(partial(self._worked, _failed(self._route.path, e)))
        else:
            self._deliver(partial(self._worked, answer))

    def _deliver(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(what)

    def _worked(self, answer: Answer) -> None:
        self._end_work()
        self._answer(answer)

    def _hold(self, given: bytes, error: NotLeading) -> None:
        """Another replica decides: wait in a task for what becomes of that."""
        self._end_work()
        self._task = self._loop.create_task(self._held(given, error))

    async def _held(self, given: bytes, error: NotLeading) -> None:
        pool, make = self._route.workers.pool, self._route.make

        async def again() -> Answer:
            self.is_at_work = True
            try:
                return await self._loop.run_in_executor(pool, make, given)
            finally:
                self.is_at_work = False

        try:
            answer = await self._shared.held.go_on(again, error, self._began_s + HOLD_S)
        except Exception as e:  # noqa: BLE001 - as above
            answer = _failed(self._route.path, e)
        self._answer(answer)

    def _count_running(self, more: int) -> None:
        """Pages are not counted: nothing has to wait for them."""
        if self._route.max_bytes is not None:
            self._shared.held.running += more

    def _answer(self, answer: Answer) -> None:
        if self.is_answered:
            return
        self._end(answer.status)
        self._send(answer)

    def _end(self, status: int) -> None:
        self.is_answered = True
        self._drop()
        self._shared.bodies.release(self)
        seconds = self._loop.time() - self._began_s
        self._shared.on_request(self._route.path, status, seconds)

    def _drop(self) -> None:
        self._body, self._parts = b"", None


def _failed(path: str, error: Exception) -> Answer:
    """What the client is told."""
    if isinstance(error, WireError):
        return refusal(400, str(error))
    if isinstance(error, NotLeading):
        # kube-scheduler keeps its connection; only a new one reaches the replica that is Ready now
        return refusal(503, str(error) or "another replica decides", closes=True)
    if isinstance(error, SentOn):
        sentence = "another replica decides by now, under the same address"
        return refusal(307, sentence, ("location", path), closes=True)
    log.error("extender_request_failed", exc_info=error, extra=kv(path=path))
    return refusal(500, "internal error, see the log")


def _too_large(max_bytes: int) -> str:
    return f"the body is larger than {max_bytes} bytes"
