"""One HTTP connection pool to the API server: credentials, TLS, time limits.

Configuration, credentials and TLS are those of the `kubernetes` package; bodies stay bytes here.
"""

from __future__ import annotations

import http.client
import io
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec
import tenacity
import urllib3
import urllib3.connection
import urllib3.connectionpool
from urllib3.exceptions import HTTPError, NewConnectionError, SSLError
from urllib3.exceptions import TimeoutError as HttpTimeout

from hami_node.clock import Deadline
from hami_node.cluster.calls import JSON_PATCH, ApiCall, Query
from hami_node.cluster.transport.credentials import CREDENTIAL_ERRORS, acting_as
from hami_node.cluster.transport.light_import import import_light
from hami_node.cluster.watching.frames import UNREADABLE, read_list
from hami_node.errors import (
    AnswerTooLarge,
    ConfigError,
    Conflict,
    Forbidden,
    Gone,
    KubeError,
    NotFound,
)
from hami_node.logs import kv
from hami_node.ports import Clock, Fence

log = logging.getLogger(__name__)

_ADMISSION_WORDS: Final = ("ValidatingAdmissionPolicy", "admission webhook", "denied the request")


class _Details(msgspec.Struct, rename="camel"):
    """Part of a Status object; `causes` name the fields that are invalid."""

    retry_after_seconds: int = 0
    causes: list[object] | None = None


class Status(msgspec.Struct):
    """What the API server sends with an error, and inside an ERROR watch event."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


def decode_status(body: bytes | msgspec.Raw) -> Status:
    """The Status in a body; for anything else, as a proxy may send, its first words."""
    try:
        return msgspec.json.decode(body, type=Status)
    except UNREADABLE:
        return Status(message=bytes(body)[:200].decode("utf-8", "replace").strip())


def failure_of(call: ApiCall, status: int, body: Status, retry_after: str = "") -> KubeError:
    """The error that an HTTP status means for this call."""
    words = body.message or http.client.responses.get(status, "no reason given")
    text = f"can't {call}: {words} (HTTP {status})"
    if status in (401, 403):
        hint = (
            "the API server does not accept our credentials"
            if status == 401
            else f"check that our service account may {call.verb} {call.resource}"
        )
        return Forbidden(f"{text}; {hint}", status)
    if status == 422 and any(word in words for word in _ADMISSION_WORDS):
        return Forbidden(f"{text}; an admission rule of the cluster refuses it", status)
    if status == 404:
        return NotFound(text, status)
    if status == 409 or (status == 422 and _is_failed_test(call, body)):
        return Conflict(text, status)
    if status == 410:
        return Gone(text, status)
    return KubeError(text, status, _retry_after_s(body, retry_after))


def _is_failed_test(call: ApiCall, status: Status) -> bool:
    """Whether a 422 means that a JSON patch did not apply; for an invalid object it has causes."""
    has_causes = status.details is not None and bool(status.details.causes)
    return call.content_type == JSON_PATCH and not has_causes


def _retry_after_s(status: Status, header: str) -> float | None:
    if header.isdecimal():
        return float(header)
    if status.details is not None and status.details.retry_after_seconds > 0:
        return float(status.details.retry_after_seconds)
    return None


def _unreachable(call: ApiCall, host: str, error: Exception) -> KubeError:
    """The error for a call without an HTTP response."""
    if isinstance(error, SSLError):
        return KubeError(f"can't {call}: TLS with {host} failed: {error}")
    # in urllib3 a refused connection is a timeout too
    if isinstance(error, HttpTimeout) and not isinstance(error, NewConnectionError):
        return KubeError(f"can't {call}: {host} did not answer in time")
    return KubeError(f"can't {call}: {host} can't be reached: {_plain_words(error)}")


def _plain_words(error: BaseException) -> str:
    """The operating system's message, without the layers around it: `Connection refused`."""
    inner: BaseException | None = error
    while inner is not None:
        for cause in (inner, *inner.args):
            if isinstance(cause, OSError) and cause.strerror:
                return cause.strerror
        inner = inner.__cause__ or inner.__context__
    return str(error)


@contextmanager
def foreign_errors(call: ApiCall, host: str) -> Iterator[None]:
    """The only place where errors without an HTTP status are mapped."""
    try:
        yield
    except (HTTPError, http.client.HTTPException, OSError) as error:
        raise _unreachable(call, host, error) from error


_limit: Final[ContextVar[Deadline | None]] = ContextVar("limit", default=None)


@contextmanager
def all_reads_by(deadline: Deadline) -> Iterator[None]:
    """Reads of responses in this block, and in this thread, end by the deadline."""
    token = _limit.set(deadline)
    try:
        yield
    finally:
        _limit.reset(token)


