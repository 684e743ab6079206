"""Errors of HTTP, TLS and sockets are mapped to the project's errors here, and nowhere else."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from urllib3.exceptions import HTTPError, NewConnectionError, SSLError
from urllib3.exceptions import TimeoutError as HttpTimeout

from hami_node.cluster.calls import JSON_PATCH, ApiCall
from hami_node.cluster.watching.frames import UNREADABLE
from hami_node.errors import Conflict, Forbidden, Gone, KubeError, NotFound

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
