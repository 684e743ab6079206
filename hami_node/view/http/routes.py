"""What is served where. The event loop only moves bytes; answers are worked out in threads."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hami_node.errors import KubeError, NotFound, WireError
from hami_node.logs import kv
from hami_node.view.feed import Feed
from hami_node.view.http.event_stream import BEAT_S, PAUSE_S, EventStream
from hami_node.view.http.guard import HEALTH
from hami_node.view.http.page_files import PageFile, page_files
from hami_node.view.http.query import Query

log: Final = logging.getLogger(__name__)

WORKERS: Final = 4
MAX_BUSY: Final = 32
"""Requests that are worked on or wait for a thread."""
_WORTH_PACKING: Final = 1400
_PACKING: Final = 3

Answer = Callable[[Query], Mapping[str, Any]]
"""Raises WireError for a wrong parameter, NotFound for what is not there."""


class Routes:
    """The ASGI application behind the guard."""

    def __init__(
        self,
        answers: Mapping[str, Answer],
        feed: Feed,
        *,
        beat_s: float = BEAT_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Serve `answers` by their path, the page's files, and the stream of changes."""
        self._answers, self._feed = answers, feed
        self._beat_s, self._pause_s = beat_s, pause_s
        self._files = page_files()
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="view")
        self._busy = 0

    def close(self) -> None:
        """Let idle threads end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that the guard let through."""
        request, path = Request(scope), scope["path"]
        if path == "/api/stream" and request.method == "GET":
            mark = request.headers.get("last-event-id") or request.query_params.get("after", "")
            stream = EventStream(self._feed, mark, beat_s=self._beat_s, pause_s=self._pause_s)
            await stream(scope, receive, send)
            return
        response = await self._respond(request, path)
        await response(scope, receive, send)

    async def _respond(self, request: Request, path: str) -> Response:
        if path == HEALTH:
            return Response("ok\n", media_type="text/plain")
        if path in self._files:
            return _file(request, self._files[path])
        answer = self._answers.get(path)
        if answer is None:
            return _json(404, {"error": "there is no such page"})
        if self._busy >= MAX_BUSY:
            return _json(503, {"error": "too many requests at once"}, {"Retry-After": "1"})
        self._busy += 1
        is_packed = "gzip" in request.headers.get("accept-encoding", "")
        try:
            work = asyncio.get_running_loop().run_in_executor(
                self._pool, _worked, answer, Query(request.query_params), path, is_packed
            )
            return await asyncio.shield(work)
        finally:
            self._busy -= 1


def _worked(answer: Answer, query: Query, path: str, is_packed: bool) -> Response:
    """The response, whatever happens."""
    try:
        return _json(200, answer(query), is_packed=is_packed)
    except WireError as e:
        return _json(400, {"error": str(e)})
    except NotFound as e:
        return _json(404, {"error": str(e)})
    except KubeError as e:
        return _json(502, {"error": str(e)})
    except Exception:  # the HTTP handler is where unexpected errors end
        log.exception("view_request_failed", extra=kv(path=path))
        return _json(500, {"error": "internal error, see the log of hami-node view"})


def _json(
    status: int,
    value: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    *,
    is_packed: bool = False,
) -> Response:
    body = msgspec.json.encode(value)
    more = {"Cache-Control": "no-store", **(headers or {})}
    if is_packed and len(body) > _WORTH_PACKING:
        body = gzip.compress(body, _PACKING)
        more |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(body, status, more, media_type="application/json")


def _file(request: Request, file: PageFile) -> Response:
    headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
    known = request.headers.get("if-none-match", "").split(",")
    if any(text.strip().removeprefix("W/") == file.etag for text in known):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={**headers, "Content-Type": file.content_type})
