"""Kubernetes objects: JSON bytes to the parts of pods and nodes that the product reads.

Made to be quick and small, because a scheduler extender holds every pod of a cluster: unknown
fields are skipped by the decoder, and only what is read is kept. Names of annotations and
resources are shared between objects.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeVar
from zlib import crc32

import msgspec

from hami_node.errors import WireError
from hami_node.model import NO_CONDITIONS, Container, ContainerKind, Node, Pod
from hami_node.text import cut
from hami_node.wire import names

Items = tuple[tuple[str, str], ...]

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
MOST_SHARED: Final = 16
"""Larger mappings are seldom equal, and would keep memory that nobody uses."""

MOST_CHARS_SHARED: Final = 1_000
"""In all of a mapping. A webhook is shown labels of any length, before they are refused."""

MOST_CHARS: Final = 40
"""Longer texts are no times."""

_DROPPED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_REPEATED: Final = frozenset((names.POD_NODE, names.POD_BIND_PHASE))
"""Annotations with a few values, which thousands of pods have."""
_OF_A_MOMENT: Final = frozenset((names.POD_TIME, names.POD_BIND_TIME))
"""Annotations that are equal on pods that were bound together."""


def one_text(text: str) -> str:
    """One object for texts that often follow each other: the pods of an owner are made together.

    Whoever may edit a pod can write 256 KiB there, which must not outlive the pod: only what is as
    short as a time is remembered.
    """
    return _remembered(text) if len(text) <= MOST_CHARS else text


@lru_cache(maxsize=1024)  # three more each second, on a busy cluster: more would be kept for hours
def _remembered(text: str) -> str:
    return text


def shared(found: Mapping[str, str | None]) -> Mapping[str, str]:
    """One mapping for all objects with equal ones: the pods of a Deployment differ in little."""
    if not found:
        return NOTHING
    kept = {sys.intern(name): value or "" for name, value in found.items()}
    return one_of(tuple(kept.items())) if is_worth_sharing(kept) else kept


def is_worth_sharing(kept: Mapping[str, str]) -> bool:
    """True for a mapping that may be remembered after the object is gone: it is small."""
    if len(kept) > MOST_SHARED:
        return False
    return sum(map(len, kept)) + sum(map(len, kept.values())) <= MOST_CHARS_SHARED


@lru_cache(maxsize=8192)
def one_of(items: Items) -> Mapping[str, str]:
    """One mapping for all objects with these entries."""
    return MappingProxyType(dict(items))


def annotations_of(raw: Mapping[str, str | None] | None) -> Mapping[str, str]:
    """An object's annotations: most have an entry that no other object has."""
    kept: dict[str, str] = {}
    texts: dict[str, str] = {}
    for name, value in (raw or {}).items():
        if name == _DROPPED:
            continue
        if not value:
            text = ""
        elif name in _REPEATED:
            text = sys.intern(value)
        elif name in _OF_A_MOMENT:
            text = one_text(value)
        else:  # what is reserved and what is still to be served are equal at first
            text = texts.setdefault(value, value)
        kept[sys.intern(name)] = text
    return kept or NOTHING


T = TypeVar("T")

MOST_NAME: Final = 63
"""Of a container. The name of a variable may be as long as its pod, and is then not remembered."""

Raw = bytes | str | Mapping[str, object]
"""One object: JSON text, or JSON that has been parsed already."""

_KEPT_ENV: Final = ("CUDA_", "LIBCUDA_", "GPU_")
_OF_KUBELET: Final = frozenset(
    ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
)
_NOT_ADMITTED: Final = "UnexpectedAdmissionError"
_MAX_REFUSAL: Final = 300
_KEPT_INSIDE: Final = ("_GPU_", "_DEVICE", "_OVERSUBSCRIBE", "_REDIRECT", "LD_PRELOAD")
"""Variables with such a name are kept without their value as well: that they are set decides."""
_NOT_BOUND: Final = frozenset(("Unschedulable", "SchedulerError"))
"""Written when an attempt has failed; a pod with a scheduling gate has not been looked at yet."""


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
    priority: int | None = None
    preemption_policy: str | None = None
    init_containers: list[_Container] | None = None
    containers: list[_Container] | None = None


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int | None = None


