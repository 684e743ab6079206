"""HTTP and HTTPS for kube-scheduler, the API server's admission calls and probes."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Collection
from typing import Final, Self

from hami_node.errors import ConfigError
from hami_node.extender.http.application import Application, Endpoints, OnRequest
from hami_node.extender.http.certificates import Certificates, TlsFiles
from hami_node.extender.http.serving import (
    TLS_SHUTDOWN_S,
    BoundedServer,
    ServerLimits,
    accepts_only,
    listen,
)
from hami_node.logs import kv

__all__ = ["Endpoints", "ExtenderServer", "OnRequest", "ServerLimits", "TlsFiles"]

log: Final = logging.getLogger(__name__)


class ExtenderServer:
    """Serves in a thread of its own between `start` and `close`."""

    def __init__(
        self,
        address: str,
        endpoints: Endpoints,
        *,
        tls: TlsFiles | None = None,
        limits: ServerLimits | None = None,
        on_request: OnRequest = lambda _route, _status, _seconds: None,
        paths: Collection[str] | None = None,
    ) -> None:
        """Serve `HOST:PORT` or `:PORT` (0: any free port); with `tls` over HTTPS only.

        `paths` are those of the endpoints that are served here; None for all.
        """
        self._address, self._tls = address, tls
        self._limits = limits or ServerLimits()
        self._paths = paths
        self._application = Application(endpoints, self._limits, on_request, paths)
        self._stop, self._begun = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._server: BoundedServer | None = None
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
        tls = self._tls
        certificates = Certificates(tls) if tls is not None else None
        why_not = accepts_only(tls.client_name) if tls and tls.client_ca_file else None
        listener = listen(self._address, self._limits, "http-bind")
        self._port = int(listener.getsockname()[1])
        self._server = server = BoundedServer(
            self._application, certificates, why_not, self._limits
        )
        self._spawn("extender-http", lambda: self._serve(server, listener))
        if certificates:
            interval_s = self._limits.certificate_check_s
            self._spawn("certificates", lambda: certificates.run(self._stop, interval_s))
        self._begun.wait()
        if not self._server.is_listening:
            listener.close()
            hint = "the server ended at once, see the log for the reason"
            raise ConfigError("settings", "http-bind", self._address, hint)
        served = "all" if self._paths is None else sorted(self._paths)
        fields = kv(address=self._address, port=self._port, paths=served)
        log.info("extender_served", extra=fields)
        return self

    def running(self) -> int:
        """How many calls are worked on."""
        return self._application.running

    def close(self, grace_s: float = 20.0) -> None:
        """Accept no more; let running requests end, for at most `grace_s`, then abort them."""
        self._stop.set()
        if self._server is not None:
            self._server.stop(grace_s)
        for thread in self._threads:
            thread.join(grace_s + 2 * TLS_SHUTDOWN_S + 5.0)
        self._application.close()

    def _serve(self, server: BoundedServer, listener: socket.socket) -> None:
        try:
            asyncio.run(server.run(listener, self._begun))
        finally:
            self._begun.set()

    def _spawn(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
