"""An embedded, simulated API server: real HTTP, a handful of kinds, faults on command.

The demo and the integration tests run the daemon against it. It checks no permissions and keeps
nothing on disk; it says in every answer's `Server` header that it is simulated.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from hami_node.logs import kv
from hami_node.simulate.api_http import Handler
from hami_node.simulate.faults import Faults, Request
from hami_node.simulate.store import KINDS, Json, Store, selector

log = logging.getLogger(__name__)

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class HttpServer(ThreadingHTTPServer):
    """Accepts connections for one life of the server; an outage ends it."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, api: ApiServer, port: int) -> None:
        """Listen on the port; 0 takes a free one."""
        self.api = api
        self.live: set[socket.socket] = set()
        self.is_down = False
        self._to_reset: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), Handler)
        if api.tls is not None:
            self.socket = api.tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def reset(self, connection: socket.socket) -> None:
        """Let the connection end with a reset instead of an orderly close."""
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
        """A client that went away is no news; everything else is."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError)):
            log.error("simulated_request_failed", exc_info=error)

    def cut_all(self) -> None:
        """End every connection now, also those that wait for a request."""
        self.is_down = True
        for connection in tuple(self.live):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other side was faster


class ApiServer:
    """The server and the levers of a test: objects, faults, outages, the list of requests."""

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
            port: 0 takes a free one, and keeps it over outages.
            token: the bearer token that requests must carry; None accepts all.
            tls: serve HTTPS with this context.
            bookmark_interval_s: how often a silent watch gets a bookmark.
        """
        self.store = Store()
        self.faults = Faults()
        self.stopped = threading.Event()
        self.token, self.tls = token, tls
        self.bookmark_interval_s = bookmark_interval_s
        self.watch_generation = 0
        self._port = port
        self._http: HttpServer | None = None
        self._thread: threading.Thread | None = None
        self._requests: list[Request] = []
        self._requests_lock = threading.Lock()

    # -- life ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """`http://127.0.0.1:<port>`."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Listen; also the end of an outage."""
        if self._http is not None:
            return self
        self.stopped.clear()
        self._http = HttpServer(self, self._port)
        self._port = int(self._http.server_address[1])
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="simulated-apiserver", daemon=True
        )
        self._thread.start()
        log.info("simulated_apiserver_started", extra=kv(url=self.url))
        return self

    def go_down(self) -> None:
        """Begin an outage: open connections end, new ones are refused; objects stay."""
        http, self._http = self._http, None
        if http is None or self._thread is None:
            return
        http.cut_all()
        self.store.wake()
        http.shutdown()
        http.server_close()
        self._thread.join(5.0)

    def stop(self) -> None:
        """End for good; harmless when called twice."""
        self.stopped.set()
        self.faults.clear()
        self.go_down()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def write_kubeconfig(self, path: Path, ca_file: Path | None = None) -> Path:
        """Write a kubeconfig that leads here, and return its path."""
        cluster: dict[str, str] = {"server": self.url}
        if ca_file is not None:
            cluster["certificate-authority"] = str(ca_file)
        user = {"token": self.token} if self.token is not None else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "simulated", "cluster": cluster}],
            "users": [{"name": "simulated", "user": user}],
            "contexts": [
                {"name": "simulated", "context": {"cluster": "simulated", "user": "simulated"}}
            ],
            "current-context": "simulated",
        }
        path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        path.chmod(0o600)
        return path

    # -- objects -------------------------------------------------------------------------------

    def create(self, resource: str, body: Mapping[str, Any]) -> Json:
        """Add an object, as a client's POST would. Raises Refused."""
        namespace = (body.get("metadata") or {}).get("namespace") or (
            "default" if KINDS[resource].is_namespaced else ""
        )
        return self.store.create(resource, namespace, body)

    def read(self, resource: str, name: str, namespace: str = "") -> Json:
        """One object. Raises Refused."""
        return self.store.read(resource, namespace, name)

    def list(self, resource: str, fields: str = "") -> list[Json]:
        """All objects of a kind, or those that a field selector names."""
        return self.store.select(resource, selector("", "", fields))[1]

    def edit(
        self, resource: str, name: str, change: Callable[[Json], object], namespace: str = ""
    ) -> Json:
        """Let `change` alter a copy of the object in place, then store that. Raises Refused."""

        def edited(body: Json) -> Json:
            change(body)
            return body

        return self.store.change(resource, namespace, name, edited)

    def annotate(
        self, resource: str, name: str, values: Mapping[str, str | None], namespace: str = ""
    ) -> Json:
        """Set or (None) remove annotations, as somebody else in the cluster would."""

        def change(body: Json) -> None:
            annotations = body["metadata"].setdefault("annotations", {})
            for key, value in values.items():
                annotations.pop(key, None)
                if value is not None:
                    annotations[key] = value

        return self.edit(resource, name, change, namespace)

    def delete(self, resource: str, name: str, namespace: str = "") -> Json:
        """Remove an object. Raises Refused."""
        return self.store.delete(resource, namespace, name)

    # -- faults --------------------------------------------------------------------------------

    def fail_next(self, verb: str, resource: str, outcome: int | str, times: int = 1) -> None:
        """Let the next requests fail.

        Args:
            verb: get, list, watch, create, update, patch, delete or `*`.
            resource: nodes, pods, events, leases, resourcequotas or `*`.
            outcome: an HTTP status, or a `faults.Outcome`: reset, reset-after, hang.
            times: how many requests.
        """
        self.faults.add(verb, resource, outcome, times)

    def expire_watches(self) -> None:
        """Forget the history and end all watches: to go on, a client has to list again (410)."""
        self.store.forget_history()
        self.drop_watches()

    def drop_watches(self) -> None:
        """End all watches in good order, as a server's time limit does."""
        self.watch_generation += 1
        self.store.wake()

    # -- what was asked ------------------------------------------------------------------------

    def note(self, request: Request) -> None:
        """Add to the list of requests."""
        with self._requests_lock:
            self._requests.append(request)

    def requests(
        self, *, verb: str = "", resource: str = "", user_agent: str = ""
    ) -> tuple[Request, ...]:
        """The requests so far, in order of their end; `user_agent` is a part of the header."""
        with self._requests_lock:
            seen = tuple(self._requests)
        return tuple(
            one
            for one in seen
            if verb in ("", one.verb)
            and resource in ("", one.resource)
            and user_agent in one.user_agent
        )

    def forget_requests(self) -> None:
        """Empty the list of requests."""
        with self._requests_lock:
            self._requests.clear()