class _Waiting(msgspec.Struct):
    """Why it waits is read by nobody."""


class _State(msgspec.Struct):
    terminated: _Terminated | None = None
    waiting: _Waiting | None = None


class _ContainerStatus(msgspec.Struct):
    name: str | None = None
    state: _State | None = None
    last_state: _State | None = msgspec.field(name="lastState", default=None)
    container_id: str | None = msgspec.field(name="containerID", default=None)


class _PodCondition(msgspec.Struct, rename="camel"):
    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str | None = None
    conditions: list[_PodCondition] | None = None
    reason: str | None = None
    message: str | None = None
    nominated_node_name: str | None = None
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
    reason: str | None = None


class _NodeInfo(msgspec.Struct, rename="camel"):
    kubelet_version: str | None = None
    container_runtime_version: str | None = None


class _NodeStatus(msgspec.Struct, rename="camel"):
    capacity: _Quantities = None
    allocatable: _Quantities = None
    conditions: list[_Condition] | None = None
    node_info: _NodeInfo | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


_POD: Final = msgspec.json.Decoder(_Pod)
_NODE: Final = msgspec.json.Decoder(_Node)


def decode_pod(raw: Raw) -> Pod:
    """Read one pod.

    Only variables that concern accelerators are kept of a container's environment, and
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


def _decode(decoder: msgspec.json.Decoder[T], kind: type[T], raw: Raw, what: str) -> T:
    try:
        if isinstance(raw, bytes | str):
            return decoder.decode(raw)
        return msgspec.convert(raw, kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        # The object itself stays out of the message: it may be large and hold secrets.
        raise WireError(what, str(error), "can't be read") from error


def _pod_of(raw: _Pod) -> Pod:
    metadata, spec = raw.metadata or _Metadata(), raw.spec or _PodSpec()
    status = raw.status or _PodStatus()
    statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    ended = dict(_exit_codes(statuses))
    inits = (_container_of(item, _init_kind(item), ended) for item in spec.init_containers or ())
    apps = (_container_of(item, ContainerKind.APP, ended) for item in spec.containers or ())
    return Pod(
        uid=metadata.uid or "",
        namespace=sys.intern(metadata.namespace or ""),
        name=metadata.name or "",
        node_name=sys.intern(spec.node_name or ""),
        phase=sys.intern(status.phase or "Pending"),
        scheduler_name=sys.intern(spec.scheduler_name or ""),
        annotations=annotations_of(metadata.annotations),
        labels=shared(metadata.labels or {}),
        containers=(*inits, *apps),
        resource_version=metadata.resource_version or "",
        creation_time=one_text(metadata.creation_timestamp or ""),
        is_being_deleted=metadata.deletion_timestamp is not None,
        has_containers=any(item.container_id for item in statuses),
        refusal=_refusal_of(status),
        priority=spec.priority or 0,
        never_preempts=spec.preemption_policy == "Never",
        nominated_node=sys.intern(status.nominated_node_name or ""),
        is_preempted=any(map(_is_preemption, status.conditions or ())),
        unscheduled=_unscheduled(status.conditions or ()),
    )


def _is_preemption(condition: _PodCondition) -> bool:
    """Only who may write a pod's status can say so. Source: k8s.io/api/core/v1/types.go."""
    return condition.type == "DisruptionTarget" and condition.reason == "PreemptionByScheduler"


def _unscheduled(conditions: Iterable[_PodCondition]) -> str:
    """Another text whenever kube-scheduler says something new; its own may be long."""
    for item in conditions:
        if item.type == "PodScheduled" and item.status == "False" and item.reason in _NOT_BOUND:
            said = crc32((item.message or "").encode(errors="replace"))
            return f"{item.reason} {item.last_transition_time} {said:08x}"
    return ""


def _refusal_of(status: _PodStatus) -> str:
    """Kubelet's message about a pod that it could not give what it had promised."""
    if status.phase != "Failed" or status.reason != _NOT_ADMITTED:
        return ""
    return cut(status.message or status.reason, _MAX_REFUSAL)


