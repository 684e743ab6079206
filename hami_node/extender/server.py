"""HTTP and HTTPS for kube-scheduler, the API server's admission calls and probes."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from hami_node.errors import ConfigError
from hami_node.extender.certificates import Certificates
from hami_node.extender.routes import Endpoints, OnRequest, Routes, ServerLimits
from hami_node.logs import kv

__all__ = ["Endpoints", "ExtenderServer", "OnRequest", "ServerLimits"]

log: Final = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 300
"""kube-scheduler keeps an idle connection 90 s: it is never us who closes one in use."""
LINGER_S: Final = 2.0
"""How much longer a refused body is read and dropped, so that the client gets to see the answer."""
BACKLOG: Final = 512
TLS_HANDSHAKE_S: Final = 10.0
TLS_SHUTDOWN_S: Final = 1.0


class ExtenderServer:
    """Serves in a thread of its own between `start` and `close`."""

    def __init__(
        self,
        address: str,
        endpoints: Endpoints,
        *,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        limits: ServerLimits | None = None,
        on_request: OnRequest = lambda _route, _status, _seconds: None,
    ) -> None:
        """Serve `HOST:PORT` or `:PORT` (0: any free port), with a certificate by HTTPS only."""
        self._address, self._files = address, (cert_file, key_file)
        self._limits = limits or ServerLimits()
        self._routes = Routes(endpoints, self._limits, on_request)
        self._stop, self._listening = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._server: _Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that was bound; 0 before `start`."""
        return self._port

    def start(self) -> Self:
        """Begin to answer; returns when connections are accepted.

        Raises:
            ConfigError: the address can't be bound, or the certificate can't be used.
        """
        certificates = _certificates(*self._files)
        listener = _bind(self._address)
        self._port = int(listener.getsockname()[1])
        context = certificates.context if certificates else None
        app = self._routes.application()
        self._server = _Server(app, listener, context, self._limits, self._listening)
        self._spawn("extender-http", self._server.run)
        if certificates:
            interval_s = self._limits.certificate_check_s
            self._spawn("certificates", lambda: certificates.run(self._stop, interval_s))
        self._listening.wait()
        if not self._server.started:
            listener.close()
            cure = "the server ended at once, the log says why"
            raise ConfigError("settings", "http-bind", self._address, cure)
        log.info("extender_served", extra=kv(address=self._address, port=self._port))
        return self

    def close(self, grace_s: float = 20.0) -> None:
        """Accept no more; let requests in work end, for at most `grace_s`, then break them off."""
        self._stop.set()
        if self._server is not None:
            self._server.config.timeout_graceful_shutdown = math.ceil(grace_s)
            self._server.should_exit = True
        for thread in self._threads:
            thread.join(grace_s + 2 * TLS_SHUTDOWN_S + 5.0)
        self._routes.close()

    def _spawn(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


def _certificates(cert_file: Path | None, key_file: Path | None) -> Certificates | None:
    if cert_file is None and key_file is None:
        return None
    if cert_file is None or key_file is None:
        missing = "cert-file" if cert_file is None else "key-file"
        raise ConfigError("settings", missing, "", "HTTPS needs both, certificate and key")
    return Certificates(cert_file, key_file)


def _bind(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    is_dual = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, int(port)), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual
        )
    except (OSError, OverflowError, ValueError) as e:
        cure = f"choose another address, or stop the program that holds it ({e})"
        raise ConfigError("settings", "http-bind", address, cure) from e


class _Server(uvicorn.Server):
    """uvicorn with limits on handshakes and on the head of a request, on a socket that is bound."""

    def __init__(
        self,
        app: Starlette,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        limits: ServerLimits,
        listening: threading.Event,
    ) -> None:
        config = uvicorn.Config(
            app, http=_Connection, ws="none", lifespan="off", loop="asyncio", interface="asgi3",
            log_config=None, log_level=logging.ERROR, access_log=False, proxy_headers=False,
            server_header=False, date_header=False, timeout_keep_alive=KEEP_ALIVE_S,
        )  # fmt: skip
        super().__init__(config)
        self._listener, self._context, self._limits = listener, context, limits
        self._listening, self._is_full = listening, False

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop."""
        try:
            super().run(sockets)
        finally:
            self._listening.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        secure = self._context is not None
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(
                self.config, self.server_state, {}, limits=self._limits, admits=self._admits
            ),
            sock=self._listener,
            ssl=self._context,
            backlog=BACKLOG,
            ssl_handshake_timeout=TLS_HANDSHAKE_S if secure else None,
            ssl_shutdown_timeout=TLS_SHUTDOWN_S if secure else None,
        )
        self.servers = [server]
        self.started = True
        self._listening.set()

    def _admits(self) -> bool:
        """Whether the connection that was just made may stay."""
        was_full, limit = self._is_full, self._limits.max_connections
        self._is_full = len(self.server_state.connections) > limit
        if self._is_full and not was_full:
            cure = "new ones are refused until others end"
            log.warning("extender_connections_full", extra=kv(limit=limit, cure=cure))
        return not self._is_full

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop in good order, then cut what is left."""
        await super().shutdown(sockets)
        if self.server_state.tasks:  # broken off, they have an answer to give
            await asyncio.wait(tuple(self.server_state.tasks), timeout=LINGER_S)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # lets the cut connections be closed


class _Connection(HttpToolsProtocol):
    """One client. uvicorn limits neither the size of a request's head nor its time."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ServerLimits,
        admits: Callable[[], bool],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits, self._admits = limits, admits
        self._is_in_head, self._head_bytes = False, 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        """Take the client in, or hang up when there are too many."""
        super().connection_made(transport)
        if not self._admits():
            transport.abort()
            return
        raw = transport.get_extra_info("socket")
        unread_ms = int(self._limits.unread_answer_s * 1000)  # a client that takes no byte is cut
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Head and body of an answer are two writes: with Nagle's rule the second waits 40 ms for an
        # acknowledgement. asyncio switches it off only for sockets that name their protocol.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._limit_time(self._limits.body_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._limit_time(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, as long as the head is not too long."""
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
        """The body begins; its reader has a limit of its own, which this one must not forestall."""
        self._is_in_head = False
        self._limit_time(2 * self._limits.body_timeout_s + LINGER_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is here as a whole."""
        self._limit_time(None)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
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
