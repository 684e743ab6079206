"""Pods of the demo: how they come in, and the parts that scheduler and kubelet play."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.model import Container, Device, Grant, Pod
from hami_node.simulate.demo_stage import EXTENDER, Stage, StepFailed
from hami_node.simulate.kube_scheduler import (
    Bound,
    CallFailed,
    Outcome,
    create_pod,
    schedule_pod,
)
from hami_node.simulate.kubelet import Admission
from hami_node.simulate.store import Json
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from hami_node.wire.placement_codec import encode_placement

NAMESPACE: Final = "default"
RETRY_S: Final = 0.02
"""How often a waiting pod is tried again; kube-scheduler does so when the cluster changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One container: a slice of one card.

    Attributes:
        is_counted: it says `nvidia.com/gpu: 1` itself; else that is left to the webhook.
        granted_mib: what a forged annotation says instead of its own limit; None: the same.
    """

    name: str
    memory_mib: int
    cores: int
    is_counted: bool = True
    granted_mib: int | None = None

    def limits(self) -> dict[str, str]:
        """The container's `resources.limits`."""
        count = {names.RESOURCE_GPU: "1"} if self.is_counted else {}
        return {
            **count,
            names.RESOURCE_GPU_MEMORY: str(self.memory_mib),
            names.RESOURCE_GPU_CORES: str(self.cores),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod of the demo: what its containers ask for, and its wishes, which are annotations."""

    name: str
    wants: tuple[Want, ...]
    wishes: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> Json:
        """The pod as its user writes it: no scheduler, no node, no reservation."""
        containers = [Container(name=want.name, limits=want.limits()) for want in self.wants]
        return body_of(self.name, containers, self.wishes)


def body_of(name: str, containers: Sequence[Container], annotations: Mapping[str, str]) -> Json:
    """A pod without a node."""
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations)},
        "spec": {
            "containers": [
                {"name": one.name, "image": "demo", "resources": {"limits": dict(one.limits)}}
                for one in containers
            ],
        },
        "status": {"phase": "Pending"},
    }


# -- the usual way: webhook, filter, bind ----------------------------------------------------------
def create(stage: Stage, body: Json) -> Pod:
    """Create a pod as a user does: unscheduled, and past no webhook. Raises PodDenied."""
    return decode_pod(create_pod(stage.api, stage.extender, body))


def try_once(stage: Stage, name: str) -> Outcome:
    """Let kube-scheduler try the pod once. Raises CallFailed."""
    return schedule_pod(stage.api, stage.extender, name, NAMESPACE)


def place(stage: Stage, name: str) -> str:
    """Let kube-scheduler try until the pod is bound; its node.

    Raises:
        StepFailed: no node will do, or the extender does not answer.
    """
    said: list[str] = []

    def bound() -> str | None:
        try:
            outcome = try_once(stage, name)
        except CallFailed as e:
            said.append(str(e))
            return None
        if isinstance(outcome, Bound):
            return outcome.node
        said.append(str(outcome))
        return None

    try:
        return stage.until(EXTENDER, f"pod {name} is bound", bound, RETRY_S)
    except StepFailed as e:
        raise StepFailed(f"{e}: {said[-1]}" if said else str(e)) from e


# -- past webhook and extender ---------------------------------------------------------------------
def forge(stage: Stage, name: str, want: Want, card: Device) -> None:
    """Write a bound pod with a reservation by hand, as nobody may who is not the scheduler."""
    memory_mib = want.memory_mib if want.granted_mib is None else want.granted_mib
    grant = Grant(uuid=card.uuid, vendor=card.vendor, memory_mib=memory_mib, cores=want.cores)
    container = Container(name=want.name, limits=want.limits())
    place_of = stage.gpu.name
    placed = encode_placement(place_of, (container,), ((grant,),), (), {card.uuid: card})
    now = str(int(stage.clock.now()))
    times = {names.POD_TIME: now, names.POD_BIND_TIME: now}
    phase = {names.POD_BIND_PHASE: names.PHASE_ALLOCATING}
    write_bound(stage, name, place_of, container, {**placed, **times, **phase})


def write_bound(
    stage: Stage, name: str, node: str, container: Container, annotations: Mapping[str, str]
) -> None:
    """Store a pod that is on a node already."""
    body = body_of(name, (container,), annotations)
    body["spec"]["nodeName"] = node
    stage.api.create("pods", body)


# -- what became of it -----------------------------------------------------------------------------
def read(stage: Stage, name: str) -> Pod:
    """The pod as the API server holds it."""
    return decode_pod(stage.api.read("pods", name, NAMESPACE))


def delete(stage: Stage, name: str) -> None:
    """The pod ends as kubelet ends it: its containers, its status, then the object."""
    stage.gpu.kubelet.remove(NAMESPACE, name)
    stage.api.edit("pods", name, lambda body: body.update(status={"phase": "Succeeded"}), NAMESPACE)
    stage.api.delete("pods", name, NAMESPACE)


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
