"""Pages over HTTP, for people, Prometheus and probes. Load it after registration.

At most `MAX_CONNECTIONS` at a time, each with a deadline for its whole request and for its answer;
beyond that, of the address with the most connections, the client that has been sending its request
longest makes way for a new one. So nobody who connects, slowly or often, keeps others out.
"""

from __future__ import annotations

import io
import logging
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from hami_node.logs import kv
from hami_node.metrics.listener import listen

log: Final = logging.getLogger(__name__)
MAX_CONNECTIONS: Final = 64
MAX_HEAD_BYTES: Final = 16 * 1024
CLIENT_TIMEOUT_S: Final = 5.0
"""For a whole request, and for each part of the answer."""

Page = Callable[["PageHandler"], None]


class PageServer:
    """Serves in threads of its own between `start` and `close`."""

    def __init__(
        self, setting: str, address: str | socket.socket, pages: Mapping[str, Page]
    ) -> None:
        """Take over a socket that listens, or bind the address that is this setting's.

        Raises:
            ConfigError: the address can't be bound.
        """
        listener = listen(setting, address) if isinstance(address, str) else address
        self._server = _Server(listener, pages)
        self._name = setting.partition("-")[0]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name=f"{self._name}-server", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self._server.server_address[1])

    def start(self) -> Self:
        """Start serving."""
        self._thread.start()
        log.info(f"{self._name}_served", extra=kv(port=self.port))
        return self

    def close(self) -> None:
        """Stop serving and release the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(CLIENT_TIMEOUT_S)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self._lock = threading.Lock()
        # where each client comes from; oldest first
        self._asking: dict[socket.socket, str] = {}
        self._served: dict[socket.socket, str] = {}
        super().__init__(listener.getsockname()[:2], PageHandler, bind_and_activate=False)
        self.socket.close()  # unbound: the base class makes one in any case
        self.socket = listener

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - http.server's types
        """Serve in a thread; close the connection at once when all others are being served."""
        if not self._admit(request, str(client_address[0])):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - http.server's types
        """Give its place back, whatever happened."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._asking.pop(request, None)
                self._served.pop(request, None)

    def begin_service(self, client: socket.socket) -> None:
        """Its request is complete: it no longer makes way. Raises OSError when it has to go."""
        with self._lock:
            if client not in self._asking:
                raise ConnectionAbortedError("made way for a newer client")
            self._served[client] = self._asking.pop(client)

    def _admit(self, client: socket.socket, address: str) -> bool:
        asking = self._asking
        with self._lock:
            if len(asking) + len(self._served) >= MAX_CONNECTIONS:
                counts = Counter((*asking.values(), *self._served.values()))
                oldest = max(asking, key=lambda other: counts[asking[other]], default=None)
                if oldest is None or counts[asking[oldest]] < counts[address]:
                    return False
                del asking[oldest]
                _hang_up(oldest)
            asking[client] = address
            return True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - http.server's types
        """Log a failure: of a client, such as a closed connection, at debug level only."""
        error = sys.exception()
        fields = kv(client=client_address, error=repr(error))
        if isinstance(error, OSError):
            log.debug("metrics_client_failed", extra=fields)
        else:
            log.error("metrics_page_failed", extra=fields, exc_info=error)


def _hang_up(client: socket.socket) -> None:
    """Its thread reads the end of the connection, and ends."""
    try:
        client.shutdown(socket.SHUT_RDWR)
    except OSError as e:
        log.debug("metrics_client_failed", extra=kv(error=repr(e)))


class _Request(io.RawIOBase):
    """A client's request: at most so many bytes, and none after the deadline."""

    def __init__(self, client: socket.socket) -> None:
        self._client, self._left = client, MAX_HEAD_BYTES
        self._deadline_s = time.monotonic() + CLIENT_TIMEOUT_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0 or self._left <= 0:
            raise TimeoutError("the request is too long, or came too slowly")
        self._client.settimeout(left_s)
        count = self._client.recv_into(buffer, min(len(buffer), self._left))
        self._left -= count
        return count


class PageHandler(BaseHTTPRequestHandler):
    """One client; `pages` of the server answer it."""

    timeout = CLIENT_TIMEOUT_S
    server: _Server
    server_version = "hami-node"
    sys_version = ""

    def setup(self) -> None:
        """Limit the request as a whole."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection))

    def do_GET(self) -> None:
        """Serve one of the pages."""
        self.server.begin_service(self.connection)
        self.connection.settimeout(CLIENT_TIMEOUT_S)
        pages = self.server.pages
        page = pages.get(self.path.partition("?")[0])
        if page is None:
            self.answer(HTTPStatus.NOT_FOUND, " ".join(pages) + "\n")
            return
        page(self)

    def answer(
        self, status: HTTPStatus, body: str, kind: str = "text/plain; charset=utf-8"
    ) -> None:
        """The whole answer."""
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log requests at debug level only."""
        log.debug("metrics_request", extra=kv(line=format % args))