class _BoundedReads(io.RawIOBase):
    """A socket's bytes."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._sock = raw, sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - any writable buffer
        deadline = _limit.get()
        if deadline is not None:
            left_s, usual_s = deadline.left_s(), self._sock.gettimeout()
            if not left_s:
                raise TimeoutError("the response is not complete in time")
            self._sock.settimeout(left_s if usual_s is None else min(left_s, usual_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **named: Any) -> None:  # noqa: ANN401
        super().__init__(sock, *args, **named)
        self.fp = io.BufferedReader(_BoundedReads(self.fp.detach(), sock))


class _HttpConnection(urllib3.connection.HTTPConnection):
    """Its head and its body are otherwise two writes, each of which wakes the server."""

    response_class = _Response
    _held: bytearray | None = None

    def request(self, *args: Any, **named: Any) -> None:  # noqa: ANN401 - passed on
        self._held = held = bytearray()
        try:
            super().request(*args, **named)
        finally:
            self._held = None
        self.send(held)

    def send(self, data: Any) -> None:  # noqa: ANN401 - as the base class has it
        if self._held is None:
            super().send(data)
        else:
            self._held += data


class _HttpsConnection(_HttpConnection, urllib3.connection.HTTPSConnection):
    pass


class _HttpPool(urllib3.connectionpool.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


POOL_CLASSES: Final = {"http": _HttpPool, "https": _HttpsPool}
"""For `urllib3.PoolManager.pool_classes_by_scheme`."""


(_rest, _keepalive) = import_light("kubernetes.client.rest", "kubernetes.utils.keepalive")

OnRequest = Callable[[str, str, int], None]
"""Called after each request: verb (get, list, watch, create, update, patch, delete), resource, HTTP
status; 0 when there was no response."""


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


PAGE_LIMIT: Final = 500
_JITTERED: Final = tenacity.wait_random_exponential(multiplier=0.2, max=5.0)


class Sender:
    """Sends requests; their responses are bytes. Thread-safe."""

    def __init__(
        self,
        connection: Connection,
        *,
        stop: threading.Event | None = None,
        attempts: int = 1,
        fence: Fence | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Send through a connection.

        Args:
            connection: where requests go.
            stop: ends waits between attempts.
            attempts: the most attempts for a request that fails transiently.
            fence: raises where a write must not be sent any more; checked before each attempt.
            deadline: when the caller's time is over; None for the usual limits of each request.
        """
        self._connection, self._attempts = connection, attempts
        self._fence, self._deadline = fence, deadline
        self._stop = stop or threading.Event()

    def with_attempts(self, attempts: int) -> Sender:
        """The same connection with another number of attempts."""
        return Sender(self._connection, stop=self._stop, attempts=attempts, fence=self._fence)

    def fenced(self, fence: Fence) -> Sender:
        """The same connection; `fence` is checked before each attempt to write."""
        return Sender(self._connection, stop=self._stop, attempts=self._attempts, fence=fence)

    def within(self, deadline: Deadline) -> Sender:
        """The same connection, for calls that all end by the deadline and are tried once."""
        return Sender(self._connection, stop=self._stop, fence=self._fence, deadline=deadline)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def send(self, call: ApiCall) -> bytes:
        """Send a call and read its whole response. Raises KubeError or one of its kinds."""
        if self._attempts == 1:
            return self._attempt(call)
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._attempts)
            | tenacity.stop_when_event_set(self._stop),
            wait=_wait_s,
            retry=tenacity.retry_if_exception(_is_transient),
            sleep=tenacity.sleep_using_event(self._stop),
            reraise=True,
        )
        return retrying(self._attempt, call)

    def _attempt(self, call: ApiCall) -> bytes:
        if self._fence is not None and call.method != "GET":
            self._fence()
        return self._connection.send(call, self._deadline)

    def patch(
        self, path: str, resource: str, subject: str, body: object, content_type: str
    ) -> bytes:
        """PATCH an object; `subject` names it for people."""
        return self.send(
            ApiCall(
                method="PATCH",
                verb="patch",
                path=path,
                resource=resource,
                subject=subject,
                body=body,
                content_type=content_type,
            )
        )

    def list_page(
        self, path: str, resource: str, query: Query, most_bytes: int | None = None
    ) -> bytes:
        """A page of a LIST, undecoded. Raises AnswerTooLarge beyond `most_bytes`."""
        return self.send(replace(_read_call("list", path, resource, query), most_bytes=most_bytes))

    def list_items(
        self, path: str, resource: str, query: Query = (), most_bytes: int | None = None
    ) -> Iterator[bytes]:
        """All objects of a list; `resourceVersion=0` takes them from the API server's cache.

        Raises AnswerTooLarge where a page, which then is the whole list, has more bytes.
        """
        first: Query = (*query, ("limit", str(PAGE_LIMIT)), ("resourceVersion", "0"))
        page = read_list(self.list_page(path, resource, first, most_bytes))
        yield from page.items
        while page.next_token:
            more: Query = (*query, ("limit", str(PAGE_LIMIT)), ("continue", page.next_token))
            page = read_list(self.list_page(path, resource, more, most_bytes))
            yield from page.items

    @contextmanager
    def watch(self, path: str, resource: str, query: Query, silence_s: float) -> Iterator[Stream]:
        """Open a WATCH; `silence_s` without a byte counts as a dead connection."""
        call = _read_call("watch", path, resource, (*query, ("watch", "true")))
        with self._connection.stream(call, silence_s) as stream:
            yield stream


def _read_call(verb: str, path: str, resource: str, query: Query) -> ApiCall:
    """A call for all objects of a resource."""
    return ApiCall(
        method="GET", verb=verb, path=path, resource=resource, subject=resource, query=query
    )


def _wait_s(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: as the server requested, else growing and jittered."""
    error = state.outcome.exception() if state.outcome else None
    wanted_s = error.retry_after_s if isinstance(error, KubeError) else None
    return _JITTERED(state) if wanted_s is None else min(wanted_s, 5.0) + _JITTERED(state) / 4


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, KubeError) and error.is_transient
