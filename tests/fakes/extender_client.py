"""A client as kube-scheduler's: it keeps its connection until the server closes it."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hami_node.simulate.store import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """How a call ended; `status` is 0 where the connection failed."""

    status: int
    answer: Any
    seconds: float

    @property
    def is_lost(self) -> bool:
        """True if kube-scheduler would count it as an error of the extender."""
        return self.status != 200


class ExtenderClient:
    """Calls whom `where` names: `host:port`, as the Service's address leads to it."""

    def __init__(
        self,
        where: Callable[[], str],
        timeout_s: float = 30.0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._where, self._timeout_s, self._context = where, timeout_s, context
        self._connection: http.client.HTTPConnection | None = None

    def call(self, path: str, body: Json) -> Called:
        """One call, as Go's `http.Client.Do` makes it."""
        began_s = time.monotonic()
        try:
            status, answer = self._once(path, json.dumps(body))
        except (OSError, http.client.HTTPException) as error:
            self.close()
            status, answer = 0, str(error)
        return Called(status=status, answer=answer, seconds=time.monotonic() - began_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _once(self, path: str, data: str) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.will_close:
            self.close()
        return response.status, json.loads(text)

    def _connect(self) -> http.client.HTTPConnection:
        where = self._where()
        if self._context is not None:
            return http.client.HTTPSConnection(
                where, timeout=self._timeout_s, context=self._context
            )
        return http.client.HTTPConnection(where, timeout=self._timeout_s)
