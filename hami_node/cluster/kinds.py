"""The kinds of objects that are watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic

from hami_node.cluster.watching.object_cache import Key, T
from hami_node.model import Node, Pod
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.quotas import ResourceQuota, decode_resource_quota


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedKind(Generic[T]):
    """What to list and how to read it."""

    resource: str
    path: str
    decode: Callable[[bytes], T]
    key_of: Callable[[T], Key]


PODS: Final[WatchedKind[Pod]] = WatchedKind(
    resource="pods",
    path="/api/v1/pods",
    decode=decode_pod,
    key_of=lambda pod: (pod.namespace, pod.name),
)
NODES: Final[WatchedKind[Node]] = WatchedKind(
    resource="nodes", path="/api/v1/nodes", decode=decode_node, key_of=lambda node: ("", node.name)
)

QUOTAS: Final[WatchedKind[ResourceQuota]] = WatchedKind(
    resource="resourcequotas",
    path="/api/v1/resourcequotas",
    decode=decode_resource_quota,
    key_of=lambda quota: (quota.namespace, quota.name),
)
