"""One client connection of the extender's server, with limits that uvicorn does not have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from hami_node.extender.http.routes import ServerLimits

LINGER_S: Final = 2.0
"""How much longer a refused body is read and dropped, so that the client receives the response."""


class ClientConnection(HttpToolsProtocol):
    """One client. uvicorn limits neither the size of a request's head nor the time to send it."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        limits: ServerLimits,
        admits: Callable[[], bool],
    ) -> None:
        """Serve the application of `config`. `admits` returns whether a new connection may stay."""
        super().__init__(config, server_state, app_state={})
        self._limits, self._admits = limits, admits
        self._is_in_head, self._head_bytes = False, 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        """Accept the client, or close the connection when there are too many."""
        super().connection_made(transport)
        if not self._admits():
            transport.abort()
            return
        self._limit_time(self._limits.body_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._limit_time(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the head is too long."""
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes and not self.transport.is_closing():
                self._hang_up(431, f"the head is larger than {self._limits.head_bytes} bytes")

    def on_message_begin(self) -> None:
        """The head begins."""
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0
        self._limit_time(self._limits.body_timeout_s)

    def on_headers_complete(self) -> None:
        """The body begins; its reader has its own, shorter limit."""
        self._is_in_head = False
        self._limit_time(2 * self._limits.body_timeout_s + LINGER_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._limit_time(None)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._hang_up(400, msg)

    def _limit_time(self, limit_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if limit_s is None else self.loop.call_later(limit_s, self._expire)

    def _expire(self) -> None:
        if self._is_in_head:
            self._hang_up(408, f"the head did not arrive within {self._limits.body_timeout_s:g} s")
        else:
            self.transport.close()

    def _hang_up(self, status: int, sentence: str) -> None:
        body = json.dumps({"Error": sentence}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
