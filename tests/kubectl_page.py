"""What docs/kubectl-hami.md shows: the commands as they print at 80 columns, of a small cluster."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from click.testing import CliRunner

from hami_node.cli.kubectl import KubectlParts, main
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.values.timestamps import format_dashed, format_rfc3339
from tests.fakes.listing import Listing
from tests.fakes.saved_cluster import NOW_S, card_json, card_node_json, pending_json, pod_json

_COMMANDS: Final = {
    "top": "top -A",
    "nodes": "nodes",
    "node": "nodes gpu-2",
    "pods": "pods -n ml",
    "why": "why ml/big",
}
_GIB: Final = 1 << 30
_XID: Final = (
    "XID 79: the card fell off the bus; reset the card or the node, then annotate the node: "
    "hami-node.io/clear-card-errors=all"
)


def kubectl_parts() -> dict[str, Callable[[], str]]:
    """The parts of the page, each a command with its output."""
    return {mark: partial(_shown, command) for mark, command in _COMMANDS.items()}


def _shown(command: str) -> str:
    env = {"HOME": "/none", "COLUMNS": "80", "LANG": "C.UTF-8"}
    parts = KubectlParts(connect=lambda _: _cluster(), now=lambda: NOW_S, env=lambda: env)
    done = CliRunner().invoke(main, shlex.split(command), obj=parts)
    assert done.exit_code == 0, done.output
    return f"```console\n$ kubectl hami {command}\n{done.stdout.rstrip()}\n```"


def _uuid(number: int) -> str:
    return f"GPU-{number:08x}-2222-3333-4444-555555555555"


def _cluster() -> Listing:
    nodes = [_node(1, sick=None), _node(2, sick=5)]
    pods = [
        _pod("ml", "train-0", 0, 10240, 30),
        _pod("ml", "train-1", 0, 20480, 30),
        _pod("ml", "notebook-5d4f9c7b8d-xyz12", 4, 4096, 10),
        _pod("web", "inference-0", 6, 40960, 100),
        *(_daemon(number) for number in (1, 2)),
        _big(),
    ]
    kube = Listing(*nodes, *pods, _event())
    kube.pages = {
        "hami-node-1": _page((0, 17, 0.85), ("ml/train-0", 0, 9, 0.3), ("ml/train-1", 0, 7, 0.5)),
        "hami-node-2": _page((6, 31, 0.98), ("web/inference-0", 6, 30, 0.98), (4, 1, 0.0)),
    }
    return kube


def _node(number: int, sick: int | None) -> dict[str, Any]:
    first = (number - 1) * 4
    cards = (
        card_json(
            _uuid(first + card),
            card,
            type="NVIDIA-NVIDIA A100-SXM4-40GB",
            health=first + card != sick,
        )
        for card in range(4)
    )
    node: dict[str, Any] = card_node_json(f"gpu-{number}", *cards)
    notes = node["metadata"]["annotations"]
    notes[nvidia_names.NODE_HANDSHAKE] = f"Reported_{format_dashed(NOW_S - 12)}"
    if sick is not None:
        notes[names.NODE_CLOSED_CARDS] = json.dumps({_uuid(sick): _XID})
    return node


def _pod(namespace: str, name: str, card: int, memory_mib: int, cores: int) -> dict[str, Any]:
    held = {
        nvidia_names.POD_ALLOCATED: f"{_uuid(card)},NVIDIA,{memory_mib},{cores}:;",
        nvidia_names.POD_TO_ALLOCATE: ";",
    }
    pod: dict[str, Any] = pod_json(name, held, node=f"gpu-{card // 4 + 1}")
    pod["metadata"]["namespace"] = namespace
    return pod


def _daemon(number: int) -> dict[str, Any]:
    pod: dict[str, Any] = pod_json(f"hami-node-{number}", {}, node=f"gpu-{number}", counts={})
    pod["metadata"]["namespace"] = "hami-system"
    pod["metadata"]["labels"] = {"hami-node.io/metrics": "daemon"}
    return pod


def _big() -> dict[str, Any]:
    pod: dict[str, Any] = pending_json("big", gpu=2, gpumem=38000)
    pod["metadata"]["namespace"] = "ml"
    said = "0/2 nodes are available: 2 nodes CardInsufficientMemory. no new claims to deallocate"
    condition = {"type": "PodScheduled", "status": "False", "message": said}
    pod["metadata"]["annotations"] = {"nvidia.com/use-gpuuuid": f"{_uuid(0)},{_uuid(1)}"}
    pod["status"] = {"phase": "Pending", "conditions": [condition]}
    return pod


def _event() -> dict[str, Any]:
    return {
        "kind": "Event",
        "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "big"},
        "reason": "FailedScheduling",
        "message": "0/2 nodes are available: 1 nodes CardUuidMismatch(gpu-2)",
        "type": "Warning",
        "reportingComponent": "hami-scheduler",
        "series": {"count": 12, "lastObservedTime": format_rfc3339(NOW_S - 40)},
    }


def _page(*uses: tuple[Any, ...]) -> bytes:
    """A daemon's page: (card, GiB, cores) by everybody, or the same after a pod."""
    lines = []
    for *whose, card, gib, cores in uses:
        labels = f'uuid="{_uuid(card)}"'
        kind = "card"
        if whose:
            namespace, _, pod = whose[0].partition("/")
            kind, labels = "container", f'namespace="{namespace}",pod="{pod}",{labels}'
        lines.append(f"hami_node_{kind}_memory_used_bytes{{{labels}}} {gib * _GIB}")
        lines.append(f"hami_node_{kind}_core_use_ratio{{{labels}}} {cores}")
    return "\n".join(lines).encode()
