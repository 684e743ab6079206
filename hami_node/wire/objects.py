"""Kubernetes objects: JSON bytes to the parts of pods and nodes that the product reads.

Made to be quick and small, for a scheduler extender holds every pod of a cluster: unknown fields
are skipped by the decoder, and only what somebody reads is kept. Names of annotations and
resources are shared between objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import msgspec

from hami_node.errors import WireError
from hami_node.model import Container, ContainerKind, Node, Pod

T = TypeVar("T")

Raw = bytes | str | Mapping[str, object]
"""One object: JSON text, or JSON that has been parsed already."""

_DROPPED_ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KEPT_ENV: Final = ("NVIDIA_", "CUDA_", "LIBCUDA_", "GPU_", "NEURON_")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """A page of objects; `continue_token` is "" on the last one."""

    items: tuple[T, ...]
    resource_version: str = ""
    continue_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent(Generic[T]):
    """One line of a watch.

    Attributes:
        type: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.
        item: the object; None for BOOKMARK and ERROR.
        resource_version: of the object or the bookmark.
        status: HTTP status of an ERROR (410: list again); 0 elsewhere.
        message: the server's words in an ERROR.
    """

    type: str
    item: T | None = None
    resource_version: str = ""
    status: int = 0
    message: str = ""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str | None] | None = None
    labels: dict[str, str | None] | None = None


_Quantities = dict[str, str | int | float | None] | None


class _Resources(msgspec.Struct):
    limits: _Quantities = None
    requests: _Quantities = None


class _Env(msgspec.Struct):
    name: str | None = None
    value: str | None = None


class _SecurityContext(msgspec.Struct):
    privileged: bool | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str | None = None
    resources: _Resources | None = None
    env: list[_Env] | None = None
    security_context: _SecurityContext | None = None
    restart_policy: str | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str | None = None
    scheduler_name: str | None = None
    init_containers: list[_Container] | None = None
    containers: list[_Container] | None = None


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int | None = None


class _State(msgspec.Struct):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct):
    name: str | None = None
    state: _State | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _NodeSpec(msgspec.Struct):
    unschedulable: bool | None = None


class _Condition(msgspec.Struct):
    type: str | None = None
    status: str | None = None


class _NodeStatus(msgspec.Struct):
    capacity: _Quantities = None
    allocatable: _Quantities = None
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str | None = None
    continue_token: str | None = msgspec.field(name="continue", default=None)


class _List(msgspec.Struct):
    metadata: _ListMetadata | None = None
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bare(msgspec.Struct):
    """A bookmark's object, or the Status of an error."""

    metadata: _Metadata | None = None
    code: int | None = None
    message: str | None = None


_POD: Final = msgspec.json.Decoder(_Pod)
_NODE: Final = msgspec.json.Decoder(_Node)
_LIST: Final = msgspec.json.Decoder(_List)
_EVENT: Final = msgspec.json.Decoder(_Event)
_BARE: Final = msgspec.json.Decoder(_Bare)


def decode_pod(raw: Raw) -> Pod:
    """Read one pod.

    Only literal variables that concern accelerators are kept of a container's environment, and
    only extended resources (names with a `/`) of its limits and requests.

    Raises:
        WireError: not JSON, or a field of the wrong kind; the text names the field.
    """
    return _pod_of(_decode(_POD, _Pod, raw, "pod"))


def decode_node(raw: Raw) -> Node:
    """Read one node; a node without a Ready condition counts as ready.

    Raises:
        WireError: not JSON, or a field of the wrong kind; the text names the field.
    """
    return _node_of(_decode(_NODE, _Node, raw, "node"))


def decode_pod_list(raw: bytes | str) -> Listing[Pod]:
    """Read a PodList, in the server's order.

    Raises:
        WireError: not JSON, or a field of the wrong kind; the text names the field.
    """
    return _decode_list(raw, decode_pod)


def decode_node_list(raw: bytes | str) -> Listing[Node]:
    """Read a NodeList, in the server's order.

    Raises:
        WireError: not JSON, or a field of the wrong kind; the text names the field.
    """
    return _decode_list(raw, decode_node)


def decode_pod_event(line: bytes | str) -> WatchEvent[Pod]:
    """Read one line of a watch on pods.

    Raises:
        WireError: not JSON, or a field of the wrong kind; the text names the field.
    """
    event = _decode(_EVENT, _Event, line, "watch event")
    if event.type in ("BOOKMARK", "ERROR"):
        return _bare_event(event)
    pod = decode_pod(bytes(event.object))
    return WatchEvent(type=event.type, item=pod, resource_version=pod.resource_version)


def decode_node_event(line: bytes | str) -> WatchEvent[Node]:
    """Read one line of a watch on nodes.

    Raises:
        WireError: not JSON, or a field of the wrong kind; the text names the field.
    """
    event = _decode(_EVENT, _Event, line, "watch event")
    if event.type in ("BOOKMARK", "ERROR"):
        return _bare_event(event)
    node = decode_node(bytes(event.object))
    return WatchEvent(type=event.type, item=node, resource_version=node.resource_version)


