"""What the extender's server serves: routes, limits of request bodies, threads that do the work.

The event loop only moves bytes. Each endpoint's work runs in a thread pool of its own, so that
binds that wait for a lock never delay filters, the webhook or probes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hami_node import __version__
from hami_node.errors import NotLeading, WireError
from hami_node.extender.http.body_limit import BodyLimit, HeldBody, TooManyBodies
from hami_node.extender.http.held_calls import Advice, HeldCalls, SentOn
from hami_node.logs import kv
from hami_node.metrics.server import Check

log: Final = logging.getLogger(__name__)

CLIENT_GONE: Final = 499
"""Counted, never sent: the client disconnected before its request was complete."""

Work = Callable[[bytes], bytes]
OnRequest = Callable[[str, int, float], None]
"""Called per response with route, HTTP status, seconds since the request. Must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """What the server serves. The functions may block; they are called in threads.

    `filter`, `bind`, `preempt` and `webhook` take a body and return JSON; WireError is answered
    with 400, NotLeading as `advise` says: with 503 by default. `metrics` takes an Accept header and
    returns body and content type.
    """

    filter: Work
    bind: Work
    preempt: Work
    webhook: Work
    live: Mapping[str, Check]
    ready: Mapping[str, Check]
    metrics: Callable[[str], tuple[bytes, str]]
    advise: Callable[[], Advice] = lambda: Advice.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What clients may use. Bytes, seconds, numbers of threads and connections.

    20,000 names of nodes are 1 MB, 5 MB if all are as long as they may be; a pod is 3 MiB at most.

    Attributes:
        values: in the JSON of a body; each takes far more memory than its bytes.
        request_s: until a request has arrived, head and body.
        answer_s: until its answer has been read.
        handshake_s: until a client has finished its TLS handshake.
        ordinary_body_bytes: bodies up to this size are not counted.
        large_bodies_bytes: of all larger bodies that are held at a time.
        max_connections: from accept on; half of them may be in their handshake.
        unread_answer_s: a client that acknowledges nothing for so long is gone.
    """

    filter_body_bytes: int = 8 * 1024 * 1024
    bind_body_bytes: int = 64 * 1024
    webhook_body_bytes: int = 4 * 1024 * 1024
    values: int = 250_000
    head_bytes: int = 16 * 1024
    request_s: float = 10.0
    answer_s: float = 10.0
    handshake_s: float = 5.0
    ordinary_body_bytes: int = 64 * 1024
    large_bodies_bytes: int = 32 * 1024 * 1024
    filter_workers: int = 4
    bind_workers: int = 128
    webhook_workers: int = 4
    preempt_workers: int = 2
    max_connections: int = 512
    unread_answer_s: float = 30.0
    certificate_check_s: float = 5.0


class _Refused(Exception):
    """A request that is refused before any work is done."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


Answer = Callable[[Request], Awaitable[Response]]


