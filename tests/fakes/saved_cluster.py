"""Nodes and pods as `kubectl get -o json` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

GPU: Final = "GPU-11111111-2222-3333-4444-555555555555"
NOW_S: Final = 1_700_000_000.0


def node_json(name: str, annotations: Mapping[str, str]) -> dict[str, object]:
    """One node."""
    return {
        "kind": "Node",
        "metadata": {"name": name, "annotations": dict(annotations)},
        "status": {"allocatable": {"nvidia.com/gpu": "10"}},
    }


def pod_json(
    name: str,
    annotations: Mapping[str, str],
    *,
    node: str = "n1",
    phase: str = "Running",
    counts: Mapping[str, int] | None = None,
) -> dict[str, object]:
    """One pod in `default`; `counts` has the cards that each container asks for."""
    containers = [
        {"name": container, "resources": {"limits": {"nvidia.com/gpu": str(count)}}}
        for container, count in (counts or {"main": 1}).items()
    ]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": dict(annotations),
        },
        "spec": {"nodeName": node, "containers": containers},
        "status": {"phase": phase},
    }


def saved(*items: Mapping[str, object]) -> bytes:
    """A list of objects."""
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": items}).encode()


def card_json(uuid: str, index: int = 0, **changed: object) -> dict[str, object]:
    """One card of a register annotation: an A100 with 40960 MiB and 10 slots."""
    card: dict[str, object] = {
        "id": uuid,
        "index": index,
        "count": 10,
        "devmem": 40960,
        "devcore": 100,
        "type": "NVIDIA-NVIDIA A100",
        "mode": "hami-core",
        "health": True,
    }
    return {**card, **changed}


def card_node_json(name: str, *cards: Mapping[str, object], **changed: object) -> dict[str, object]:
    """A node with these cards; `changed` are members of its spec."""
    node = node_json(name, {"hami.io/node-nvidia-register": json.dumps(cards)})
    return {**node, "spec": changed}


def pending_json(
    name: str, annotations: Mapping[str, str] | None = None, **limits: object
) -> dict[str, object]:
    """A pod without a node, an hour old at `NOW_S`; limits below `nvidia.com/`; one card."""
    pod = pod_json(name, annotations or {}, node="", phase="Pending")
    pod["metadata"]["creationTimestamp"] = "2023-11-14T21:13:20Z"  # type: ignore[index]  # JSON
    wanted = {f"nvidia.com/{key}": str(value) for key, value in (limits or {"gpu": 1}).items()}
    container = {"name": "main", "resources": {"limits": wanted}}
    pod["spec"] = {"schedulerName": "hami-scheduler", "containers": [container]}
    return pod


def quota_json(namespace: str, **limits: object) -> dict[str, object]:
    """A ResourceQuota; limits below `limits.nvidia.com/`."""
    hard = {f"limits.nvidia.com/{key}": str(value) for key, value in limits.items()}
    return {
        "kind": "ResourceQuota",
        "metadata": {"namespace": namespace, "name": "cards"},
        "spec": {"hard": hard},
    }
