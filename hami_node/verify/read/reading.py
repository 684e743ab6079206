"""Reads the objects of the cluster; a right that is missing leaves a gap, which is shown.

Everything shares one deadline. A page of a list is decoded to what is needed before the next one
is fetched: 5,000 nodes are 100 MB of JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import unquote

import msgspec

from hami_node.clock import Deadline
from hami_node.cluster.calls import Query
from hami_node.cluster.paths import resource_of
from hami_node.cluster.watching.frames import UNREADABLE, read_list
from hami_node.errors import Forbidden, Gone, KubeError, NotFound, WireError

T = TypeVar("T")

PAGE: Final = 500
MAX_ITEMS: Final = 50_000
"""More objects of a kind are not looked at."""
_VERSION: Final = "/version"
_TRIES: Final = 3
_PAUSE_S: Final = 0.5


class PlainApi(Protocol):
    """What is needed of the Kubernetes client."""

    def request(self, method: str, path: str, *, body: object = None, query: Query = ()) -> bytes:
        """One request; the response's bytes. Raises KubeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Why something could not be read.

    Attributes:
        why: the reason, as the end of `not checked: `.
        is_absent: the object, or its whole kind, does not exist.
        is_outage: the API server failed.
    """

    why: str
    is_absent: bool = False
    is_outage: bool = False


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """All objects of a list; with a gap those that were read before it."""

    items: tuple[T, ...]
    gap: Gap | None = None


class Reader:
    """Reads objects until a deadline."""

    def __init__(self, api: PlainApi, deadline: Deadline) -> None:
        """Read with `api` until the deadline."""
        self._api, self._deadline = api, deadline

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._deadline.left_s()

    def reach(self) -> None:
        """Find out at once whether somebody answers.

        Raises:
            KubeError: nobody, or somebody who does not know us.
        """
        try:
            self._api.request("GET", _VERSION)
        except KubeError as error:
            if error.status not in (403, 404):
                raise

    def one(self, path: str, kind: type[T]) -> T | Gap:
        """One object."""
        try:
            return msgspec.json.decode(self._get(path), type=kind)
        except KubeError as error:
            return _gap(error, path)
        except UNREADABLE as error:
            return Gap(why=f"{_named(path)} can't be read: {error}")

    def every(self, path: str, kind: type[T], *, labels: str = "", fields: str = "") -> Seen[T]:
        """All objects of a list; one that can't be read is a gap, the others are there."""
        decode = msgspec.json.Decoder(kind).decode
        selectors = (("labelSelector", labels), ("fieldSelector", fields))
        return self.decoded(path, decode, tuple((name, text) for name, text in selectors if text))

    def decoded(self, path: str, decode: Callable[[bytes], T], query: Query = ()) -> Seen[T]:
        """The same with a decoder of the caller's."""
        found: list[T] = []
        gap: Gap | None = None
        try:
            for raw in self._items(path, query):
                try:
                    found.append(decode(raw))
                except (WireError, *UNREADABLE) as error:
                    gap = Gap(why=f"one of the {_named(path)} can't be read: {error}")
                if len(found) >= MAX_ITEMS:
                    gap = Gap(why=f"only the first {MAX_ITEMS:,} {_named(path)} were read")
                    break
        except KubeError as error:
            gap = _gap(error, path)
        return Seen(tuple(found), gap)

    def _items(self, path: str, query: Query) -> Iterator[bytes]:
        token = ""
        while True:
            more = (("continue", token),) if token else ()
            page = read_list(self._get(path, (*query, ("limit", str(PAGE)), *more)))
            yield from page.items
            token = page.next_token
            if not token:
                return

    def _get(self, path: str, query: Query = ()) -> bytes:
        """A response; what may pass is tried again while time is left."""
        for left in reversed(range(_TRIES)):
            try:
                return self._api.request("GET", path, query=query)
            except KubeError as error:
                if not error.is_transient or not left or not self._deadline.pause(_PAUSE_S):
                    raise
        raise AssertionError("unreachable")


def _gap(error: KubeError, path: str) -> Gap:
    what = _named(path)
    if isinstance(error, NotFound):
        return Gap(why=f"the cluster has no {what}", is_absent=True)
    if isinstance(error, Forbidden) and error.status == 403:
        return Gap(why=f"no right to read {what}")
    if isinstance(error, Gone):
        return Gap(why=f"{what} changed too quickly to be read whole; try again", is_outage=True)
    return Gap(why=str(error), is_outage=True)


def _named(path: str) -> str:
    """What a path leads to, in words that a narrow terminal can break."""
    resource, parts = resource_of(path), path.strip("/").split("/")
    name = "" if parts[-1] == resource else f" {unquote(parts[-1])}"
    space = f" in {unquote(parts[parts.index('namespaces') + 1])}" if "namespaces" in parts else ""
    return f"{resource}{name}{space}"