def _bare_event(event: _Event) -> WatchEvent[T]:
    bare = _decode(_BARE, _Bare, bytes(event.object), "watch event")
    metadata = bare.metadata or _Metadata()
    return WatchEvent(
        type=event.type,
        resource_version=metadata.resource_version or "",
        status=bare.code or 0,
        message=bare.message or "",
    )


def _decode(decoder: msgspec.json.Decoder[T], kind: type[T], raw: Raw, what: str) -> T:
    try:
        if isinstance(raw, bytes | str):
            return decoder.decode(raw)
        return msgspec.convert(raw, kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        # The object itself stays out of the message: it may be large and hold secrets.
        raise WireError(what, str(error), "can't be read") from error


def _decode_list(raw: bytes | str, decode_item: Callable[[bytes], T]) -> Listing[T]:
    """One object after the other: a list of 10,000 pods never stands in memory twice."""
    page = _decode(_LIST, _List, raw, "list")
    head = page.metadata or _ListMetadata()
    return Listing(
        items=tuple(decode_item(bytes(item)) for item in page.items or ()),
        resource_version=head.resource_version or "",
        continue_token=head.continue_token or "",
    )


def _pod_of(raw: _Pod) -> Pod:
    metadata, spec = raw.metadata or _Metadata(), raw.spec or _PodSpec()
    status = raw.status or _PodStatus()
    ended = frozenset(_ended_ok(status.init_container_statuses)) | frozenset(
        _ended_ok(status.container_statuses)
    )
    inits = (_container_of(one, _init_kind(one), ended) for one in spec.init_containers or ())
    apps = (_container_of(one, ContainerKind.APP, ended) for one in spec.containers or ())
    return Pod(
        uid=metadata.uid or "",
        namespace=sys.intern(metadata.namespace or ""),
        name=metadata.name or "",
        node_name=sys.intern(spec.node_name or ""),
        phase=sys.intern(status.phase or "Pending"),
        scheduler_name=sys.intern(spec.scheduler_name or ""),
        annotations=_texts(metadata.annotations),
        labels=_texts(metadata.labels),
        containers=(*inits, *apps),
        resource_version=metadata.resource_version or "",
        creation_time=metadata.creation_timestamp or "",
        is_being_deleted=metadata.deletion_timestamp is not None,
    )


def _ended_ok(statuses: Iterable[_ContainerStatus] | None) -> Iterable[str]:
    for status in statuses or ():
        ended = status.state and status.state.terminated
        if ended and ended.exit_code == 0 and status.name:
            yield status.name


def _init_kind(raw: _Container) -> ContainerKind:
    return ContainerKind.SIDECAR if raw.restart_policy == "Always" else ContainerKind.INIT


def _container_of(raw: _Container, kind: ContainerKind, ended: frozenset[str]) -> Container:
    resources = raw.resources or _Resources()
    limits, requests = _extended(resources.limits), _extended(resources.requests)
    return Container(
        name=sys.intern(raw.name or ""),
        kind=kind,
        limits=limits,
        requests=limits if requests == limits else requests,
        env=_literals(raw.env),
        is_privileged=bool(raw.security_context and raw.security_context.privileged),
        is_terminated_ok=raw.name in ended,
    )


def _literals(env: Iterable[_Env] | None) -> Mapping[str, str]:
    kept = {
        sys.intern(one.name): one.value
        for one in env or ()
        if one.name and one.value is not None and one.name.startswith(_KEPT_ENV)
    }
    return kept or _NOTHING


def _extended(quantities: _Quantities) -> Mapping[str, str]:
    kept = {
        sys.intern(name): str(value)
        for name, value in (quantities or {}).items()
        if "/" in name and value is not None
    }
    return kept or _NOTHING


def _texts(raw: Mapping[str, str | None] | None) -> Mapping[str, str]:
    kept = {
        sys.intern(name): value or ""
        for name, value in (raw or {}).items()
        if name != _DROPPED_ANNOTATION
    }
    return kept or _NOTHING


def _node_of(raw: _Node) -> Node:
    metadata, status = raw.metadata or _Metadata(), raw.status or _NodeStatus()
    ready = [one.status == "True" for one in status.conditions or () if one.type == "Ready"]
    return Node(
        name=metadata.name or "",
        uid=metadata.uid or "",
        annotations=_texts(metadata.annotations),
        labels=_texts(metadata.labels),
        capacity=_extended(status.capacity),
        allocatable=_extended(status.allocatable),
        resource_version=metadata.resource_version or "",
        is_unschedulable=bool(raw.spec and raw.spec.unschedulable),
        is_ready=all(ready),
    )
