"""Pods of the demo, and the parts that scheduler and kubelet play in their lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.model import Container, Device, Grant, Pod
from hami_node.simulate.demo_stage import Stage, StepFailed
from hami_node.simulate.kubelet import Admission
from hami_node.simulate.store import Json
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from hami_node.wire.placement_codec import encode_placement

NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One container: a slice of one card.

    Attributes:
        granted_mib: what its annotation says instead of its own limit; None: the same.
    """

    name: str
    memory_mib: int
    cores: int
    granted_mib: int | None = None

    def limits(self) -> dict[str, str]:
        """The container's `resources.limits`."""
        return {
            names.RESOURCE_GPU: "1",
            names.RESOURCE_GPU_MEMORY: str(self.memory_mib),
            names.RESOURCE_GPU_CORES: str(self.cores),
        }


def schedule(stage: Stage, name: str, wants: Sequence[Want], card: Device) -> None:
    """Create a pod with a reservation on that card, as HAMi's scheduler (2.10) writes it."""
    grants = [
        (
            Grant(
                uuid=card.uuid,
                vendor=card.vendor,
                memory_mib=want.memory_mib if want.granted_mib is None else want.granted_mib,
                cores=want.cores,
            ),
        )
        for want in wants
    ]
    containers = [Container(name=want.name, limits=want.limits()) for want in wants]
    now = str(int(stage.clock.now()))
    placed = encode_placement(stage.gpu.name, containers, grants, (), {card.uuid: card})
    times = {names.POD_TIME: now, names.POD_BIND_TIME: now}
    phase = {names.POD_BIND_PHASE: names.PHASE_ALLOCATING}
    create(stage, name, stage.gpu.name, containers, {**placed, **times, **phase})


def create(
    stage: Stage,
    name: str,
    node: str,
    containers: Sequence[Container],
    annotations: dict[str, str],
) -> None:
    """Create a pod that is bound to a node."""
    stage.api.create(
        "pods",
        {
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": {
                "nodeName": node,
                "containers": [
                    {"name": one.name, "image": "demo", "resources": {"limits": dict(one.limits)}}
                    for one in containers
                ],
            },
            "status": {"phase": "Pending"},
        },
    )


def read(stage: Stage, name: str) -> Pod:
    """The pod as the API server holds it."""
    return decode_pod(stage.api.read("pods", name, NAMESPACE))


def admit(stage: Stage, name: str) -> Admission:
    """Let the node's kubelet admit the pod and write the outcome into its status.

    Raises:
        StepFailed: the plugin does not answer.
    """
    try:
        admission = stage.gpu.kubelet.admit(read(stage, name), names.RESOURCE_GPU)
    except grpc.RpcError as e:
        raise StepFailed(f"pod {name}: the device plugin does not answer: {e}") from e

    def change(body: Json) -> None:
        if admission.is_admitted:
            body["status"] = {"phase": "Running"}
        else:
            body["status"] = {
                "phase": "Failed",
                "reason": "UnexpectedAdmissionError",
                "message": f"{admission.refusal}, which is unexpected",
            }

    stage.api.edit("pods", name, change, NAMESPACE)
    return admission


def sentence(admission: Admission) -> str:
    """The words of a refusal that are ours: what stands behind gRPC's code."""
    return admission.refusal.partition("desc = ")[2] or admission.refusal


def event_of(stage: Stage, name: str, reason: str) -> str | None:
    """The message of the pod's Event with that reason; None while there is none."""
    for event in stage.api.list("events"):
        if event["involvedObject"]["name"] == name and event["reason"] == reason:
            return str(event["message"])
    return None


def mount_at(response: api.ContainerAllocateResponse, container_path: str) -> str | None:
    """The host's path of a mount; None when there is no such mount."""
    for mount in response.mounts:
        if mount.container_path == container_path:
            return str(mount.host_path)
    return None
