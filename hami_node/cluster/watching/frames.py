"""Lists and watch events of the API server, split into single objects without decoding them.

Every object is decoded on its own, so that a bad object affects that object only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from hami_node.errors import KubeError


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """Enough to identify an object, even if the rest can't be decoded."""

    namespace: str = ""
    name: str = ""
    resource_version: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name); the namespace of a node is ""."""
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """A page of a list; `next_token` is "" on the last page."""

    resource_version: str
    next_token: str
    items: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFrame:
    """A line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and the object's bytes."""

    kind: str
    raw: bytes


class _Meta(msgspec.Struct, rename="camel"):
    namespace: str = ""
    name: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ListPage(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _NamedObject(msgspec.Struct):
    metadata: _Meta | None = None


class _Row(msgspec.Struct):
    cells: list[object] | None = None


class _Names(msgspec.Struct):
    """A table, or the list that a server without tables sends in its place."""

    rows: list[_Row] | None = None
    items: list[_NamedObject] | None = None


class _WatchLine(msgspec.Struct):
    type: str
    object: msgspec.Raw


UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a JSON decoder raises for bytes that it can't read."""

_LIST = msgspec.json.Decoder(_ListPage)
_EVENT = msgspec.json.Decoder(_WatchLine)
_OBJECT = msgspec.json.Decoder(_Object)


def read_list(body: bytes) -> ListPage:
    """Split a list into its objects.

    Raises:
        KubeError: the body is no list.
    """
    try:
        found = _LIST.decode(body)
    except UNREADABLE as error:
        raise KubeError(f"the API server sent no list: {error}") from error
    return ListPage(
        resource_version=found.metadata.resource_version,
        next_token=found.metadata.continue_,
        items=tuple(bytes(item) for item in found.items or ()),
    )


def read_names(body: bytes) -> tuple[str, ...]:
    """The names in a table, whose first column they are, or in a list.

    Raises:
        KubeError: the body is neither.
    """
    try:
        found = msgspec.json.decode(body, type=_Names)
    except UNREADABLE as error:
        raise KubeError(f"the API server sent no table: {error}") from error
    cells = (row.cells[0] for row in found.rows or () if row.cells)
    names = (item.metadata.name for item in found.items or () if item.metadata)
    return tuple(str(name) for name in (*cells, *names))


def read_frame(line: bytes) -> WatchFrame:
    """Split a line of a watch into its type and its object.

    Raises:
        KubeError: the line is no watch event.
    """
    try:
        found = _EVENT.decode(line)
    except UNREADABLE as error:
        raise KubeError(f"the API server sent no watch event: {error}") from error
    return WatchFrame(kind=found.type, raw=bytes(found.object))


def read_meta(raw: bytes) -> ObjectMeta:
    """Read what identifies an object.

    Raises:
        KubeError: there is no readable metadata.
    """
    try:
        meta = _OBJECT.decode(raw).metadata
    except UNREADABLE as error:
        raise KubeError(f"the API server sent an object without metadata: {error}") from error
    return ObjectMeta(
        namespace=meta.namespace, name=meta.name, resource_version=meta.resource_version
    )


def read_mapping(body: bytes) -> Mapping[str, object]:
    """A whole object as plain values, for the kinds that have no model.

    Raises:
        KubeError: the body is no JSON object.
    """
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except UNREADABLE as error:
        raise KubeError(f"the API server sent no JSON object: {error}") from error
