"""One HTTP connection pool to the API server: credentials, TLS, time limits, errors by meaning.

Configuration, credentials and TLS are those of the `kubernetes` package; bodies stay bytes here.
This is the only place where errors of HTTP, TLS and sockets become ours.
"""

from __future__ import annotations

import http.client
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, SSLError
from urllib3.exceptions import TimeoutError as HttpTimeout

from hami_node.cluster.credentials import CREDENTIAL_ERRORS
from hami_node.cluster.frames import UNREADABLE
from hami_node.cluster.light_import import import_light
from hami_node.errors import ConfigError, Conflict, Forbidden, Gone, KubeError, NotFound
from hami_node.logs import kv

(_rest, _keepalive) = import_light("kubernetes.client.rest", "kubernetes.utils.keepalive")

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
PLAIN_JSON: Final = "application/json"

OnRequest = Callable[[str, str, int], None]
"""Told after each request: verb (get, list, watch, create, update, patch, delete), resource, HTTP
status; 0 when no answer came."""

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 16
_ADMISSION_WORDS: Final = ("ValidatingAdmissionPolicy", "admission webhook", "denied the request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits of one call in seconds: until connected, between two reads, and all together."""

    connect_s: float = 5.0
    read_s: float = 10.0
    total_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as data. `subject` names the object for people: `nodes/gpu-1`."""

    method: str
    verb: str
    path: str
    resource: str
    subject: str
    query: tuple[tuple[str, str], ...] = ()
    body: object = None
    content_type: str = PLAIN_JSON

    def __str__(self) -> str:
        """`patch nodes/gpu-1`."""
        return f"{self.verb} {self.subject}"


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
    """The Status in a body; of what a proxy sends instead, the first words."""
    try:
        return msgspec.json.decode(body, type=Status)
    except UNREADABLE:
        return Status(message=bytes(body)[:200].decode("utf-8", "replace").strip())


def failure_of(call: Call, status: int, said: Status, retry_after: str = "") -> KubeError:
    """The error that an HTTP status means for this call."""
    words = said.message or http.client.responses.get(status, "no reason given")
    text = f"can't {call}: {words} (HTTP {status})"
    if status in (401, 403):
        cure = (
            "the API server does not accept our credentials"
            if status == 401
            else f"check that our service account may {call.verb} {call.resource}"
        )
        return Forbidden(f"{text}; {cure}", status)
    if status == 422 and any(word in words for word in _ADMISSION_WORDS):
        return Forbidden(f"{text}; an admission rule of the cluster refuses it", status)
    if status == 404:
        return NotFound(text, status)
    if status == 409 or (status == 422 and _is_failed_test(call, said)):
        return Conflict(text, status)
    if status == 410:
        return Gone(text, status)
    return KubeError(text, status, _retry_after_s(said, retry_after))


def _is_failed_test(call: Call, said: Status) -> bool:
    """Whether a 422 means that a JSON patch did not fit; an invalid result names its fields."""
    has_causes = said.details is not None and bool(said.details.causes)
    return call.content_type == JSON_PATCH and not has_causes


def _retry_after_s(said: Status, header: str) -> float | None:
    if header.isdecimal():
        return float(header)
    if said.details is not None and said.details.retry_after_seconds > 0:
        return float(said.details.retry_after_seconds)
    return None


def _unreachable(call: Call, host: str, error: Exception) -> KubeError:
    """The error for a call that got no HTTP answer."""
    if isinstance(error, SSLError):
        return KubeError(f"can't {call}: TLS with {host} failed: {error}")
    # urllib3 counts a refused connection among the time-outs
    if isinstance(error, HttpTimeout) and not isinstance(error, NewConnectionError):
        return KubeError(f"can't {call}: {host} did not answer in time")
    return KubeError(f"can't {call}: {host} can't be reached: {_plain_words(error)}")


def _plain_words(error: BaseException) -> str:
    """What the operating system said, without the layers around it: `Connection refused`."""
    inner: BaseException | None = error
    while inner is not None:
        for one in (inner, *inner.args):
            if isinstance(one, OSError) and one.strerror:
                return one.strerror
        inner = inner.__cause__ or inner.__context__
    return str(error)


@contextmanager
def _foreign_errors(call: Call, host: str) -> Iterator[None]:
    """The one mapping point of errors without an HTTP status."""
    try:
        yield
    except (HTTPError, http.client.HTTPException, OSError) as error:
        raise _unreachable(call, host, error) from error


class Stream:
    """The body of a watch: lines as they arrive."""

    def __init__(self, response: urllib3.BaseHTTPResponse, call: Call, host: str) -> None:
        """Take over the response; `close` gives its connection back."""
        self._response, self._call, self._host = response, call, host

    def allow_silence(self, silence_s: float) -> None:
        """Wait so long for the next byte; up to the first it was the time limit of any answer."""
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
        with _foreign_errors(self._call, self._host):
            return self._response.read1(_READ_BYTES)

    def interrupt(self) -> None:
        """Make a `lines` that waits in another thread end now."""
        try:
            self._response.shutdown()
        except (ValueError, RuntimeError, OSError):
            return  # already over, which is what was wanted

    def close(self) -> None:
        """Close the connection: a watch left half-read can't be reused."""
        self._response.close()


class Connection:
    """Sends calls. Thread-safe; every call is bounded in time."""

    def __init__(
        self,
        load: Callable[[], Any],
        *,
        user_agent: str,
        monotonic: Callable[[], float],
        timeouts: Timeouts | None = None,
        on_request: OnRequest | None = None,
    ) -> None:
        """Build the pool; nothing is sent yet.

        Args:
            load: gives the `kubernetes` Configuration; called again when the API server no longer
                accepts our credentials, which then may have been rotated.
            user_agent: sent with each request.
            monotonic: seconds, for time limits.
            timeouts: of each call.
            on_request: told of each call.

        Raises:
            ConfigError: `load` finds no usable credentials.
        """
        configuration = load()
        self._load = load
        configuration.retries = False
        # a peer that vanished is noticed within half a minute, also by a silent watch
        configuration.socket_options = _keepalive.tcp_keepalive_socket_options(
            idle=15, interval=5, count=3
        )
        configuration.connection_pool_maxsize = 8
        self._configuration = configuration
        self._pool: urllib3.PoolManager = _rest.RESTClientObject(configuration).pool_manager
        self._user_agent = user_agent
        self._timeouts = timeouts or Timeouts()
        self._on_request = on_request or (lambda _verb, _resource, _status: None)
        self._monotonic = monotonic

    @property
    def host(self) -> str:
        """Where the API server is: `https://10.0.0.1:443`."""
        return str(self._configuration.host)

    def send(self, call: Call) -> bytes:
        """Send one call and read its whole answer.

        Raises:
            KubeError: or one of its kinds, by HTTP status.
        """
        deadline = self._monotonic() + self._timeouts.total_s
        response = self._open(call, self._timeouts.read_s)
        body = self._read_all(response, call, deadline)
        _check(call, response, body)
        return body

    @contextmanager
    def stream(self, call: Call, silence_s: float) -> Iterator[Stream]:
        """Open a watch; `silence_s` without a byte counts as a dead connection.

        Raises:
            KubeError: or one of its kinds, by HTTP status.
        """
        response = self._open(call, self._timeouts.read_s)
        stream = Stream(response, call, self.host)
        try:
            if response.status >= 300:
                deadline = self._monotonic() + self._timeouts.total_s
                _check(call, response, self._read_all(response, call, deadline))
            stream.allow_silence(silence_s)
            yield stream
        finally:
            stream.close()

    def close(self) -> None:
        """Give all idle connections back."""
        self._pool.clear()

    def _open(self, call: Call, read_s: float) -> urllib3.BaseHTTPResponse:
        """Send a call; once more when it was refused for credentials that have been rotated."""
        response = self._request(call, read_s)
        if response.status == 401 and self._renew_credentials():
            response.close()
            response = self._request(call, read_s)
        return response

    def _request(self, call: Call, read_s: float) -> urllib3.BaseHTTPResponse:
        url = self.host + call.path + (f"?{urlencode(call.query)}" if call.query else "")
        body = None if call.body is None else msgspec.json.encode(call.body)
        status = 0
        try:
            with _foreign_errors(call, self.host):
                response = self._pool.request(
                    call.method,
                    url,
                    body=body,
                    headers=self._headers(call),
                    timeout=urllib3.Timeout(connect=self._timeouts.connect_s, read=read_s),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
                status = response.status
                return response
        finally:
            self._on_request(call.verb, call.resource, status)

    def _headers(self, call: Call) -> Mapping[str, str]:
        headers = {"Accept": PLAIN_JSON, "User-Agent": self._user_agent}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        token = _authorization(self._configuration, call)
        if token is not None:
            headers["Authorization"] = token
        return headers

    def _renew_credentials(self) -> bool:
        """Load the configuration again; True when it holds another token than before."""
        before = self._configuration.api_key.copy()
        try:
            configuration = self._load()
        except ConfigError as error:
            log.warning("credentials_not_renewed", extra=kv(error=str(error)))
            return False
        self._configuration.api_key = configuration.api_key
        self._configuration.refresh_api_key_hook = configuration.refresh_api_key_hook
        return bool(configuration.api_key != before)

    def _read_all(self, response: urllib3.BaseHTTPResponse, call: Call, deadline: float) -> bytes:
        """The body, even from a server that sends a byte now and then for ever."""
        chunks: list[bytes] = []
        try:
            with _foreign_errors(call, self.host):
                while chunk := response.read1(_READ_BYTES):
                    chunks.append(chunk)
                    if self._monotonic() > deadline:
                        raise TimeoutError(f"answer not complete after {self._timeouts.total_s} s")
        except KubeError:
            response.close()
            raise
        response.release_conn()
        return b"".join(chunks)


def _authorization(configuration: Any, call: Call) -> str | None:  # noqa: ANN401 - untyped library
    """The Authorization header; the configuration reads a rotated token file again itself."""
    try:
        token = configuration.get_api_key_with_prefix("BearerToken", "authorization")
    except CREDENTIAL_ERRORS as error:
        raise KubeError(f"can't {call}: our credentials can't be read: {error}") from error
    return None if token is None else str(token)


def _check(call: Call, response: urllib3.BaseHTTPResponse, body: bytes) -> None:
    if response.status >= 300:
        retry_after = response.headers.get("Retry-After", "")
        raise failure_of(call, response.status, decode_status(body), retry_after)
