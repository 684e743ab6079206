"""One HTTP connection pool to the API server: credentials, TLS, time limits.

Configuration, credentials and TLS are those of the `kubernetes` package; bodies stay bytes here.
"""

from __future__ import annotations

import http.client
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec
import urllib3

from hami_node.clock import Deadline
from hami_node.cluster.calls import ApiCall
from hami_node.cluster.transport.bounded_reads import POOL_CLASSES, all_reads_by
from hami_node.cluster.transport.credentials import CREDENTIAL_ERRORS, acting_as
from hami_node.cluster.transport.failures import decode_status, failure_of, foreign_errors
from hami_node.cluster.transport.light_import import import_light
from hami_node.errors import AnswerTooLarge, ConfigError, KubeError
from hami_node.logs import kv
from hami_node.ports import Clock

(_rest, _keepalive) = import_light("kubernetes.client.rest", "kubernetes.utils.keepalive")

OnRequest = Callable[[str, str, int], None]
"""Called after each request: verb (get, list, watch, create, update, patch, delete), resource, HTTP
status; 0 when there was no response."""

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 16
_IDLE_CONNECTIONS: Final = 40
"""Kept for the next requests: no fewer than the extender has threads that bind, because each
further one would cost two handshakes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits of a call in seconds: until connected, between two reads, and in total."""

    connect_s: float = 5.0
    read_s: float = 10.0
    total_s: float = 30.0


class Stream:
    """The body of a watch: lines as they arrive."""

    def __init__(self, response: urllib3.BaseHTTPResponse, call: ApiCall, host: str) -> None:
        """Take over the response; `close` closes its connection."""
        self._response, self._call, self._host = response, call, host

    def allow_silence(self, silence_s: float) -> None:
        """Wait up to `silence_s` for each further byte; until now the usual read limit applied."""
        connection = self._response.connection
        if isinstance(connection, http.client.HTTPConnection) and connection.sock is not None:
            connection.sock.settimeout(silence_s)

    def lines(self) -> Iterator[bytes]:
        """Each line without its end.

        Raises:
            KubeError: the connection broke or was silent for too long.
        """
        rest = bytearray()
        while chunk := self._read():
            rest += chunk
            end = rest.rfind(b"\n")
            if end < 0:
                continue
            whole = bytes(rest[:end])
            del rest[: end + 1]
            yield from (line for line in whole.split(b"\n") if line.strip())
        if rest.strip():
            yield bytes(rest)

    def _read(self) -> bytes:
        with foreign_errors(self._call, self._host):
            return self._response.read1(_READ_BYTES)

    def interrupt(self) -> None:
        """End a `lines` call that waits in another thread."""
        try:
            self._response.shutdown()
        except (ValueError, RuntimeError, OSError):
            return  # it has already ended

    def close(self) -> None:
        """Close the connection: after a watch that was read in part it can't be reused."""
        self._response.close()


