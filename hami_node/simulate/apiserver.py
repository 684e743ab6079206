"""An embedded, simulated API server: real HTTP, a handful of kinds, faults on demand.

The demo and the integration tests run the daemon against it. It checks no permissions and keeps
nothing on disk; the `Server` header of every response names it as simulated.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from hami_node.logs import kv
from hami_node.simulate.api_http import HttpServer
from hami_node.simulate.api_state import ApiState
from hami_node.simulate.faults import Request
from hami_node.simulate.store import KINDS, Json, selector

log = logging.getLogger(__name__)


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
        self.state = ApiState(token=token, bookmark_interval_s=bookmark_interval_s)
        self.store, self.faults = self.state.store, self.state.faults
        self._tls = tls
        self._port = port
        self._http: HttpServer | None = None
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
        self.state.stopped.clear()
        self._http = HttpServer(self.state, self._port, self._tls)
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
        self.state.stopped.set()
        self.faults.clear()
        self.go_down()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def write_kubeconfig(self, path: Path, ca_file: Path | None = None) -> Path:
        """Write a kubeconfig for this server, and return its path."""
        token = self.state.token
        cluster: dict[str, str] = {"server": self.url}
        if ca_file is not None:
            cluster["certificate-authority"] = str(ca_file)
        user = {"token": token} if token is not None else {}
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

    # -- requests ------------------------------------------------------------------------------

    def requests(
        self, *, verb: str = "", resource: str = "", user_agent: str = ""
    ) -> tuple[Request, ...]:
        """The requests so far, in the order in which they ended; `user_agent` matches a part."""
        return tuple(
            item
            for item in self.state.requests.all()
            if verb in ("", item.verb)
            and resource in ("", item.resource)
            and user_agent in item.user_agent
        )
