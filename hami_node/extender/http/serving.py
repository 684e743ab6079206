"""An HTTP server that bounds what a client may use: for the extender, and for `view`.

uvicorn's connection, and what uvicorn does not have: deadlines, and places that are counted from
accept on. The longest idle one of the address with the most makes way for a new one, so that nobody
who connects often shuts others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import threading
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from hami_node.errors import ConfigError
from hami_node.extender.http.certificates import Certificates
from hami_node.logs import kv

log: Final = logging.getLogger(__name__)

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
"""An application, as ASGI has it."""
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
LINGER_S: Final = 2.0
"""How much longer a refused body is read and dropped, so that the client receives the response."""
MAX_HEADERS: Final = 100

WhyNot = Callable[[ssl.SSLObject], str]
"""Why the client with this certificate is not answered; "" when it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What clients may use. Bytes, seconds, numbers of threads and connections.

    20,000 names of nodes are 1 MB, 5 MB if all are as long as they may be; a pod is 3 MiB at most.

    Attributes:
        values: in the JSON of a body; each takes far more memory than its bytes.
        request_s: until a request has arrived, head and body.
        answer_s: until its answer has been read.
        handshake_s: until a client has finished its TLS handshake.
        bodies_bytes: of all bodies that are held at a time, from their first byte to the answer.
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
    bodies_bytes: int = 32 * 1024 * 1024
    filter_workers: int = 4
    bind_workers: int = 128
    webhook_workers: int = 4
    preempt_workers: int = 2
    max_connections: int = 512
    unread_answer_s: float = 30.0
    certificate_check_s: float = 5.0


class Stage(Enum):
    """What a connection is doing."""

    HANDSHAKE = auto()
    WAITING = auto()
    """For a request, or for the rest of one."""
    WORKING = auto()
    """A request is being worked on."""


class AcceptedConnection:
    """One connection. For one event loop.

    Attributes:
        since_s: when it was accepted, or was last answered; time of the event loop.
        stage: what it is doing.
        address: where it comes from.
        is_known: it has shown the certificate of an accepted caller.
        leave: ends it at once.
    """

    __slots__ = ("address", "is_known", "leave", "since_s", "stage")

    def __init__(
        self, since_s: float, stage: Stage, leave: Callable[[], None], address: str = ""
    ) -> None:
        """A connection that was just accepted."""
        self.since_s, self.stage, self.leave, self.address = since_s, stage, leave, address
        self.is_known = False


