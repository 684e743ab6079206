"""HTTP of the simulated API server: requests in, responses or streams of events out."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import struct
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from hami_node.errors import HamiError
from hami_node.simulate.api_objects import ObjectRequest, serve
from hami_node.simulate.api_routes import Route, route_of
from hami_node.simulate.api_state import ApiState
from hami_node.simulate.faults import Outcome, Request
from hami_node.simulate.store import ApiRefusal, Json, selector

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
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class ResetNow(HamiError):
    """The connection is to be reset instead of answered."""


class Handler(BaseHTTPRequestHandler):
    """Serves a connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def do_GET(self) -> None:
        """GET, LIST and WATCH."""
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - as above

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

    # -- requests ------------------------------------------------------------------------------

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self._is_health_or_version():
            return
        try:
            route = route_of(self.command, self.path)
        except ApiRefusal as refusal:
            self._send(refusal.status, _status_object(refusal))
            return
        try:
            self._check_token()
            fault = self._apply_faults(route)
            if route.verb == "watch":
                self._note(route, 200)
                self._watch(route, is_frozen=fault is Outcome.FREEZE)
                return
            status, answer = serve(self.server.state.store, self._request(route, body))
            if fault is Outcome.RESET_AFTER:
                self._note(route, 0)
                self._reset()
                return
        except ApiRefusal as refusal:
            status, answer = refusal.status, _status_object(refusal)
        except ResetNow:
            self._note(route, 0)
            self._reset()
            return
        # noted first: a client with the response finds the request in the list
        self._note(route, status)
        self._send(status, answer)

    def _reset(self) -> None:
        self.server.reset(self.connection)
        self.close_connection = True

    def _is_health_or_version(self) -> bool:
        """Serve /version and health, which are no objects; False for anything else."""
        path = self.path.partition("?")[0]
        if path in ("/healthz", "/readyz", "/livez"):
            self._send(200, {"status": "ok", "server": SERVER_NAME})
            return True
        if path == "/version":
            self._send(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0-simulated"})
            return True
        return False

    def _check_token(self) -> None:
        wanted = self.server.state.token
        if wanted is not None and self.headers.get("Authorization", "").split(" ")[-1] != wanted:
            raise ApiRefusal(401, "Unauthorized", "Unauthorized")

    def _apply_faults(self, route: Route) -> Outcome | None:
        """Apply latency and the next fault; returns a fault that applies after serving."""
        state = self.server.state
        if state.faults.latency_s:
            state.stopped.wait(state.faults.latency_s)
        fault = state.faults.take(route.verb, route.kind.resource)
        if isinstance(fault, int):
            reason = _REASONS.get(fault, "InternalError")
            raise ApiRefusal(fault, reason, f"simulated fault: {reason}")
        if fault is Outcome.HANG or (fault is Outcome.FREEZE and route.verb != "watch"):
            self._hang()
            raise ResetNow("hung, then reset")
        if fault is Outcome.RESET:
            raise ResetNow("reset on command")
        return fault

    def _hang(self) -> None:
        state = self.server.state
        state.faults.hang(lambda: state.stopped.is_set() or self.server.is_down)

    def _note(self, route: Route, status: int) -> None:
        self.server.state.requests.add(
            Request(
                verb=route.verb,
                resource=route.kind.resource,
                namespace=route.namespace,
                name=route.name,
                subresource=route.subresource,
                user_agent=self.headers.get("User-Agent", ""),
                status=status,
                query=route.query,
            )
        )

    def _request(self, route: Route, body: bytes) -> ObjectRequest:
        return ObjectRequest(
            method=self.command,
            route=route,
            content_type=self.headers.get("Content-Type", "").partition(";")[0],
            body=body,
        )

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

    def _watch(self, route: Route, *, is_frozen: bool) -> None:
        # read before the response begins: a client with its headers can be dropped
        generation = self.server.state.watch_generation
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if is_frozen:
            self._hang()
            self._reset()
            return
        try:
            is_in_order = self._stream(route, generation)
        except ApiRefusal as refusal:
            is_in_order = True
            self._event("ERROR", _status_object(refusal))
        if is_in_order:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._reset()

    def _stream(self, route: Route, generation: int) -> bool:
        """Send events until the client's timeoutSeconds are over; False when the server stops."""
        state, resource, query = self.server.state, route.kind.resource, route.query
        selects = selector(
            route.namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        deadline = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        bookmark_at = time.monotonic() + state.bookmark_interval_s
        seen = int(query.get("resourceVersion") or 0)
        if seen == 0:
            seen, present = state.store.select(resource, selects)
            for item in present:
                self._event("ADDED", item)
        sent = began = seen
        while not (state.stopped.is_set() or self.server.is_down):
            now_seen, changes = state.store.changes_after(seen, resource)
            for change in changes:
                event = change.seen_by(selects)
                # as in a real server: nothing before the version that was asked for, for ever
                if event is not None and change.version > began:
                    self._event(*event)
                    sent = change.version
            seen = now_seen
            now = time.monotonic()
            if now >= deadline or generation != state.watch_generation:
                return True
            if now >= bookmark_at:
                bookmark_at = now + state.bookmark_interval_s
                # as in a real server: no bookmark without changes
                if seen > max(sent, began) and query.get("allowWatchBookmarks") == "true":
                    self._event("BOOKMARK", _bookmark(route, seen))
                    sent = seen
            state.store.wait_for_change(seen, min(deadline, bookmark_at) - now)
        return False

    def _event(self, kind: str, item: Json) -> None:
        line = json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))


class HttpServer(ThreadingHTTPServer):
    """Accepts connections until the server stops or an outage begins."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, state: ApiState, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen on the port; 0 takes a free port. With `tls` by HTTPS."""
        self.state = state
        self.live: set[socket.socket] = set()
        self.is_down = False
        self._to_reset: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def reset(self, connection: socket.socket) -> None:
        """End the connection with a reset instead of an orderly close."""
        self._to_reset.add(connection)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as in socketserver
        """Close a connection."""
        if request in self._to_reset:
            self._to_reset.discard(request)
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
        self.is_down = True
        for connection in tuple(self.live):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client closed it already


def _bookmark(route: Route, version: int) -> Json:
    return {
        "kind": route.kind.kind,
        "apiVersion": route.kind.api_version,
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
    }


def _status_object(refusal: ApiRefusal) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(refusal),
        "reason": refusal.reason,
        "code": refusal.status,
    }
