"""Sends requests to the API server: retries after transient failures, and lists in pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import tenacity

from hami_node.clock import Deadline
from hami_node.cluster.calls import ApiCall, Query
from hami_node.cluster.transport.connection import Connection, Stream
from hami_node.cluster.watching.frames import read_list
from hami_node.errors import KubeError
from hami_node.ports import Fence

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
