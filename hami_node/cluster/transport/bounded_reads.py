"""Connections that read a response by one deadline, and send a request in one piece.

A socket's time limit starts again with every byte, so a server that sends one now and then could
hold a caller for hours.
"""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import urllib3.connection
import urllib3.connectionpool

from hami_node.clock import Deadline

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