class Connection:
    """Sends calls. Thread-safe; every call is bounded in time."""

    def __init__(
        self,
        load: Callable[[], Any],
        *,
        user_agent: str,
        clock: Clock,
        timeouts: Timeouts | None = None,
        on_request: OnRequest | None = None,
    ) -> None:
        """Build the pool; nothing is sent yet.

        Args:
            load: returns the `kubernetes` Configuration; called again when the API server no longer
                accepts our credentials, which may have been rotated.
            user_agent: sent with each request.
            clock: for time limits.
            timeouts: of each call.
            on_request: called after each request.

        Raises:
            ConfigError: `load` finds no usable credentials.
        """
        configuration = load()
        self._load = load
        configuration.retries = False
        # a peer that vanished is detected within half a minute, also by a silent watch
        configuration.socket_options = _keepalive.tcp_keepalive_socket_options(
            idle=15, interval=5, count=3
        )
        configuration.connection_pool_maxsize = _IDLE_CONNECTIONS
        if not configuration.verify_ssl:  # the kubeconfig says so: nobody needs it repeated
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._configuration = configuration
        self._pools: urllib3.PoolManager = _rest.RESTClientObject(configuration).pool_manager
        self._pools.pool_classes_by_scheme = POOL_CLASSES
        self._pool, self._base = _pool_of(self._pools, self.host)
        self._user_agent = user_agent
        self._timeouts = timeouts or Timeouts()
        self._on_request = on_request or (lambda _verb, _resource, _status: None)
        self._clock = clock

    @property
    def host(self) -> str:
        """The API server's address: `https://10.0.0.1:443`."""
        return str(self._configuration.host)

    def send(self, call: ApiCall, deadline: Deadline | None = None) -> bytes:
        """Send a call and read its whole response.

        Args:
            call: the request.
            deadline: when the caller's own time is over; the usual limits apply as well.

        Raises:
            KubeError: or one of its kinds, by HTTP status.
        """
        limit = self._clock.deadline(self._timeouts.total_s)
        if deadline is not None:
            limit = limit.at_most(deadline.left_s())
        with all_reads_by(limit):
            response = self._open(call, self._timeouts.read_s, limit)
            body = self._read_all(response, call, limit)
        _check(call, response, body)
        return body

    @contextmanager
    def stream(self, call: ApiCall, silence_s: float) -> Iterator[Stream]:
        """Open a watch; `silence_s` without a byte counts as a dead connection.

        Raises:
            KubeError: or one of its kinds, by HTTP status.
        """
        limit = self._clock.deadline(self._timeouts.total_s)
        with all_reads_by(limit):
            response = self._open(call, self._timeouts.read_s, limit)
        stream = Stream(response, call, self.host)
        try:
            if response.status >= 300:
                with all_reads_by(limit):
                    body = self._read_all(response, call, limit)
                _check(call, response, body)
            stream.allow_silence(silence_s)
            yield stream
        finally:
            stream.close()

    def close(self) -> None:
        """Close all idle connections."""
        self._pools.clear()

    def _open(self, call: ApiCall, read_s: float, limit: Deadline) -> urllib3.BaseHTTPResponse:
        """Send a call; retry it once when it was refused and the credentials were rotated."""
        response = self._request(call, read_s, limit)
        if response.status == 401 and self._renew_credentials():
            response.close()
            response = self._request(call, read_s, limit)
        return response

    def _request(self, call: ApiCall, read_s: float, limit: Deadline) -> urllib3.BaseHTTPResponse:
        left_s = limit.left_s()
        if not left_s:
            raise KubeError(f"can't {call}: no time is left for it")
        url = self._base + call.path + (f"?{urlencode(call.query)}" if call.query else "")
        body = None if call.body is None else msgspec.json.encode(call.body)
        status = 0
        try:
            with foreign_errors(call, self.host):
                response = self._pool.urlopen(
                    call.method,
                    url,
                    body=body,
                    headers=self._headers(call),
                    timeout=urllib3.Timeout(
                        connect=self._timeouts.connect_s, read=read_s, total=left_s
                    ),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
                status = response.status
                return response
        finally:
            self._on_request(call.verb, call.resource, status)

    def _headers(self, call: ApiCall) -> Mapping[str, str]:
        headers = {"Accept": call.accept, "User-Agent": self._user_agent}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        token = _authorization(self._configuration, call)
        if token is not None:
            headers["Authorization"] = token
        acting = tuple(acting_as(self._configuration))
        if not acting:
            return headers
        repeated = urllib3.HTTPHeaderDict(headers)
        for name, value in acting:
            repeated.add(name, value)
        return repeated

    def _renew_credentials(self) -> bool:
        """Load the configuration again; True when it contains another token than before."""
        before = self._configuration.api_key.copy()
        try:
            configuration = self._load()
        except ConfigError as error:
            log.warning("credentials_not_renewed", extra=kv(error=str(error)))
            return False
        self._configuration.api_key = configuration.api_key
        self._configuration.refresh_api_key_hook = configuration.refresh_api_key_hook
        return bool(configuration.api_key != before)

    def _read_all(
        self, response: urllib3.BaseHTTPResponse, call: ApiCall, limit: Deadline
    ) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            with foreign_errors(call, self.host):
                while chunk := response.read1(_READ_BYTES):
                    chunks.append(chunk)
                    size += len(chunk)
                    if call.most_bytes is not None and size > call.most_bytes:
                        raise AnswerTooLarge(f"can't {call}: more than {call.most_bytes} bytes")
        except KubeError as e:
            response.close()
            if not limit.left_s():
                raise KubeError(f"can't {call}: the answer is not complete in time") from e
            raise
        response.release_conn()
        return b"".join(chunks)


def _pool_of(
    pools: urllib3.PoolManager, host: str
) -> tuple[urllib3.PoolManager | urllib3.HTTPConnectionPool, str]:
    """What sends requests to this server, and what stands before the path of each.

    Nearly always it is one pool; only a proxy has to see to which server a request goes.
    """
    if isinstance(pools, urllib3.ProxyManager):
        return pools, host
    return pools.connection_from_url(host), urlsplit(host).path.rstrip("/")


def _authorization(configuration: Any, call: ApiCall) -> str | None:  # noqa: ANN401 - untyped library
    """The Authorization header; the configuration itself reloads a rotated token file."""
    try:
        token = configuration.get_api_key_with_prefix("BearerToken", "authorization")
    except (*CREDENTIAL_ERRORS, ConfigError) as error:
        raise KubeError(f"can't {call}: our credentials can't be read: {error}") from error
    return None if token is None else str(token)


def _check(call: ApiCall, response: urllib3.BaseHTTPResponse, body: bytes) -> None:
    if response.status >= 300:
        retry_after = response.headers.get("Retry-After", "")
        raise failure_of(call, response.status, decode_status(body), retry_after)
