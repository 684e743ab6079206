"""An embedded, simulated API server: real HTTP, a handful of kinds, faults on demand.

The demo and the tests run the programs against it. It checks no permissions and keeps nothing on
disk; the `Server` header of every response names it as simulated.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from hami_node.errors import HamiError
from hami_node.logs import kv
from hami_node.simulate.api import Faults, Outcome, Request, read_request, serve, status_object
from hami_node.simulate.store import KINDS, ApiRefusal, Json, Store, selector

log = logging.getLogger(__name__)

SERVER_NAME: Final = "hami-node-simulated-apiserver"
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_UNSTABLE: Final = {429, 503}
_NO_OBJECTS: Final[Mapping[str, Json]] = {
    **{
        f"/{which}z": {"status": "ok", "server": SERVER_NAME}
        for which in ("health", "ready", "live")
    },
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0-simulated"},
}
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class ApiServer:
    """The server: objects, outages, planned faults, the list of requests."""

    def __init__(
        self,
        *,
        port: int = 0,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        bookmark_interval_s: float = 60.0,
    ) -> None:
        """Prepare a server; `start` begins to listen.

        Args:
            port: 0 takes a free port, and keeps it during outages.
            token: the bearer token that requests must have; None accepts all.
            tls: serve HTTPS with this context.
            bookmark_interval_s: how often a silent watch gets a bookmark.
        """
        self.token, self.bookmark_interval_s = token, bookmark_interval_s
        self.store, self.faults = Store(), Faults()
        self.noted: list[Request] = []
        self.stopped = threading.Event()
        self.watch_generation = 0
        """A new number ends the watches that began before."""
        self._tls, self._port = tls, port
        self._http: _HttpServer | None = None
        self._thread: threading.Thread | None = None

    # -- start and stop ------------------------------------------------------------------------
    @property
    def url(self) -> str:
        """`http://127.0.0.1:<port>`."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Listen; this also ends an outage."""
        if self._http is not None:
            return self
        self.stopped.clear()
        self._http = _HttpServer(self, self._port, self._tls)
        self._port = int(self._http.server_address[1])
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.01,), name="simulated-apiserver", daemon=True
        )
        self._thread.start()
        log.info("simulated_apiserver_started", extra=kv(url=self.url))
        return self

    def go_down(self) -> None:
        """Begin an outage: connections are closed and refused; objects stay."""
        http, self._http = self._http, None
        if http is None or self._thread is None:
            return
        http.cut_all()
        self.store.wake()
        http.shutdown()
        http.server_close()
        self._thread.join(5.0)

    def stop(self) -> None:
        """Stop for good; may be called twice."""
        self.stopped.set()
        self.faults.clear()
        self.go_down()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def write_kubeconfig(self, path: Path, ca_file: Path | None = None) -> Path:
        """Write a kubeconfig for this server, and return its path."""
        name = "simulated"
        authority = {} if ca_file is None else {"certificate-authority": str(ca_file)}
        user = {} if self.token is None else {"token": self.token}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": self.url, **authority}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        path.chmod(0o600)
        return path

    # -- objects -------------------------------------------------------------------------------
    def create(self, resource: str, body: Mapping[str, Any]) -> Json:
        """Add an object, as a client's POST would. Raises ApiRefusal."""
        namespace = (body.get("metadata") or {}).get("namespace") or (
            "default" if KINDS[resource].is_namespaced else ""
        )
        return self.store.create(resource, namespace, body)

    def read(self, resource: str, name: str, namespace: str = "") -> Json:
        """The object with this name. Raises ApiRefusal."""
        return self.store.read(resource, namespace, name)

    def list(self, resource: str, fields: str = "") -> list[Json]:
        """All objects of a kind, or those that match a field selector."""
        return self.store.select(resource, selector("", "", fields))[1]

    def edit(
        self, resource: str, name: str, change: Callable[[Json], object], namespace: str = ""
    ) -> Json:
        """Store a copy of the object that `change` edits in place. Raises ApiRefusal."""

        def edited(body: Json) -> Json:
            change(body)
            return body

        return self.store.change(resource, namespace, name, edited)

    def delete(self, resource: str, name: str, namespace: str = "") -> Json:
        """Remove an object. Raises ApiRefusal."""
        return self.store.delete(resource, namespace, name)

    def requests(
        self, *, verb: str = "", resource: str = "", user_agent: str = ""
    ) -> tuple[Request, ...]:
        """The requests so far, in the order in which they ended; `user_agent` matches a part."""
        return tuple(
            item
            for item in tuple(self.noted)
            if verb in ("", item.verb)
            and resource in ("", item.resource)
            and user_agent in item.user_agent
        )


class _ResetNow(HamiError):
    """The connection is to be reset instead of answered."""