class ConnectionLimit:
    """Counts connections. For one event loop."""

    def __init__(self, most: int) -> None:
        """Admit so many at a time; half of them may be in their handshake."""
        self._most, self._most_unproven = most, max(1, most // 2)
        self._admitted: set[AcceptedConnection] = set()
        self._is_full = False

    def admit(self, accepted: AcceptedConnection) -> bool:
        """Admit it, in the place of another if needed; False where none makes way for it."""
        admitted = self._admitted
        unproven = [other for other in admitted if other.stage is Stage.HANDSHAKE]
        if len(unproven) >= self._most_unproven:
            has_place = self._make_way(unproven, accepted)
        elif len(admitted) >= self._most:
            has_place = self._make_way(admitted, accepted)
        else:
            self._note(is_full=len(admitted) > self._most // 2 and self._is_full)
            has_place = True
        if has_place:
            admitted.add(accepted)
        return has_place

    def release(self, accepted: AcceptedConnection) -> None:
        """It has gone."""
        self._admitted.discard(accepted)

    def _make_way(
        self, crowd: Collection[AcceptedConnection], accepted: AcceptedConnection
    ) -> bool:
        """End the connection that has the least claim to its place; False where none has less.

        Callers that are known stay before strangers. Then those stay whose address has fewer
        connections; of one address, who is at work, and who came or was answered last. Who is at
        work goes only for an address that has fewer.
        """
        self._note(is_full=True)
        counts = Counter(other.address for other in crowd)
        own = counts[accepted.address]

        def has_less(other: AcceptedConnection) -> bool:
            count = counts[other.address]
            is_at_work = other.stage is Stage.WORKING
            return not other.is_known and count > own + 1 if is_at_work else count >= own

        def claim(other: AcceptedConnection) -> tuple[bool, int, bool, float]:
            is_at_work = other.stage is Stage.WORKING
            return other.is_known, -counts[other.address], is_at_work, other.since_s

        least = min(filter(has_less, crowd), key=claim, default=None)
        if least is None:
            return False
        self._admitted.discard(least)
        least.leave()
        return True

    def _note(self, *, is_full: bool) -> None:
        """Log the first of many."""
        if is_full and not self._is_full:
            hint = "the longest idle ones are closed; see who connects so often"
            log.warning("extender_connections_full", extra=kv(limit=self._most, hint=hint))
        self._is_full = is_full


class _HungUp(Exception):
    """Ends the parser's work on what a refused client has sent."""


class ClientConnection(HttpToolsProtocol):
    """One client. uvicorn limits neither the size of a request's head nor any time."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        limits: ServerLimits,
        accepted: AcceptedConnection,
        why_not: WhyNot | None,
        on_end: Callable[[AcceptedConnection], None],
    ) -> None:
        """Serve the application of `config`.

        Args:
            config: of uvicorn.
            server_state: the connections of the server.
            limits: what clients may use.
            accepted: the connection's place among the others.
            why_not: accepted clients only are served, where it is set.
            on_end: called when it has ended.
        """
        super().__init__(config, server_state, app_state={})
        self._limits, self._accepted, self._why_not = limits, accepted, why_not
        self._on_end = on_end
        self._stranger = ""
        self._is_in_head, self._sent_bytes, self._parsed_bytes = False, 0, 0
        self._has_parsed, self._unparsed_bytes = False, 0
        self._due_s: float | None = None
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
        self._unset_keepalive_if_required()  # uvicorn leaves it to run where the client has reset

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the head is too long, or a header after a chunked body."""
        was_in_head, self._has_parsed = self._is_in_head, False
        super().data_received(data)
        self._unparsed_bytes = 0 if self._has_parsed else self._unparsed_bytes + len(data)
        if not self.transport.is_closing():
            self._check_head(self._unparsed_bytes)  # what the parser gathers and tells nothing of
        if was_in_head and self._is_in_head:
            self._sent_bytes += len(data)
            self._check_head(self._sent_bytes)
        if self._due_s is None and self._accepted.stage is Stage.WAITING:
            self._limit_time(self._limits.request_s)  # it has sent no more than empty lines

    def on_message_begin(self) -> None:
        """The head begins."""
        if self._is_busy():
            self._hang_up(400, "a request must wait for the answer to the one before")
            raise _HungUp
        super().on_message_begin()
        self._has_parsed = True
        self._is_in_head, self._sent_bytes, self._parsed_bytes = True, 0, 0
        self._limit_time(self._limits.request_s)

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
        """The body begins."""
        self._is_in_head, self._has_parsed = False, True
        if self._stranger:
            self._hang_up(403, self._stranger)
            raise _HungUp
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._has_parsed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._has_parsed = True
        self._due_s = None
        if self._is_busy():
            self._accepted.stage = Stage.WORKING
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written; as far as it is unread, `pause_writing` has been called."""
        self._accepted.stage, self._accepted.since_s = Stage.WAITING, self.loop.time()
        if self._due_s is not None:  # the rest of a refused body is dropped
            self._limit_time(self._limits.request_s + LINGER_S)
        super().on_response_complete()

    def _is_busy(self) -> bool:
        """Whether a request has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

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
        self._has_parsed = True
        self._parsed_bytes += size
        self._check_head(self._parsed_bytes)
        if self.transport.is_closing():
            raise _HungUp

    def _limit_time(self, limit_s: float) -> None:
        """One timer serves many limits: it is set again when it has run out or comes too late."""
        self._due_s = due_s = self.loop.time() + limit_s
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
        is_unanswered = self._is_busy() and not self.cycle.response_started
        if self._is_in_head or is_unanswered:
            part = "head" if self._is_in_head else "body"
            self._hang_up(408, f"the {part} did not arrive within {self._limits.request_s:g} s")
        else:
            self.transport.close()

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
        application: Asgi,
        certificates: Certificates | None,
        why_not: WhyNot | None,
        limits: ServerLimits,
    ) -> None:
        """Serve `application`; over HTTPS with certificates, to some with `why_not`."""
        self._config = uvicorn.Config(
            application, ws="none", lifespan="off",
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
        return ClientConnection(
            self._config,
            self.server_state,
            self._limits,
            accepted,
            self._why_not,
            self._connections.release,
        )

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
