"""A quick client of the API server: connections that stay open, one for each thread."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

Json = dict[str, Any]
T = TypeVar("T")

_THREADS: Final = 8
_PLAIN: Final = "application/json"
_GONE: Final = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
_MERGE: Final = "application/merge-patch+json"


class Refused(OSError):
    """The server answered with an error; one that starts refuses for a while."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class FleetClient:
    """One user; may be used from any thread."""

    def __init__(self, port: int, ca_file: Path, token: str) -> None:
        self._port, self._token = port, token
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self._local = threading.local()

    def send(
        self, method: str, path: str, value: object = None, content_type: str = _PLAIN
    ) -> bytes:
        """The body of a good answer; a connection that the server has closed is opened again."""
        body = None if value is None else json.dumps(value, separators=(",", ":")).encode()
        try:
            return self._once(method, path, body, content_type)
        except (http.client.RemoteDisconnected, *_GONE):
            self._local.http = None
            return self._once(method, path, body, content_type)

    def _once(self, method: str, path: str, body: bytes | None, content_type: str) -> bytes:
        connection = getattr(self._local, "http", None)
        if connection is None:
            connection = self._local.http = self.connection(timeout_s=60)
        try:
            connection.request(method, path, body, self.headers(content_type))
            answer = connection.getresponse()
            text = answer.read()
        except BaseException:
            self._local.http = None
            raise
        if answer.status >= 300:
            raise Refused(answer.status, f"{method} {path}: {answer.status} {text[:400]!r}")
        return bytes(text)

    def connection(self, timeout_s: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "127.0.0.1", self._port, timeout=timeout_s, context=self._context
        )

    def headers(self, content_type: str = _PLAIN) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": content_type,
            "User-Agent": "fleet-bench",
        }

    def read(self, path: str) -> Json:
        found: Json = json.loads(self.send("GET", path))
        return found

    def create(self, path: str, body: Json) -> Json:
        made: Json = json.loads(self.send("POST", path, body))
        return made

    def patch(self, path: str, body: Json) -> None:
        """Merge; None removes a key."""
        self.send("PATCH", path, body, _MERGE)

    def delete(self, path: str) -> None:
        """At once; gone already is as good. Nobody ends the containers of a pod on paper."""
        try:
            self.send("DELETE", path, {"gracePeriodSeconds": 0})
        except Refused as error:
            if error.status != 404:
                raise

    def exists(self, path: str) -> bool:
        try:
            self.send("GET", path)
        except Refused as error:
            if error.status == 404:
                return False
            raise
        return True

    def items(self, path: str, limit: int = 500) -> Iterator[Json]:
        """All objects of a list, page by page."""
        token = ""
        while True:
            more = f"&continue={token}" if token else ""
            page = self.read(f"{path}?limit={limit}{more}")
            yield from page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                return


def for_each(call: Callable[[T], object], items: Iterable[T], threads: int = _THREADS) -> None:
    """Call for every item, from several threads; the first error is raised."""
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(call, items):
            pass
