"""A connection whose requests are answered without a task, a scope and messages for each.

kube-scheduler asks twice for each pod, over one connection: what every request costs counts.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.server import ServerState

from hami_node.extender.http.answers import Answer
from hami_node.extender.http.calls import Call
from hami_node.extender.http.connection import LINGER_S, ClientConnection, ConnectionParts
from hami_node.extender.http.routes import Routes

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class CallConnection(ClientConnection):
    """One client of the extender: one call at a time."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        parts: ConnectionParts,
        routes: Routes,
    ) -> None:
        """Serve `routes`."""
        super().__init__(config, server_state, parts)
        self._routes = routes
        self._call: Call | None = None
        self._unsent: Answer | None = None
        self._is_begun = self._is_whole = self._is_answered = self._is_last = False
        self._has_body = True

    # -- the request -------------------------------------------------------------------------------
    def is_busy(self) -> bool:
        """Whether a request has come that is not answered yet."""
        return self._is_begun and not self._is_answered

    def begin_head(self) -> None:
        """A request begins."""
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._call, self._is_begun = None, False
        self._is_whole = self._is_answered = False

    def begin_body(self) -> None:
        """Its head is complete."""
        self._limit_time_at(self.deadline_s)
        method = self.parser.get_method().decode("ascii")
        self._has_body = method != "HEAD"
        self._is_last = not self.parser.should_keep_alive() or (
            self.parser.get_http_version() == "1.0"
        )
        self._is_begun = True
        route = self._routes.find(method, self._path())
        if isinstance(route, Answer):
            self._take_answer(route)
            return
        self._call = call = Call(route, self._routes.shared, self.loop, self._take_answer)
        call.begin(self.headers)
        if self.expect_100_continue and route.max_bytes is not None and not self._is_answered:
            self.transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """A part of the body, which is dropped once the request is answered."""
        if self._call is not None:
            self._call.take(body)

    def end_body(self) -> None:
        """The request is complete."""
        self._is_whole = True
        if self._is_answered:
            self._rest()
        elif self._call is not None:
            self._call.complete()

    # -- the answer --------------------------------------------------------------------------------
    def _take_answer(self, answer: Answer) -> None:
        """Send it, once the client has read the one before."""
        if self.transport.is_closing():
            self._is_answered = True
        elif self.flow.write_paused:
            self._unsent = answer
        else:
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        for piece in answer.pieces(is_last=self._is_last, has_body=self._has_body):
            self.transport.write(piece)
        self._is_answered = True
        self._note_answer()
        if self._is_last or answer.closes:
            self.transport.close()
        elif self._is_whole:
            self._rest()
        else:
            self._limit_time(self._limits.request_s + LINGER_S)

    def _rest(self) -> None:
        """Until the next request."""
        self.be_idle(self.timeout_keep_alive)

    def resume_writing(self) -> None:
        """The client has read all."""
        super().resume_writing()
        answer, self._unsent = self._unsent, None
        if answer is not None:
            self._take_answer(answer)

    # -- ends --------------------------------------------------------------------------------------
    def expire_body(self) -> None:
        """The body has not come in time, or the next request has not."""
        if self.is_busy() and self._call is not None and not self._call.is_answered:
            self._call.expire()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        super().connection_lost(exc)
        call, self._call, self._unsent = self._call, None, None
        if call is not None:
            call.leave()

    def shutdown(self) -> None:
        """Close: at once if idle, else after the answer."""
        if self.is_busy():
            self._is_last = True
        else:
            self.transport.close()

    def stop(self) -> None:
        """Answer what is still worked on; it takes too long."""
        self._is_last = True
        if self._call is not None:
            self._call.stop()

    def _path(self) -> str:
        if self.url.startswith(b"/") and self.url[1:].isalpha():
            return self.url.decode("ascii")
        path = httptools.parse_url(self.url).path.decode("ascii")
        return unquote(path) if "%" in path else path
