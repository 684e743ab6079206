"""Objects as `kubectl get -o json` saves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from hami_node.errors import WireError
from hami_node.inspection.views import Problem
from hami_node.model import Node, Pod
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.quotas import ResourceQuota, decode_resource_quota

_LIST_KINDS: Final = {
    "NodeList": "Node",
    "PodList": "Pod",
    "ResourceQuotaList": "ResourceQuota",
    "EventList": "Event",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The objects of a saved list.

    Pods are there as plain values as well, by key, and Events as plain values only.
    """

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    problems: tuple[Problem, ...]
    quotas: tuple[ResourceQuota, ...] = ()
    plain_pods: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    events: tuple[Mapping[str, object], ...] = ()


def read_saved(text: bytes, source: str) -> Saved:
    """Decode the output of `kubectl get nodes,pods -A -o json`: a single object or lists.

    A broken object is a problem and affects that object only.

    Raises:
        WireError: not JSON, or no node and no pod in it.
    """
    try:
        document: Any = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
        excerpt = text[:80].decode("utf-8", "replace")
        raise WireError(source, excerpt, f"not JSON ({e}); save with kubectl get -o json") from e
    nodes: list[Node] = []
    pods: list[Pod] = []
    quotas: list[ResourceQuota] = []
    plain: dict[str, Mapping[str, object]] = {}
    events: list[Mapping[str, object]] = []
    problems: list[Problem] = []
    for kind, item in _objects(document):
        try:
            if kind == "Node":
                nodes.append(decode_node(item))
            elif kind == "Pod":
                pods.append(decode_pod(item))
                plain[pods[-1].key] = item
            elif kind == "Event":
                events.append(item)
            elif kind == "ResourceQuota":
                quotas.append(decode_resource_quota(item))
        except WireError as e:
            problems.append(Problem(where=source, why=str(e)))
    if not nodes and not pods and not problems:
        raise WireError(source, "", "contains no node and no pod; save with kubectl get -o json")
    return Saved(
        nodes=tuple(nodes),
        pods=tuple(pods),
        problems=tuple(problems),
        quotas=tuple(quotas),
        plain_pods=plain,
        events=tuple(events),
    )


def _objects(document: Any) -> Iterable[tuple[str, Mapping[str, object]]]:  # noqa: ANN401 - any JSON
    if not isinstance(document, dict):
        return
    items = document.get("items")
    if not isinstance(items, list):
        items = [document]
    default = _LIST_KINDS.get(str(document.get("kind")), "")
    for item in items:
        if isinstance(item, dict):
            yield str(item.get("kind") or default), item
