"""What the extender's server serves, as an ASGI application: routes, limits of bodies, threads.

The event loop only moves bytes. Each endpoint's work runs in threads of its own, so that binds that
wait for a lock never delay filters, the webhook or probes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from hami_node import __version__
from hami_node.errors import NotLeading, WireError
from hami_node.extender.http.serving import ServerLimits
from hami_node.logs import kv
from hami_node.metrics.server import Check

log: Final = logging.getLogger(__name__)

CLIENT_GONE: Final = 499
"""Counted, never sent: the client disconnected before its request was complete."""
_GET: Final = ("GET", "HEAD")
_JSON: Final = b"application/json"

Work = Callable[[bytes], bytes]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
OnRequest = Callable[[str, int, float], None]
"""Called per response with route, HTTP status, seconds since the request. Must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """What the server serves. The functions may block; they are called in threads.

    `filter`, `bind`, `preempt` and `webhook` take a body and return JSON; WireError is answered
    with 400, NotLeading with 503. `metrics` takes an Accept header and returns body and content
    type.
    """

    filter: Work
    bind: Work
    preempt: Work
    webhook: Work
    live: Mapping[str, Check]
    ready: Mapping[str, Check]
    metrics: Callable[[str], tuple[bytes, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; `headers` are those beside length and type."""

    status: int
    body: bytes
    content_type: bytes = _JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


def refusal(status: int, sentence: str, *headers: tuple[bytes, bytes]) -> Answer:
    """`Error` is the key that kube-scheduler reads."""
    return Answer(status, json.dumps({"Error": sentence}).encode(), headers=headers)


class _Refused(Exception):
    """Ends a call before its work."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.answer = refusal(status, sentence)


class _ClientLeft(Exception):
    """Nobody waits for the answer any more."""


class _Call:
    """A request until its answer, as those see it that it has to make way for.

    Attributes:
        task: works on it.
        is_whole: it has arrived.
        is_at_work: a thread works on it.
        why_ended: the sentence of the answer if the task is cancelled.
    """

    __slots__ = ("is_at_work", "is_whole", "task", "why_ended")

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.is_whole = self.is_at_work = False
        self.why_ended = "the server is stopping"

    def make_way(self) -> None:
        """Its bytes are for another one."""
        self.why_ended = "made way for a newer large request, try again"
        if self.task is not None:
            self.task.cancel()


class _Bodies:
    """Bytes of bodies that are held at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[_Call, int] = {}

    def hold(self, call: _Call, size: int) -> None:
        """Its body has grown to `size`. Raises _Refused when no other makes way for it.

        First those make way that are still arriving, for they may never be whole; then, so that
        small ones are answered whatever waits before them, the largest that waits for a thread.
        """
        self._held[call] = size

        def claim(other: _Call) -> tuple[bool, int]:
            return other is call or other.is_whole, -self._held[other]

        while sum(self._held.values()) > self._most:
            least = min((other for other in self._held if not other.is_at_work), key=claim)
            if least is call:
                raise _Refused(503, "busy with other large requests, try again")
            del self._held[least]
            least.make_way()

    def release(self, call: _Call) -> None:
        """It has been answered."""
        self._held.pop(call, None)


class _Workers:
    """The threads of some routes. Calls wait in the event loop: none whose client has left."""

    def __init__(self, name: str, most: int) -> None:
        self.pool = ThreadPoolExecutor(most, thread_name_prefix=f"extender-{name}")
        self._idle, self._waiting = most, dict[asyncio.Future[None], None]()

    def take(self) -> bool:
        """Take an idle thread; False if there is none."""
        if not self._idle:
            return False
        self._idle -= 1
        return True

    async def turn(self, receive: Receive) -> None:
        """Wait for a thread, in order of arrival, and take it. Raises _ClientLeft."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone = asyncio.ensure_future(_left(receive))
        self._waiting[turn] = None
        try:
            await asyncio.wait((turn, gone), return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                raise _ClientLeft
        except BaseException:
            if turn.done():  # it was given just now
                self.give_back()
            else:
                del self._waiting[turn]
            raise
        finally:
            gone.cancel()

    def give_back(self) -> None:
        """A thread is idle again."""
        if not self._waiting:
            self._idle += 1
            return
        turn = next(iter(self._waiting))
        del self._waiting[turn]
        turn.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Route:
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
    workers: _Workers


class Application:
    """For one event loop.

    Attributes:
        running: how many calls are worked on; pages are not counted: nothing has to wait for them.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        limits: ServerLimits,
        on_request: OnRequest,
        paths: Collection[str] | None = None,
    ) -> None:
        """Serve `paths` of the endpoints, or all."""
        self._limits, self._on_request = limits, on_request
        self._bodies = _Bodies(limits.bodies_bytes)
        self._workers: list[_Workers] = []
        self.running = 0
        posts = {
            "/filter": (endpoints.filter, limits.filter_body_bytes, limits.filter_workers),
            "/bind": (endpoints.bind, limits.bind_body_bytes, limits.bind_workers),
            "/preempt": (endpoints.preempt, limits.filter_body_bytes, limits.preempt_workers),
            "/webhook": (endpoints.webhook, limits.webhook_body_bytes, limits.webhook_workers),
        }
        gets: dict[str, Callable[[bytes], Answer]] = {
            "/healthz": lambda _: _probe(endpoints.live),
            "/readyz": lambda _: _probe(endpoints.ready),
            "/version": lambda _: Answer(200, json.dumps({"version": __version__}).encode()),
            "/metrics": lambda accept: _metrics(endpoints, accept),
        }
        wanted = {*posts, *gets} if paths is None else set(paths)
        routes = [self._post(path, *post) for path, post in posts.items() if path in wanted]
        if wanted & gets.keys():
            pages, metrics = self._hire("pages", 4), self._hire("metrics", 1)
            routes += [
                _Route(
                    path=path,
                    methods=_GET,
                    make=make,
                    max_bytes=None,
                    workers=metrics if path == "/metrics" else pages,
                )
                for path, make in gets.items()
                if path in wanted
            ]
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        route = self._routes.get(scope["path"])
        if route is None or scope["method"] not in route.methods:
            answer: Answer | None = self._unserved(route)
        else:
            answer = await self._answered(route, scope, receive)
        if answer is None:
            return
        length = str(len(answer.body)).encode()
        headers = [(b"content-length", length), (b"content-type", answer.content_type)]
        start = {"status": answer.status, "headers": [*headers, *answer.headers]}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": answer.body})

    def close(self) -> None:
        """Let idle threads end; work that still runs can't be stopped, only abandoned."""
        for workers in self._workers:
            workers.pool.shutdown(wait=False, cancel_futures=True)

    def _unserved(self, route: _Route | None) -> Answer:
        if route is None:
            self._on_request("other", 404, 0.0)
            known = " ".join(self._routes)
            return refusal(404, f"there is no such path; known paths: {known}")
        self._on_request(route.path, 405, 0.0)
        allowed = ", ".join(route.methods)
        sentence = f"{route.path} accepts {allowed} only"
        return refusal(405, sentence, (b"allow", allowed.encode()))

    async def _answered(
        self, route: _Route, scope: Mapping[str, Any], receive: Receive
    ) -> Answer | None:
        """The answer; None where nobody waits for it."""
        call, now = _Call(), asyncio.get_running_loop().time
        began_s = now()
        answer: Answer | None = None
        try:
            given = await self._given(route, call, scope, receive)
            answer = await self._worked(route, call, given, receive)
        except _Refused as refused:
            answer = refused.answer
        except _ClientLeft:
            log.debug("extender_client_gone", extra=kv(path=route.path))
        except asyncio.CancelledError:
            answer = refusal(503, call.why_ended)
            if call.task is not None:
                call.task.uncancel()
        finally:
            self._bodies.release(call)
        status = CLIENT_GONE if answer is None else answer.status
        self._on_request(route.path, status, now() - began_s)
        return answer

    # -- the body ----------------------------------------------------------------------------------
    async def _given(
        self, route: _Route, call: _Call, scope: Mapping[str, Any], receive: Receive
    ) -> bytes:
        """Its body, or a page's Accept header.

        Raises:
            _Refused: it won't be read.
            _ClientLeft: its rest does not come.
        """
        most = route.max_bytes
        if most is None:
            return next((value for name, value in scope["headers"] if name == b"accept"), b"")
        for name, value in scope["headers"]:
            if name == b"content-encoding" and value.lower() != b"identity":
                raise _Refused(415, "the body must not be compressed")
            if name == b"content-length" and int(value) > most:  # the parser refuses other texts
                raise _Refused(413, f"the body is larger than {most} bytes")
        body = await self._all_of(most, call, receive)
        call.is_whole = True
        most = self._limits.values
        # each value has a byte of its own: a body with fewer bytes has no more values
        if len(body) > most and sum(map(body.count, (b",", b"{", b"["))) > most:
            raise _Refused(413, f"the body holds more than {most} values")
        return body

    async def _all_of(self, most: int, call: _Call, receive: Receive) -> bytes:
        first, body = b"", bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            piece: bytes = message["body"]
            size = len(first) + len(body) + len(piece)
            if size > most:
                raise _Refused(413, f"the body is larger than {most} bytes")
            if piece:
                self._bodies.hold(call, size)
            if first or body:
                body += piece
            else:
                first = piece  # most have one part
            if first and body:
                body[:0], first = first, b""
            if not message["more_body"]:
                return first or bytes(body)

    # -- the work ----------------------------------------------------------------------------------
    async def _worked(self, route: _Route, call: _Call, given: bytes, receive: Receive) -> Answer:
        """What becomes of a call once a thread is idle; work that has begun goes on in any case."""
        workers, loop = route.workers, asyncio.get_running_loop()
        if not workers.take():
            await workers.turn(receive)
        call.is_at_work = True
        is_counted = route.max_bytes is not None
        self.running += is_counted
        result: asyncio.Future[Answer] = loop.create_future()

        def end(outcome: Answer) -> None:
            workers.give_back()
            self.running -= is_counted
            if not result.done():
                result.set_result(outcome)

        def run() -> None:
            outcome = _made(route, given)
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(end, outcome)

        workers.pool.submit(run)
        return await result

    # -- routes ------------------------------------------------------------------------------------
    def _hire(self, name: str, most: int) -> _Workers:
        workers = _Workers(name, most)
        self._workers.append(workers)
        return workers

    def _post(self, path: str, work: Work, max_bytes: int, workers: int) -> _Route:
        return _Route(
            path=path,
            methods=("POST",),
            make=lambda body: Answer(200, work(body)),
            max_bytes=max_bytes,
            workers=self._hire(path[1:], workers),
        )


async def _left(receive: Receive) -> None:
    """Wait until the client leaves; of a page's body nothing was read yet."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _made(route: _Route, given: bytes) -> Answer:
    """In a thread of the route."""
    try:
        return route.make(given)
    except WireError as e:
        return refusal(400, str(e))
    except NotLeading as e:
        # kube-scheduler keeps its connection; only a new one reaches the replica that leads now
        sentence = str(e) or "another replica decides"
        return refusal(503, sentence, (b"connection", b"close"))
    except Exception:  # the HTTP handler is where unexpected errors end
        log.exception("extender_request_failed", extra=kv(path=route.path))
        return refusal(500, "internal error, see the log")


def _probe(checks: Mapping[str, Check]) -> Answer:
    reasons = [f"{name}: {reason}" for name, check in checks.items() if (reason := check())]
    text = "\n".join(reasons or ["ok"]) + "\n"
    return Answer(503 if reasons else 200, text.encode(), b"text/plain; charset=utf-8")


def _metrics(endpoints: Endpoints, accept: bytes) -> Answer:
    body, content_type = endpoints.metrics(accept.decode("latin-1"))
    return Answer(200, body, content_type.encode("latin-1"))
