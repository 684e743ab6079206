"""Server-sent events: what has changed, to one page that listens."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from hami_node.view.feed import Delta, Feed

BEAT_S: Final = 15.0
"""A page that hears nothing for longer connects again."""
PAUSE_S: Final = 1.0
"""Changes within this time are one event."""
RETRY_MS: Final = 3000
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # an ingress must not collect them
)


class EventStream:
    """The response to a page that listens. It goes on after the mark that the page has seen."""

    def __init__(self, feed: Feed, mark: str, *, beat_s: float, pause_s: float) -> None:
        """Send what comes after `mark`; "" for all."""
        self._feed, self._mark = feed, mark
        self._beat_s, self._pause_s = beat_s, pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the page has gone or the server stops."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(woken.set)

        if not self._feed.join(wake):
            await _send_full(send)
            return
        try:
            # `send` waits while the page reads nothing; the connection's own limit ends that
            gone = asyncio.create_task(_gone(receive))
            sent = asyncio.create_task(self._send(send, woken))
            await asyncio.wait((gone, sent), return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, sent):
                task.cancel()
            await asyncio.gather(gone, sent, return_exceptions=True)
        finally:
            self._feed.leave(wake)

    async def _send(self, send: Send, woken: asyncio.Event) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await _write(send, f"retry: {RETRY_MS}\n\n")
        while not self._feed.is_closed:
            woken.clear()
            delta = self._feed.since(self._mark)
            if delta is not None:
                self._mark = delta.mark
                await _write(send, _event(delta))
                await asyncio.sleep(self._pause_s)
                continue
            try:
                async with asyncio.timeout(self._beat_s):  # 3.11's `wait_for` may lose a cancel
                    await woken.wait()
            except TimeoutError:
                await _write(send, "event: beat\ndata:\n\n")
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


def _event(delta: Delta) -> str:
    change = delta.change
    data: dict[str, Any] = {
        "summary": delta.summary,
        "nodes": None if change.nodes is None else sorted(change.nodes),
        "waiting": change.is_waiting_changed,
    }
    text = msgspec.json.encode(data).decode()  # without a line break
    return f"id: {delta.mark}\nevent: change\ndata: {text}\n\n"


async def _send_full(send: Send) -> None:
    body = b'{"error": "too many pages listen; this one asks every 15 s instead"}'
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"15")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
