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
