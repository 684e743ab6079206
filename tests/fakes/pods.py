"""Pods with cards, and a scheduler that is played: it writes reservations and chooses nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from hami_node.model import ContainerKind, Pod
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.objects import decode_pod

NODE: Final = "n1"
Json = dict[str, Any]


class Generation(StrEnum):
    """How a generation of HAMi's scheduler lays out the slots of a pod."""

    V2_4 = "2.4"
    """Only app containers that ask have a slot."""
    V2_7 = "2.7"
    """Every app container has a slot; init containers have none."""
    V2_10 = "2.10"
    """Every container has a slot, init containers first."""
    V2_10_COMPACT = "2.10-compact"
    """As 2.10, but containers without cards lost their slots: the node's type is a model name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A container and what its limits ask for."""

    name: str = "main"
    cards: int = 1
    memory_mib: int | None = None
    memory_percent: int | None = None
    cores: int | None = None
    kind: ContainerKind = ContainerKind.APP
    env: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> Json:
        """The container of a pod's spec."""
        asked = {
            nvidia_names.RESOURCE_GPU: self.cards or None,
            nvidia_names.RESOURCE_GPU_MEMORY: self.memory_mib,
            nvidia_names.RESOURCE_GPU_MEMORY_PERCENT: self.memory_percent,
            nvidia_names.RESOURCE_GPU_CORES: self.cores,
        }
        body: Json = {
            "name": self.name,
            "image": "busybox",
            "env": [{"name": name, "value": value} for name, value in self.env.items()],
            "resources": {
                "limits": {name: str(value) for name, value in asked.items() if value is not None}
            },
        }
        if self.kind is ContainerKind.SIDECAR:
            body["restartPolicy"] = "Always"
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A slice of one card."""

    uuid: str
    memory_mib: int
    cores: int = 0

    def __str__(self) -> str:
        return f"{self.uuid},NVIDIA,{self.memory_mib},{self.cores}:"


Reserved = Mapping[str, Sequence[Part]]
"""Slices by container name."""


def layout(
    boxes: Sequence[Box], reserved: Reserved, generation: Generation = Generation.V2_10
) -> str:
    """The annotation's text in this generation's layout."""
    ordered = sorted(boxes, key=lambda box: box.kind is ContainerKind.APP)
    has_inits = generation in (Generation.V2_10, Generation.V2_10_COMPACT)
    has_empties = generation in (Generation.V2_7, Generation.V2_10)
    slots = [
        reserved.get(box.name, ()) for box in ordered if has_inits or box.kind is ContainerKind.APP
    ]
    return "".join("".join(map(str, slot)) + ";" for slot in slots if slot or has_empties)


def reservation(text: str, *, to_allocate: str | None = None) -> dict[str, str]:
    """The annotations of a pod that is bound and waits."""
    return {
        names.POD_NODE: NODE,
        nvidia_names.POD_ALLOCATED: text,
        nvidia_names.POD_TO_ALLOCATE: text if to_allocate is None else to_allocate,
        names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
    }


def pod_body(
    name: str,
    boxes: Sequence[Box],
    annotations: Mapping[str, str] | None = None,
    *,
    node: str = NODE,
    phase: str = "Pending",
    resource_version: str = "",
) -> Json:
    """A pod in `default` as the API server holds it."""
    metadata: Json = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "annotations": dict(annotations or {}),
    }
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return {
        "metadata": metadata,
        "spec": {
            "nodeName": node,
            "initContainers": [b.manifest() for b in boxes if b.kind is not ContainerKind.APP],
            "containers": [b.manifest() for b in boxes if b.kind is ContainerKind.APP],
        },
        "status": {"phase": phase},
    }


def reserved_pod(
    name: str,
    boxes: Sequence[Box],
    reserved: Reserved,
    generation: Generation = Generation.V2_10,
    **fields: Any,
) -> Pod:
    """A decoded pod that waits for its cards."""
    return decode_pod(
        pod_body(name, boxes, reservation(layout(boxes, reserved, generation)), **fields)
    )
