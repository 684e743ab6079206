"""An HTTP server that bounds what a client may use: for the extender, and for `view`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

from hami_node.errors import ConfigError
from hami_node.extender.http.call_connection import CallConnection
from hami_node.extender.http.certificates import Certificates
from hami_node.extender.http.connection import LINGER_S, ClientConnection, ConnectionParts, WhyNot
from hami_node.extender.http.connection_limit import AcceptedConnection, ConnectionLimit, Stage
from hami_node.extender.http.routes import Routes
from hami_node.extender.http.server_limits import ServerLimits
from hami_node.logs import kv

log: Final = logging.getLogger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""As ASGI has it."""
KEEP_ALIVE_S: Final = 300
"""kube-scheduler closes idle connections after 90 s, so we never close one that it still uses."""
BACKLOG: Final = 512
TLS_BUFFER_BYTES: Final = 64 << 10
"""asyncio takes 256 KiB for each TLS connection for as long as it lives: kube-scheduler opens one
for each pod that is just being bound, and strangers may hold as many as are accepted."""
TLS_SHUTDOWN_S: Final = 1.0
STOP_CHECK_S: Final = 0.05
ACCEPT_PAUSE_S: Final = 0.1
"""After an accept that failed: for want of file descriptors, mostly."""


def listen(address: str, limits: ServerLimits, setting: str) -> socket.socket:
    """A socket that listens on `HOST:PORT` or `:PORT`; 0 is any free port.

    Raises:
        ConfigError: the address of this setting can't be bound.
    """
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
        raise ConfigError("settings", setting, address, hint) from e
    # Linux passes these on to every connection. A client that reads nothing of its response is cut
    # off. Head and body of a response are two writes: with Nagle's algorithm the second waits 40 ms
    # for an acknowledgement. asyncio disables it only for sockets that name their protocol.
    unread_ms = int(limits.unread_answer_s * 1000)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


class BoundedServer:
    """Accepts connections, and shuts them down gracefully."""

    def __init__(
        self,
        served: Routes | Application,
        certificates: Certificates | None,
        why_not: WhyNot | None,
        limits: ServerLimits,
    ) -> None:
        """Serve routes or an application; over HTTPS with certificates, to some with `why_not`."""
        self._routes = served if isinstance(served, Routes) else None
        self._config = uvicorn.Config(
            _nothing if isinstance(served, Routes) else served, ws="none", lifespan="off",
            interface="asgi3", log_config=None, log_level=logging.ERROR, access_log=False,
            proxy_headers=False, server_header=False, date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )  # fmt: skip
        self._config.load()
        SSLProtocol.max_size = TLS_BUFFER_BYTES  # of the process: asyncio has no option for it
        self.server_state = ServerState()
        self._certificates, self._why_not, self._limits = certificates, why_not, limits
        self._connections, self._arriving = (
            ConnectionLimit(limits.max_connections),
            set[asyncio.Task[None]](),
        )
        self.is_listening = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping, self._grace_s = asyncio.Event(), 0.0

    async def run(self, listener: socket.socket, begun: threading.Event) -> None:
        """Serve until stopped; `begun` is set when connections are accepted."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener, self._accept, listener)
        self.is_listening = True
        begun.set()
        await self._stopping.wait()
        self._loop.remove_reader(listener)
        listener.close()
        await self._end_connections()

    def _accept(self, listener: socket.socket) -> None:
        """One connection, then those who are inside have their turn."""
        loop = asyncio.get_running_loop()
        try:
            raw, address = listener.accept()
        except BlockingIOError:
            return  # it has gone again
        except OSError as e:
            log.debug("extender_accept_failed", extra=kv(error=e))
            loop.remove_reader(listener)
            loop.call_later(ACCEPT_PAUSE_S, self._accept_again, listener)
            return
        raw.setblocking(False)
        arriving = loop.create_task(self._receive(raw, str(address[0])))
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)

    def _accept_again(self, listener: socket.socket) -> None:
        if not self._stopping.is_set():
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _receive(self, raw: socket.socket, address: str) -> None:
        """Let one client in, through its handshake; it is counted until it has gone."""
        loop, limits, certificates = asyncio.get_running_loop(), self._limits, self._certificates
        task = asyncio.current_task()

        def leave() -> None:
            if task is not None:
                task.cancel()

        stage = Stage.HANDSHAKE if certificates else Stage.WAITING
        accepted = AcceptedConnection(loop.time(), stage, leave, address)
        if not self._connections.admit(accepted):
            raw.close()
            return

        try:
            await loop.connect_accepted_socket(
                lambda: self._connection(accepted),
                raw,
                ssl=certificates.newest if certificates else None,
                ssl_handshake_timeout=limits.handshake_s if certificates else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S if certificates else None,
            )
        except (OSError, asyncio.CancelledError) as e:  # its handshake failed, or it made way
            log.debug("extender_client_refused", extra=kv(error=repr(e)))
            self._connections.release(accepted)

    def _connection(self, accepted: AcceptedConnection) -> ClientConnection:
        parts = ConnectionParts(
            limits=self._limits,
            accepted=accepted,
            why_not=self._why_not,
            on_end=self._connections.release,
        )
        if self._routes is None:
            return ClientConnection(self._config, self.server_state, parts)
        return CallConnection(self._config, self.server_state, parts, self._routes)

    def stop(self, grace_s: float) -> None:
        """Let `run` end, from any thread; running requests may take `grace_s` seconds."""
        self._grace_s = grace_s
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def _end_connections(self) -> None:
        connections, tasks = self.server_state.connections, self.server_state.tasks
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await asyncio.sleep(STOP_CHECK_S)  # connections accepted last arrive meanwhile
                for arriving in tuple(self._arriving):
                    arriving.cancel()
                while connections or tasks or self._is_working():
                    for connection in tuple(connections):
                        connection.shutdown()  # at once if idle, else after its response
                    await asyncio.sleep(STOP_CHECK_S)
        for task in tuple(tasks):
            task.cancel()
        if tasks:  # cancelled requests still send a response
            await asyncio.wait(tuple(tasks), timeout=LINGER_S)
        for connection in tuple(connections):
            if isinstance(connection, ClientConnection):
                connection.stop()
            connection.transport.abort()
        await asyncio.sleep(0)  # lets the aborted connections be closed

    def _is_working(self) -> bool:
        """Whether a call is worked on whose client may have gone."""
        return self._routes is not None and self._routes.running() > 0


async def _nothing(_scope: Any, _receive: Any, _send: Any) -> None:  # noqa: ANN401 - as ASGI has it
    """No connection asks this application."""
