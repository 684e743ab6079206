"""kube-scheduler's extender JSON: arguments in, results out. Pure.

The keys are Go's field names; as in Go, the case of the arguments' keys does not matter. Source:
k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from hami_node.errors import WireError
from hami_node.extender.caller_limits import MAX_NODES, check_count
from hami_node.model import Node, Pod
from hami_node.wire.objects import decode_node, decode_pod

FEW_LOOKS: Final = 4
"""So often a name is searched in the bytes, which takes less time than to decode them all."""

_DECODER: Final = msgspec.json.Decoder(list[str])


class NodeNames(Collection[str]):
    """The names in a JSON list, each once; decoded when that is needed. For one thread."""

    __slots__ = ("_looks", "_names", "_raw")

    def __init__(self, raw: bytes) -> None:
        """Take valid JSON that `is_plain`."""
        self._raw, self._names, self._looks = raw, dict[str, None](), 0

    def __contains__(self, name: object) -> bool:
        """Whether it is one of them."""
        if not self._names and self._looks < FEW_LOOKS and isinstance(name, str):
            self._looks += 1
            return b'"%b"' % name.encode("utf-8", "replace") in self._raw
        return name in self._decoded()

    def __iter__(self) -> Iterator[str]:
        """In the order in which they were sent."""
        return iter(self._decoded())

    def __len__(self) -> int:
        """How many; until they are decoded, one that is there twice counts twice."""
        return len(self._names) or self._raw.count(b'"') // 2

    def _decoded(self) -> dict[str, None]:
        if not self._names:
            self._names = dict.fromkeys(_DECODER.decode(self._raw))
        return self._names


def is_plain(raw: bytes) -> bool:
    """Whether valid JSON is a list of simple strings, so that each is found by its bytes.

    With as many pairs of quotes as elements, and nothing inside that could be one, every element is
    a string, and none has a comma, a quote or an escape in it.
    """
    return (
        raw.startswith(b'["')
        and raw.isascii()
        and raw.count(b"[") == 1
        and not (b"\\" in raw or b"{" in raw)
        and raw.count(b'"') == 2 * (raw.count(b",") + 1)
    )


T = TypeVar("T")

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER: Final = msgspec.json.Encoder()
NULL: Final = b"null"
"""A member that is absent is one that is null."""


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenNode:
    """A node as the caller described it, decoded and raw."""

    node: Node
    raw: msgspec.Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterArgs:
    """A pod and its candidates: names, or whole nodes from callers that simulate; None is null."""

    pod: Pod
    node_names: Collection[str] | None
    nodes: tuple[GivenNode, ...] | None

    @property
    def candidates(self) -> Collection[str]:
        """The names of the nodes to choose from."""
        if self.node_names is not None:
            return self.node_names
        return tuple(given.node.name for given in self.nodes or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class BindArgs:
    """A pod to bind."""

    namespace: str
    name: str
    uid: str
    node: str

    @property
    def key(self) -> str:
        """`namespace/name`, for messages."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterAnswer:
    """The nodes that fit, and why the others do not.

    Attributes:
        node_names: names of nodes that fit; None where the caller sent whole nodes.
        nodes: nodes that fit, as received; None where the caller sent names.
        failed: reasons by node; waiting or preemption may help.
        unresolvable: reasons by node; neither will help.
        error: the filter itself failed.
    """

    node_names: Collection[str] | None = None
    nodes: Sequence[msgspec.Raw] | None = None
    failed: Mapping[str, str] | None = None
    unresolvable: Mapping[str, str] | None = None
    error: str = ""


def decode_filter_args(body: bytes) -> FilterArgs:
    """Read /filter's body.

    Raises:
        WireError: not such an object; the text names the member.
    """
    members = members_of(body)
    pod = pod_of(members)
    names = _names_of(members.get("nodenames", NULL))
    listed = decoded(members.get("nodes", NULL), _NodeList, "Nodes")
    nodes = None
    if listed is not None:
        check_count("Nodes", listed.items or (), MAX_NODES)
        nodes = tuple(_given(raw) for raw in listed.items or ())
    return FilterArgs(pod=pod, node_names=names, nodes=nodes)


def decode_bind_args(body: bytes) -> BindArgs:
    """Read /bind's body.

    Raises:
        WireError: not such an object; the text names the member.
    """
    members = members_of(body)
    wanted = {"podname": "PodName", "podnamespace": "PodNamespace", "poduid": "PodUID"}
    found: dict[str, str] = {}
    for key, shown in {**wanted, "node": "Node"}.items():
        value = decoded(members.get(key, NULL), str, shown)
        if not value:
            raise WireError(shown, "", "is missing")
        found[key] = value
    return BindArgs(
        name=found["podname"],
        namespace=found["podnamespace"],
        uid=found["poduid"],
        node=found["node"],
    )


def encode_filter_answer(answer: FilterAnswer) -> bytes:
    """Write /filter's answer."""
    nodes = None if answer.nodes is None else {"items": list(answer.nodes)}
    return _ENCODER.encode(
        {
            "Nodes": nodes,
            "NodeNames": None if answer.node_names is None else list(answer.node_names),
            "FailedNodes": dict(answer.failed or {}),
            "FailedAndUnresolvableNodes": dict(answer.unresolvable or {}),
            "Error": answer.error,
        }
    )


def encode_error(error: str) -> bytes:
    """Write /bind's answer; "" is success."""
    return _ENCODER.encode({"Error": error})


def pod_of(members: Mapping[str, bytes]) -> Pod:
    """The pod that a call is about. Raises WireError for one that none can be."""
    raw = members.get("pod", NULL)
    if raw == NULL:
        raise WireError("Pod", "", "is missing")
    pod = decode_pod(raw)
    if not (pod.name and pod.namespace and pod.uid):
        raise WireError("Pod", pod.key, "has no name, namespace or uid")
    return pod


def _names_of(raw: bytes) -> Collection[str] | None:
    """The candidates, each once; a plain list is decoded later, if at all."""
    if is_plain(raw):
        names = NodeNames(raw)
        check_count("NodeNames", names, MAX_NODES)
        return names
    given = decoded(raw, list[str], "NodeNames")
    check_count("NodeNames", given or (), MAX_NODES)
    return None if given is None else tuple(dict.fromkeys(given))


def _given(raw: msgspec.Raw) -> GivenNode:
    """One whole node; it may be returned as received, so its unread fields are checked here."""
    text = bytes(raw)
    node = decode_node(text)
    try:
        if not text.isascii():
            text.decode("utf-8")
    except UnicodeError as e:
        raise WireError("Nodes", node.name, str(e)) from e
    return GivenNode(node=node, raw=raw)


def members_of(body: bytes) -> dict[str, bytes]:
    """The members of a body by name in lower case, not decoded. Raises WireError."""
    try:
        return {key.lower(): bytes(raw) for key, raw in _MEMBERS.decode(body).items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
        raise WireError("body", body[:80].decode("utf-8", "replace"), str(e)) from e


def decoded(raw: bytes, kind: type[T], member: str) -> T | None:
    """One member; None for null. Raises WireError, which names the member."""
    try:
        return None if raw == NULL else msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
        raise WireError(member, raw[:80].decode("utf-8", "replace"), str(e)) from e
