"""HTTP and HTTPS for kube-scheduler, the API server's admission calls and probes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import uvicorn
from starlette.applications import Starlette
from uvicorn.server import ServerState

from hami_node.errors import ConfigError
from hami_node.extender.http.certificates import Certificates
from hami_node.extender.http.connection import LINGER_S, ClientConnection
from hami_node.extender.http.routes import Endpoints, OnRequest, Routes, ServerLimits
from hami_node.logs import kv

__all__ = ["Endpoints", "ExtenderServer", "OnRequest", "ServerLimits"]

log: Final = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 300
"""kube-scheduler closes idle connections after 90 s, so we never close one that it still uses."""
BACKLOG: Final = 512
TLS_HANDSHAKE_S: Final = 10.0
TLS_SHUTDOWN_S: Final = 1.0
STOP_CHECK_S: Final = 0.05


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
        """Serve `HOST:PORT` or `:PORT` (0: any free port); with a certificate over HTTPS only."""
        self._address, self._files = address, (cert_file, key_file)
        self._limits = limits or ServerLimits()
        self._routes = Routes(endpoints, self._limits, on_request)
        self._stop, self._begun = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._server: _UvicornServer | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that was bound; 0 before `start`."""
        return self._port

    def start(self) -> Self:
        """Start serving; returns when connections are accepted.

        Raises:
            ConfigError: the address can't be bound, or the certificate can't be used.
        """
        certificates = _certificates(*self._files)
        listener = _bind(self._address, self._limits)
        self._port = int(listener.getsockname()[1])
        context = certificates.context if certificates else None
        app = self._routes.application()
        self._server = server = _UvicornServer(app, context, self._limits)
        self._spawn("extender-http", lambda: self._serve(server, listener))
        if certificates:
            interval_s = self._limits.certificate_check_s
            self._spawn("certificates", lambda: certificates.run(self._stop, interval_s))
        self._begun.wait()
        if not self._server.is_listening:
            listener.close()
            hint = "the server ended at once, see the log for the reason"
            raise ConfigError("settings", "http-bind", self._address, hint)
        log.info("extender_served", extra=kv(address=self._address, port=self._port))
        return self

    def close(self, grace_s: float = 20.0) -> None:
        """Accept no more; let running requests end, for at most `grace_s`, then abort them."""
        self._stop.set()
        if self._server is not None:
            self._server.stop(grace_s)
        for thread in self._threads:
            thread.join(grace_s + 2 * TLS_SHUTDOWN_S + 5.0)
        self._routes.close()

    def _serve(self, server: _UvicornServer, listener: socket.socket) -> None:
        try:
            asyncio.run(server.run(listener, self._begun))
        finally:
            self._begun.set()

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


def _bind(address: str, limits: ServerLimits) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    is_dual = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(
            (host, int(port)), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual
        )
    except (OSError, OverflowError, ValueError) as e:
        hint = f"choose another address, or stop the program that holds it ({e})"
        raise ConfigError("settings", "http-bind", address, hint) from e
    # Linux passes these on to every connection. A client that reads nothing of its response is cut
    # off. Head and body of a response are two writes: with Nagle's algorithm the second waits 40 ms
    # for an acknowledgement. asyncio disables it only for sockets that name their protocol.
    unread_ms = int(limits.unread_answer_s * 1000)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _UvicornServer:
    """Accepts connections, and shuts them down gracefully."""

    def __init__(
        self, app: Starlette, context: ssl.SSLContext | None, limits: ServerLimits
    ) -> None:
        self._config = uvicorn.Config(
            app, ws="none", lifespan="off", interface="asgi3", log_config=None,
            log_level=logging.ERROR, access_log=False, proxy_headers=False, server_header=False,
            date_header=False, timeout_keep_alive=KEEP_ALIVE_S,
        )  # fmt: skip
        self._config.load()
        self.server_state = ServerState()
        self._context, self._limits = context, limits
        self.is_listening, self._is_full = False, False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping, self._grace_s = asyncio.Event(), 0.0

    async def run(self, listener: socket.socket, begun: threading.Event) -> None:
        """Serve until stopped; `begun` is set when connections are accepted."""
        self._loop = asyncio.get_running_loop()
        secure = self._context is not None
        server = await self._loop.create_server(
            lambda: ClientConnection(self._config, self.server_state, self._limits, self._admits),
            sock=listener,
            ssl=self._context,
            backlog=BACKLOG,
            ssl_handshake_timeout=TLS_HANDSHAKE_S if secure else None,
            ssl_shutdown_timeout=TLS_SHUTDOWN_S if secure else None,
        )
        self.is_listening = True
        begun.set()
        await self._stopping.wait()
        # asyncio fails on a connection that it has accepted but not yet handed to the server when
        # the server closes. A timer runs after those, so none is left when it fires.
        await asyncio.sleep(STOP_CHECK_S)
        server.close()
        await self._end_connections()

    def stop(self, grace_s: float) -> None:
        """Let `run` end, from any thread; running requests may take `grace_s` seconds."""
        self._grace_s = grace_s
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)

    def _admits(self) -> bool:
        """Whether the connection that was just made may stay."""
        was_full, limit = self._is_full, self._limits.max_connections
        self._is_full = len(self.server_state.connections) > limit
        if self._is_full and not was_full:
            hint = "new ones are refused until others end"
            log.warning("extender_connections_full", extra=kv(limit=limit, cure=hint))
        return not self._is_full

    async def _end_connections(self) -> None:
        connections, tasks = self.server_state.connections, self.server_state.tasks
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await asyncio.sleep(STOP_CHECK_S)  # connections accepted last arrive meanwhile
                while connections or tasks:
                    for connection in tuple(connections):
                        connection.shutdown()  # at once if idle, else after its response
                    await asyncio.sleep(STOP_CHECK_S)
        for task in tuple(tasks):
            task.cancel()
        if tasks:  # cancelled requests still send a response
            await asyncio.wait(tuple(tasks), timeout=LINGER_S)
        for connection in tuple(connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # lets the aborted connections be closed
