"""One client connection of the extender's server, with limits that uvicorn does not have."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from hami_node.extender.http.connection_limit import AcceptedConnection, Stage
from hami_node.extender.http.server_limits import ServerLimits

LINGER_S: Final = 2.0
"""How much longer a refused body is read and dropped, so that the client receives the response."""
MAX_HEADERS: Final = 100

WhyNot = Callable[[ssl.SSLObject], str]
"""Why the client with this certificate is not answered; "" when it is."""


class _HungUp(Exception):
    """Ends the parser's work on what a refused client has sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionParts:
    """What a connection needs of its server.

    Attributes:
        limits: what clients may use.
        accepted: the connection's place among the others.
        why_not: accepted clients only are served, where it is set.
        on_end: called when it has ended.
    """

    limits: ServerLimits
    accepted: AcceptedConnection
    why_not: WhyNot | None
    on_end: Callable[[AcceptedConnection], None]


class ClientConnection(HttpToolsProtocol):
    """One client. uvicorn limits neither the size of a request's head nor any time.

    Attributes:
        deadline_s: when the present request has to be complete; time of the event loop.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, parts: ConnectionParts
    ) -> None:
        """Serve the application of `config`."""
        super().__init__(config, server_state, app_state={})
        self._limits, self._accepted, self._why_not = parts.limits, parts.accepted, parts.why_not
        self._on_end = parts.on_end
        self._stranger = ""
        self._is_in_head, self._sent_bytes, self._parsed_bytes = False, 0, 0
        self.deadline_s = 0.0
        self._due_s: float | None = None
        self._is_idle = False
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        """Its handshake is over, if there was one."""
        super().connection_made(transport)
        accepted = self._accepted
        accepted.leave, accepted.stage = transport.abort, Stage.WAITING
        # So that each byte that a client leaves unread is noticed.
        transport.set_write_buffer_limits(high=1, low=0)
        if self._why_not is not None:
            self._stranger = self._why_not(transport.get_extra_info("ssl_object"))
            accepted.is_known = not self._stranger
        self._limit_time(self._limits.request_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._due_s = None
        if self._timer is not None:
            self._timer.cancel()
        if self._unread is not None:
            self._unread.cancel()
        self._on_end(self._accepted)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the head is too long."""
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head:
            self._sent_bytes += len(data)
            self._check_head(self._sent_bytes)
        if (self._due_s is None or self._is_idle) and self._accepted.stage is Stage.WAITING:
            self._is_idle = False
            self._limit_time(self._limits.request_s)  # it has sent no more than empty lines

    def on_message_begin(self) -> None:
        """The head begins."""
        if self.is_busy():
            self._hang_up(400, "a request must wait for the answer to the one before")
            raise _HungUp
        self.begin_head()
        self._is_in_head, self._sent_bytes, self._parsed_bytes = True, 0, 0
        self._is_idle = False
        self.deadline_s = self.loop.time() + self._limits.request_s
        self._limit_time_at(self.deadline_s)

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        self._count_parsed(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or one that follows the body."""
        self._count_parsed(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            self._hang_up(431, f"there are more than {MAX_HEADERS} headers")
            raise _HungUp
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body begins; its reader ends at the deadline and answers, hence the longer limit."""
        self._is_in_head = False
        if self._stranger:
            self._hang_up(403, self._stranger)
            raise _HungUp
        self._limit_time(self._limits.request_s + LINGER_S)
        self.begin_body()

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._due_s = None
        if self.is_busy():
            self._accepted.stage = Stage.WORKING
        self.end_body()

    def on_response_complete(self) -> None:
        """The answer is written; as far as it is unread, `pause_writing` has been called."""
        self._note_answer()
        super().on_response_complete()

    # -- for those who answer without an application -----------------------------------------------
    def is_busy(self) -> bool:
        """Whether a request has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def begin_head(self) -> None:
        """A request begins."""
        super().on_message_begin()

    def begin_body(self) -> None:
        """Its head is complete."""
        super().on_headers_complete()

    def end_body(self) -> None:
        """All of it is there."""
        super().on_message_complete()

    def expire_body(self) -> None:
        """Its body has not come in time."""
        self.transport.close()

    def stop(self) -> None:
        """The server ends; the application's tasks have been cancelled."""

    def be_idle(self, limit_s: float) -> None:
        """Close the connection if no request comes for so long."""
        self._is_idle = True
        self._limit_time(limit_s)

    def _note_answer(self) -> None:
        self._accepted.stage, self._accepted.since_s = Stage.WAITING, self.loop.time()

    def pause_writing(self) -> None:
        """The client has not read all yet."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._limits.answer_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read all."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._hang_up(400, msg)

    def _check_head(self, size: int) -> None:
        if size > self._limits.head_bytes:
            self._hang_up(431, f"the head is larger than {self._limits.head_bytes} bytes")

    def _count_parsed(self, size: int) -> None:
        """Of a head that comes in one piece, or of headers that follow the body."""
        self._parsed_bytes += size
        self._check_head(self._parsed_bytes)
        if self.transport.is_closing():
            raise _HungUp

    def _limit_time(self, limit_s: float) -> None:
        self._limit_time_at(self.loop.time() + limit_s)

    def _limit_time_at(self, due_s: float) -> None:
        """One timer serves many limits: it is set anew when it has run out, or comes too late."""
        self._due_s = due_s
        timer = self._timer
        if timer is not None:
            if timer.when() <= due_s:
                return
            timer.cancel()
        self._timer = self.loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._due_s is None:
            return
        if self.loop.time() < self._due_s:
            self._timer = self.loop.call_at(self._due_s, self._look)
            return
        self._due_s = None
        self._expire()

    def _expire(self) -> None:
        if self._is_in_head:
            self._hang_up(408, f"the head did not arrive within {self._limits.request_s:g} s")
        else:
            self.expire_body()

    def _hang_up(self, status: int, sentence: str) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps({"Error": sentence}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def accepts_only(name: str) -> WhyNot:
    """Accept the clients whose certificate has this common name or DNS name."""

    def why_not(connection: ssl.SSLObject) -> str:
        # Its authority, its dates and its purpose have been verified in the handshake.
        shown: dict[str, Any] = dict(connection.getpeercert() or {})
        subject = [pair for part in shown.get("subject", ()) for pair in part]
        names = [text for kind, text in subject if kind == "commonName"]
        names += [text for kind, text in shown.get("subjectAltName", ()) if kind == "DNS"]
        if name in names:
            return ""
        return f"only the client {name} is answered; this certificate names {names or 'nobody'}"

    return why_not