class _HttpServer(ThreadingHTTPServer):
    """Accepts connections until the server stops or an outage begins."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, api: ApiServer, port: int, tls: ssl.SSLContext | None) -> None:
        self.api = api
        self.live: set[socket.socket] = set()
        self.to_reset: set[socket.socket] = set()
        self._is_down = False
        super().__init__(("127.0.0.1", port), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def is_over(self) -> bool:
        """True once nobody is answered any more."""
        return self._is_down or self.api.stopped.is_set()

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as in socketserver
        """Close a connection, in order or by a reset."""
        if request in self.to_reset:
            self.to_reset.discard(request)
            request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Log every error except that a client disconnected."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError)):
            log.error("simulated_request_failed", exc_info=error)

    def cut_all(self) -> None:
        """Close every connection now, also those that wait for a request."""
        self._is_down = True
        for connection in tuple(self.live):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client closed it already


class _Handler(BaseHTTPRequestHandler):
    """Serves a connection: requests in, responses or streams of events out."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HttpServer

    def version_string(self) -> str:
        """Name a simulated server in every response."""
        return SERVER_NAME

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests are in the server's own list."""

    def setup(self) -> None:
        """Register the connection, so that an outage can close it."""
        super().setup()
        self.server.live.add(self.connection)

    def finish(self) -> None:
        """Unregister the connection."""
        self.server.live.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        """Any method: objects, watches, health and version."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        plain = _NO_OBJECTS.get(self.path.partition("?")[0])
        if plain is not None:
            self._send(200, plain)
            return
        kind, agent = (self.headers.get(name, "") for name in ("Content-Type", "User-Agent"))
        try:
            request = read_request(self.command, self.path, kind, agent)
        except ApiRefusal as refusal:
            self._send(refusal.status, status_object(refusal))
            return
        try:
            self._check_token()
            fault = self._apply_faults(request)
            if request.verb == "watch":
                self._note(request, 200)
                self._watch(request, is_frozen=fault is Outcome.FREEZE)
                return
            status, answer = serve(self.server.api.store, request, body)
            if fault is Outcome.RESET_AFTER:
                raise _ResetNow
        except ApiRefusal as refusal:
            status, answer = refusal.status, status_object(refusal)
        except _ResetNow:
            self._note(request, 0)
            self._reset()
            return
        # noted first: a client with the response finds the request in the list
        self._note(request, status)
        self._send(status, answer)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the library's names

    def _note(self, request: Request, status: int) -> None:
        self.server.api.noted.append(replace(request, status=status))

    def _reset(self) -> None:
        self.server.to_reset.add(self.connection)
        self.close_connection = True

    def _check_token(self) -> None:
        wanted = self.server.api.token
        if wanted is not None and self.headers.get("Authorization", "").split(" ")[-1] != wanted:
            raise ApiRefusal(401, "Unauthorized", "Unauthorized")

    def _apply_faults(self, request: Request) -> Outcome | None:
        """Apply latency and the next fault; returns a fault that applies after serving."""
        api = self.server.api
        if api.faults.latency_s:
            api.stopped.wait(api.faults.latency_s)
        fault = api.faults.take(request.verb, request.resource)
        if isinstance(fault, int):
            reason = _REASONS.get(fault, "InternalError")
            raise ApiRefusal(fault, reason, f"simulated fault: {reason}")
        if fault is Outcome.HANG or (fault is Outcome.FREEZE and request.verb != "watch"):
            api.faults.hang(self.server.is_over)
            raise _ResetNow
        if fault is Outcome.RESET:
            raise _ResetNow
        return fault

    def _send(self, status: int, answer: Json) -> None:
        body = json.dumps(answer, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status in _UNSTABLE:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    # -- watch ---------------------------------------------------------------------------------
    def _watch(self, request: Request, *, is_frozen: bool) -> None:
        # read before the response begins: a client with its headers can be dropped
        generation = self.server.api.watch_generation
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if is_frozen:
            self.server.api.faults.hang(self.server.is_over)
            self._reset()
            return
        try:
            is_in_order = self._stream(request, generation)
        except ApiRefusal as refusal:
            is_in_order = True
            self._event("ERROR", status_object(refusal))
        if is_in_order:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._reset()

    def _stream(self, request: Request, generation: int) -> bool:
        """Send events until the client's timeoutSeconds are over; False when the server stops."""
        api, resource, query = self.server.api, request.resource, request.query
        selects = request.selects()
        deadline = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        bookmark_at = time.monotonic() + api.bookmark_interval_s
        seen = int(query.get("resourceVersion") or 0)
        if seen == 0:
            seen, present = api.store.select(resource, selects)
            for item in present:
                self._event("ADDED", item)
        sent = began = seen
        while not self.server.is_over():
            now_seen, changes = api.store.changes_after(seen, resource)
            for change in changes:
                event = change.seen_by(selects)
                # as in a real server: nothing before the version that was asked for, for ever
                if event is not None and change.version > began:
                    self._event(*event)
                    sent = change.version
            seen = now_seen
            now = time.monotonic()
            if now >= deadline or generation != api.watch_generation:
                return True
            if now >= bookmark_at:
                bookmark_at = now + api.bookmark_interval_s
                # as in a real server: no bookmark without changes
                if seen > max(sent, began) and query.get("allowWatchBookmarks") == "true":
                    self._event("BOOKMARK", _bookmark(request, seen))
                    sent = seen
            api.store.wait_for_change(seen, min(deadline, bookmark_at) - now)
        return False

    def _event(self, kind: str, item: Json) -> None:
        line = json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))


def _bookmark(request: Request, version: int) -> Json:
    return {
        "kind": request.kind.kind,
        "apiVersion": request.kind.api_version,
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
    }
