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
MAX_ITEMS: Final = 200_000
"""More objects of a kind are not looked at; 5,000 nodes have about 150,000 pods."""
_VERSION: Final = "/version"
_TRIES: Final = 3
_PAUSE_S: Final = 0.5


class PlainApi(Protocol):
    """What is needed of the Kubernetes client."""

    def request(self, method: str, path: str, *, body: object = None, query: Query = ()) -> bytes:
        """One request; the response's bytes. Raises KubeError."""


class BoundedApi(PlainApi, Protocol):
    """The same, for those who have a deadline."""

    def within(self, deadline: Deadline) -> PlainApi:
        """The same client, but all its calls end by the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Why something could not be read.

    Attributes:
        why: the reason, as the end of `not checked: `.
        error: what the API server said, or that it said nothing; None where it is not to blame.
    """

    why: str
    error: KubeError | None = None

    @property
    def is_absent(self) -> bool:
        """The object, or its whole kind, does not exist."""
        return isinstance(self.error, NotFound)

    @property
    def is_outage(self) -> bool:
        """The API server failed."""
        return self.error is not None and not (self.is_absent or _is_forbidden(self.error))


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """All objects of a list; with a gap those that were read before it."""

    items: tuple[T, ...]
    gap: Gap | None = None


class Reader:
    """Reads objects until a deadline."""

    def __init__(self, api: BoundedApi, deadline: Deadline) -> None:
        """Read with `api` until the deadline."""
        self._api, self._deadline = api.within(deadline), deadline

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

    def every(
        self,
        path: str,
        kind: type[T],
        *,
        labels: str = "",
        fields: str = "",
        keeps: Callable[[T], bool] = lambda _: True,
    ) -> Seen[T]:
        """All objects of a list; one that can't be read is a gap, the others are there.

        Args:
            path: the list.
            kind: what is read of each object.
            labels: a selector for the API server.
            fields: another, by fields.
            keeps: which objects matter; the others are forgotten at once.
        """
        decode = msgspec.json.Decoder(kind).decode
        selectors = (("labelSelector", labels), ("fieldSelector", fields))
        query = tuple((name, text) for name, text in selectors if text)
        return self.decoded(path, decode, query, keeps)

    def decoded(
        self,
        path: str,
        decode: Callable[[bytes], T],
        query: Query = (),
        keeps: Callable[[T], bool] = lambda _: True,
    ) -> Seen[T]:
        """The same with a decoder of the caller's."""
        found: list[T] = []
        gap: Gap | None = None
        try:
            for number, raw in enumerate(self._items(path, query), 1):
                try:
                    one = decode(raw)
                    if keeps(one):
                        found.append(one)
                except (WireError, *UNREADABLE) as error:
                    gap = Gap(why=f"one of the {_named(path)} can't be read: {error}")
                if number >= MAX_ITEMS:
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


def _is_forbidden(error: KubeError) -> bool:
    return isinstance(error, Forbidden) and error.status == 403


def _gap(error: KubeError, path: str) -> Gap:
    what, why = _named(path), str(error)
    if isinstance(error, NotFound):
        why = f"the cluster has no {what}"
    elif _is_forbidden(error):
        why = f"no right to read {what}"
    elif isinstance(error, Gone):
        why = f"{what} changed too quickly to be read whole; try again"
    return Gap(why=why, error=error)


def _named(path: str) -> str:
    """What a path leads to, in words that a narrow terminal can break."""
    resource, parts = resource_of(path), path.strip("/").split("/")
    name = "" if parts[-1] == resource else f" {unquote(parts[-1])}"
    space = f" in {unquote(parts[parts.index('namespaces') + 1])}" if "namespaces" in parts else ""
    return f"{resource}{name}{space}"
