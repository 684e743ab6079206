"""What the extender's server serves: routes, limits of request bodies, threads that do the work.

The event loop only moves bytes. Each endpoint's work runs in a thread pool of its own, so that
binds that wait for a lock never delay filters, the webhook or probes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
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

    `filter`, `bind` and `webhook` take a body and return JSON; WireError is answered with 400,
    NotLeading with 503. `metrics` takes an Accept header and returns body and content type.
    """

    filter: Work
    bind: Work
    webhook: Work
    live: Mapping[str, Check]
    ready: Mapping[str, Check]
    metrics: Callable[[str], tuple[bytes, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What clients may use. Bytes, seconds, numbers of threads and connections.

    20,000 names of nodes are 1 MB; 20,000 whole nodes are 125 MiB without and 324 MiB with the 50
    images that kubelet lists at most. Such a body is held in memory once, and one at a time.
    """

    filter_body_bytes: int = 384 * 1024 * 1024
    bind_body_bytes: int = 64 * 1024
    webhook_body_bytes: int = 8 * 1024 * 1024
    head_bytes: int = 64 * 1024
    body_timeout_s: float = 10.0
    large_body_bytes: int = 8 * 1024 * 1024
    large_bodies: int = 1
    filter_workers: int = 4
    bind_workers: int = 128
    webhook_workers: int = 4
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

    def __init__(self, endpoints: Endpoints, limits: ServerLimits, on_request: OnRequest) -> None:
        self._limits, self._on_request = limits, on_request
        self._large_bodies = asyncio.Semaphore(limits.large_bodies)
        self._pools: list[ThreadPoolExecutor] = []
        post, pages = self._post, self._pool("pages", 4)
        self._routes = [
            post("/filter", endpoints.filter, limits.filter_body_bytes, limits.filter_workers),
            post("/bind", endpoints.bind, limits.bind_body_bytes, limits.bind_workers),
            post("/webhook", endpoints.webhook, limits.webhook_body_bytes, limits.webhook_workers),
            self._get("/healthz", pages, lambda _: _probe(endpoints.live)),
            self._get("/readyz", pages, lambda _: _probe(endpoints.ready)),
            self._get("/metrics", self._pool("metrics", 1), lambda r: _metrics(endpoints, r)),
            self._get("/version", pages, lambda _: _json(200, {"version": __version__})),
        ]

    def application(self) -> Starlette:
        """The ASGI application."""
        app = Starlette(routes=self._routes, exception_handlers={HTTPException: self._unrouted})
        app.router.redirect_slashes = False
        return app

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
            async with self._body(request, max_bytes) as body:
                made = await asyncio.get_running_loop().run_in_executor(pool, work, body)
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

    @asynccontextmanager
    async def _body(self, request: Request, max_bytes: int) -> AsyncIterator[bytes]:
        """The whole body. Only few large bodies are held at a time, until they are answered."""
        declared = request.headers.get("content-length")  # digits, or the parser has refused it
        if declared is not None and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        if "transfer-encoding" not in request.headers and (
            int(declared or 0) <= self._limits.large_body_bytes
        ):
            yield await self._read(request, max_bytes)
            return
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                await self._large_bodies.acquire()
        except TimeoutError as e:
            raise _Refused(503, "busy with other large requests, try again") from e
        try:
            yield await self._read(request, max_bytes)
        finally:
            self._large_bodies.release()

    async def _read(self, request: Request, max_bytes: int) -> bytes:
        limit_s, body = self._limits.body_timeout_s, BytesIO()  # getvalue() makes no copy
        try:
            async with asyncio.timeout(limit_s):
                async for chunk in request.stream():
                    if body.tell() + len(chunk) > max_bytes:
                        raise _too_large(max_bytes)
                    body.write(chunk)
        except TimeoutError as e:
            raise _Refused(408, f"the body did not arrive within {limit_s:g} s") from e
        return body.getvalue()


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