class Routes:
    """What is served where, and the threads that do the work."""

    def __init__(
        self,
        endpoints: Endpoints,
        limits: ServerLimits,
        on_request: OnRequest,
        paths: Collection[str] | None = None,
    ) -> None:
        """Serve `paths` of the endpoints, or all."""
        self._limits, self._on_request = limits, on_request
        self._bodies = BodyLimit(limits.large_bodies_bytes, limits.ordinary_body_bytes)
        self._held = HeldCalls(endpoints.advise)
        self._pools: list[ThreadPoolExecutor] = []
        posts = {
            "/filter": (endpoints.filter, limits.filter_body_bytes, limits.filter_workers),
            "/bind": (endpoints.bind, limits.bind_body_bytes, limits.bind_workers),
            "/preempt": (endpoints.preempt, limits.filter_body_bytes, limits.preempt_workers),
            "/webhook": (endpoints.webhook, limits.webhook_body_bytes, limits.webhook_workers),
        }
        gets: dict[str, Callable[[Request], Response]] = {
            "/healthz": lambda _: _probe(endpoints.live),
            "/readyz": lambda _: _probe(endpoints.ready),
            "/version": lambda _: _json(200, {"version": __version__}),
            "/metrics": lambda request: _metrics(endpoints, request),
        }
        wanted = {*posts, *gets} if paths is None else set(paths)
        self._routes = [self._post(path, *post) for path, post in posts.items() if path in wanted]
        if wanted & gets.keys():
            pages, metrics = self._pool("pages", 4), self._pool("metrics", 1)
            self._routes += [
                self._get(path, metrics if path == "/metrics" else pages, make)
                for path, make in gets.items()
                if path in wanted
            ]

    def application(self) -> Starlette:
        """The ASGI application."""
        app = Starlette(routes=self._routes, exception_handlers={HTTPException: self._unrouted})
        app.router.redirect_slashes = False
        return app

    def running(self) -> int:
        """How many calls are worked on."""
        return self._held.running

    def close(self) -> None:
        """Let idle threads end; work that still runs can't be stopped, only abandoned."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def _pool(self, name: str, workers: int) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(workers, thread_name_prefix=f"extender-{name}")
        self._pools.append(pool)
        return pool

    def _post(self, path: str, work: Work, max_bytes: int, workers: int) -> Route:
        pool = self._pool(path[1:], workers)

        async def answer(request: Request) -> Response:
            made = await self._worked(request, max_bytes, pool, work)
            return Response(made, media_type="application/json")

        return Route(path, self._guarded(path, answer), methods=["POST"])

    def _get(
        self, path: str, pool: ThreadPoolExecutor, make: Callable[[Request], Response]
    ) -> Route:
        async def answer(request: Request) -> Response:
            return await asyncio.get_running_loop().run_in_executor(pool, make, request)

        return Route(path, self._guarded(path, answer), methods=["GET"])

    def _guarded(self, path: str, answer: Answer) -> Answer:
        async def guarded(request: Request) -> Response:
            now = asyncio.get_running_loop().time
            start_s = now()
            response = await _answered(path, answer, request)
            self._on_request(path, response.status_code, now() - start_s)
            return response

        return guarded

    async def _unrouted(self, request: Request, error: Exception) -> Response:
        """404 and 405, the only errors that come from the routing."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        known = {route.path: sorted(route.methods or ()) for route in self._routes}
        path = request.url.path if request.url.path in known else "other"
        self._on_request(path, status, 0.0)
        if status == 405:
            allowed = ", ".join(known.get(path, ()))
            return _refusal(405, f"{path} accepts {allowed} only", {"Allow": allowed})
        return _refusal(status, f"there is no such path; known paths: {' '.join(known)}")

    async def _worked(
        self, request: Request, max_bytes: int, pool: ThreadPoolExecutor, work: Work
    ) -> bytes:
        """What was made of the body, which is held until then and no longer."""
        loop, limit_s = asyncio.get_running_loop(), self._limits.request_s
        deadline_s = request.scope["state"].get("deadline_s", loop.time() + limit_s)
        held = self._bodies.body(deadline_s)
        try:
            async with held:
                body = await self._read(request, max_bytes, held)
                held.complete()
                return await self._held.answer(lambda: loop.run_in_executor(pool, work, body))
        except TimeoutError as e:
            if held.had_to_go:
                raise _Refused(503, "made way for a newer large request, try again") from e
            raise _Refused(408, f"the body did not arrive within {limit_s:g} s") from e
        except TooManyBodies as e:
            raise _Refused(503, str(e)) from e

    async def _read(self, request: Request, max_bytes: int, held: HeldBody) -> bytes:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise _Refused(415, "the body must not be compressed")
        declared = request.headers.get("content-length")  # digits, or the parser has refused it
        if declared is not None and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        body = BytesIO()  # getvalue() makes no copy
        async for chunk in request.stream():
            if body.tell() + len(chunk) > max_bytes:
                raise _too_large(max_bytes)
            held.hold(body.tell() + len(chunk))
            body.write(chunk)
        whole = body.getvalue()
        if sum(map(whole.count, (b",", b"{", b"["))) > self._limits.values:
            raise _Refused(413, f"the body holds more than {self._limits.values} values")
        return whole


async def _answered(path: str, answer: Answer, request: Request) -> Response:
    """A response, whatever happens."""
    try:
        return await answer(request)
    except _Refused as e:
        return _refusal(e.status, str(e))
    except WireError as e:
        return _refusal(400, str(e))
    except NotLeading as e:
        # kube-scheduler keeps its connection; only a new one reaches the replica that is Ready now
        return _refusal(503, str(e) or "another replica decides", {"Connection": "close"})
    except SentOn:
        headers = {"Connection": "close", "Location": request.url.path}
        return _refusal(307, "another replica decides by now, under the same address", headers)
    except ClientDisconnect:
        log.debug("extender_client_gone", extra=kv(path=path))
        return Response(status_code=CLIENT_GONE)
    except asyncio.CancelledError:  # only by the server's own stop, which does not wait
        return _refusal(503, "the server is stopping")
    except Exception:  # the HTTP handler is where unexpected errors end
        log.exception("extender_request_failed", extra=kv(path=path))
        return _refusal(500, "internal error, see the log")


def _too_large(max_bytes: int) -> _Refused:
    return _Refused(413, f"the body is larger than {max_bytes} bytes")


def _json(status: int, value: Mapping[str, str]) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")


def _refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """`Error` is the key that kube-scheduler reads."""
    text = json.dumps({"Error": sentence})
    return Response(text, status, headers, media_type="application/json")


def _probe(checks: Mapping[str, Check]) -> Response:
    reasons = [f"{name}: {reason}" for name, check in checks.items() if (reason := check())]
    return Response(
        "\n".join(reasons or ["ok"]) + "\n", 503 if reasons else 200, media_type="text/plain"
    )


def _metrics(endpoints: Endpoints, request: Request) -> Response:
    body, content_type = endpoints.metrics(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})
