"""A cluster of nodes with cards and of pods that hold slices, as objects of the API server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

CARDS: Final = 8
CARD_MIB: Final = 40960
SCHEDULER: Final = "hami-scheduler"

Json = dict[str, Any]


def uuid_of(node: int, card: int) -> str:
    """The UUID of a card."""
    return f"GPU-{node:08x}-0000-0000-0000-{card:012x}"


def node_name(number: int) -> str:
    """The name of a node."""
    return f"gpu-{number:05d}"


def node_object(
    number: int,
    *,
    sick: tuple[int, ...] = (),
    model: str = "NVIDIA A100-SXM4-40GB",
    annotations: Mapping[str, str] | None = None,
    cards: int = CARDS,
    reported: str = "",
    is_ready: bool = True,
) -> Json:
    """A node with cards of 40 GiB and 10 slots; `sick` ones are closed with a reason."""
    rows = [
        {
            "id": uuid_of(number, card),
            "index": card,
            "count": 10,
            "devmem": CARD_MIB,
            "devcore": 100,
            "type": f"NVIDIA-{model}",
            "mode": "hami-core",
            "numa": card // 4,
            "health": card not in sick,
        }
        for card in range(cards)
    ]
    notes = {
        "hami.io/node-nvidia-register": json.dumps(rows),
        "hami.io/node-handshake": reported or "Reported 2026-11-22 12:00:00",
        "hami-node.io/allocate-identity": "pod-resources",
        "hami-node.io/limiter": "v2.10.0",
        "hami-node.io/hand-over": "runtime class nvidia, by UUID in the environment",
    }
    if sick:
        why = "uncorrectable memory error (XID 94): drain the node and reset the card"
        notes["hami-node.io/closed-cards"] = json.dumps({uuid_of(number, c): why for c in sick})
    amounts = {"cpu": "128", "memory": "1056Gi", "pods": "250", "nvidia.com/gpu": str(cards * 10)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node_name(number),
            "uid": f"node-{number}",
            "annotations": notes | dict(annotations or {}),
        },
        "spec": {},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}],
        },
    }


def holding_pod(
    namespace: str, name: str, node: int, card: int, memory_mib: int, cores: int = 10
) -> Json:
    """A running pod with a slice of a card."""
    grant = f"{uuid_of(node, card)},NVIDIA,{memory_mib},{cores}:;"
    pod = pending_pod(namespace, name, memory_mib=memory_mib, cores=cores)
    pod["metadata"]["annotations"] |= {
        "hami.io/vgpu-node": node_name(node),
        "hami.io/vgpu-time": "1795348805",
        "hami.io/bind-time": "1795348806",
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-allocated": grant,
        "hami.io/vgpu-devices-to-allocate": ";",
    }
    pod["spec"]["nodeName"] = node_name(node)
    pod["status"] = {
        "phase": "Running",
        "containerStatuses": [
            {"name": "main", "state": {"running": {}}, "containerID": "containerd://1"}
        ],
    }
    return pod


def pending_pod(
    namespace: str, name: str, *, gpu: int = 1, memory_mib: int = 1000, cores: int = 10
) -> Json:
    """A pod that waits for a slice."""
    limits = {
        "nvidia.com/gpu": str(gpu),
        "nvidia.com/gpumem": str(memory_mib),
        "nvidia.com/gpucores": str(cores),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "creationTimestamp": "2026-11-22T12:00:00Z",
            "annotations": {},
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Pending"},
    }


def slices_of(number: int) -> Iterator[Json]:
    """Pods on most cards of a node: different sizes, in different namespaces."""
    for card in range(CARDS):
        for slot in range((number + card) % 4):
            namespace = ("ml", "speech", "search", "batch")[(number + slot) % 4]
            name = f"train-{number}-{card}-{slot}"
            memory_mib = 2048 * (1 + (number + card + slot) % 6)
            yield holding_pod(namespace, name, number, card, memory_mib)


def daemon_pod(node: int) -> Json:
    """The daemon's pod on a node."""
    pod = pending_pod("hami-system", f"hami-node-{node}")
    pod["metadata"]["labels"] = {
        "app.kubernetes.io/name": "hami-node",
        "hami-node.io/metrics": "daemon",
    }
    pod["spec"] = {"nodeName": node_name(node), "containers": [{"name": "daemon"}]}
    pod["status"] = {"phase": "Running"}
    return pod


def metrics_page(pods: Iterable[Json]) -> bytes:
    """What a daemon says on /metrics of pods with one slice each: three quarters are used."""
    lines = []
    for pod in pods:
        meta = pod["metadata"]
        uuid, _, mib, _ = meta["annotations"]["hami.io/vgpu-devices-allocated"].split(",")
        used = int(mib) * 3 // 4 << 20
        labels = f'namespace="{meta["namespace"]}",pod="{meta["name"]}",container="main"'
        lines.append(f'hami_node_card_memory_used_bytes{{uuid="{uuid}"}} {used}')
        lines.append(f'hami_node_card_core_use_ratio{{uuid="{uuid}"}} 0.3')
        lines.append(f'hami_node_container_memory_used_bytes{{{labels},uuid="{uuid}"}} {used}')
        lines.append(f'hami_node_container_core_use_ratio{{{labels},uuid="{uuid}"}} 0.1')
    return "\n".join(lines).encode()