def _exit_codes(statuses: Iterable[_ContainerStatus]) -> Iterable[tuple[str, int | None]]:
    """Those of containers that have ended, by name; None for one that waits to start again."""
    for status in statuses:
        state, last = status.state or _State(), status.last_state or _State()
        if state.terminated and status.name:
            yield status.name, state.terminated.exit_code
        elif state.waiting and last.terminated and status.name:
            yield status.name, None


def _init_kind(raw: _Container) -> ContainerKind:
    return ContainerKind.SIDECAR if raw.restart_policy == "Always" else ContainerKind.INIT


def _container_of(
    raw: _Container, kind: ContainerKind, ended: Mapping[str, int | None]
) -> Container:
    resources = raw.resources or _Resources()
    limits, requests = _extended(resources.limits), _extended(resources.requests)
    is_privileged = bool(raw.security_context and raw.security_context.privileged)
    name, env = sys.intern(raw.name or ""), _literals(raw.env)
    is_plain = not env and raw.name not in ended and len(name) <= MOST_NAME
    if is_plain and is_worth_sharing(limits) and is_worth_sharing(requests):
        return _one_container(
            name, kind, tuple(limits.items()), tuple(requests.items()), is_privileged
        )
    return Container(
        name=name,
        kind=kind,
        limits=limits,
        requests=limits if requests == limits else requests,
        env=env,
        is_privileged=is_privileged,
        is_terminated=raw.name in ended,
        is_terminated_ok=ended.get(raw.name or "") == 0,
    )


@lru_cache(maxsize=8192)
def _one_container(
    name: str, kind: ContainerKind, limits: Items, requests: Items, is_privileged: bool
) -> Container:
    """One object for all running containers that differ in nothing."""
    kept = one_of(limits) if limits else NOTHING
    return Container(
        name=name,
        kind=kind,
        limits=kept,
        requests=kept if requests == limits else one_of(requests) if requests else NOTHING,
        env=NOTHING,
        is_privileged=is_privileged,
    )


def _literals(env: Iterable[_Env] | None) -> Mapping[str, str]:
    kept = {}
    for item in env or ():
        if not item.name:
            continue
        is_short = len(item.name) <= MOST_NAME
        is_kept, has_to_have_value = _known(item.name) if is_short else _kept_as(item.name)
        if is_kept and (item.value is not None or not has_to_have_value):
            kept[sys.intern(item.name)] = item.value or ""
    return kept or NOTHING


def _kept_as(name: str) -> tuple[bool, bool]:
    """Whether a variable with that name is kept, and whether only with its value."""
    if any(part in name for part in _KEPT_INSIDE):
        return True, False
    return name.startswith(_KEPT_ENV), True


_known: Final = lru_cache(maxsize=4096)(_kept_as)


def _extended(quantities: _Quantities) -> Mapping[str, str]:
    if not quantities:
        return NOTHING
    return shared(
        {
            name: str(value)
            for name, value in quantities.items()
            if "/" in name and value is not None
        }
    )


def _foreign_conditions(raw: Iterable[_Condition] | None) -> Mapping[str, str]:
    """Most nodes have none, so it costs nothing to hold thousands."""
    kept = {
        sys.intern(item.type): sys.intern(item.reason or "")
        for item in raw or ()
        if item.type and item.type not in _OF_KUBELET
    }
    return kept or NO_CONDITIONS


def _node_of(raw: _Node) -> Node:
    metadata, status = raw.metadata or _Metadata(), raw.status or _NodeStatus()
    ready = [item.status == "True" for item in status.conditions or () if item.type == "Ready"]
    info = status.node_info or _NodeInfo()
    return Node(
        name=metadata.name or "",
        uid=metadata.uid or "",
        annotations=annotations_of(metadata.annotations),
        labels=shared(metadata.labels or {}),
        capacity=_extended(status.capacity),
        allocatable=_extended(status.allocatable),
        resource_version=metadata.resource_version or "",
        is_unschedulable=bool(raw.spec and raw.spec.unschedulable),
        is_ready=all(ready),
        conditions=_foreign_conditions(status.conditions),
        kubelet_version=sys.intern(info.kubelet_version or ""),
        engine_version=sys.intern(info.container_runtime_version or ""),
    )
