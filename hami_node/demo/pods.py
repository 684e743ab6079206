"""Pods of the demo: how they are created, scheduled and admitted, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc

from hami_node.demo.stage import EXTENDER, GPU_NODE, Stage
from hami_node.model import Container, Device, Grant, Pod, Uuid
from hami_node.simulate.kube_scheduler import CallFailed, Unschedulable, create_pod, schedule_pod
from hami_node.simulate.kubelet import Admission
from hami_node.simulate.store import Json
from hami_node.vendors.demo import StepFailed
from hami_node.vendors.placement import encode_placement
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.objects import decode_pod

NAMESPACE: Final = "default"
RETRY_S: Final = 0.02
"""How often a waiting pod is retried; kube-scheduler does so when the cluster changes."""
BYPASSING_JOB: Final = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "name": "bypassing",
    "uid": "bypassing-job",
    "controller": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A container that wants a slice of a card; without a count that is left to the webhook."""

    name: str
    memory_mib: int
    cores: int
    is_counted: bool = True

    def limits(self, cards: VendorProtocol) -> dict[str, str]:
        """The container's `resources.limits`."""
        count = {cards.counted[0]: "1"} if self.is_counted else {}
        return {**count, cards.memory: str(self.memory_mib), cards.cores: str(self.cores)}

    def container(self, cards: VendorProtocol) -> Container:
        """The container itself."""
        return Container(name=self.name, limits=self.limits(cards))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod of the demo: the requests of its containers, and its wishes, which are annotations."""

    name: str
    wants: tuple[Want, ...]
    wishes: Mapping[str, str] = field(default_factory=dict)

    def body(self, cards: VendorProtocol) -> Json:
        """The pod as its user writes it: no scheduler, no node, no reservation."""
        return body_of(self.name, [want.container(cards) for want in self.wants], self.wishes)


def body_of(name: str, containers: Sequence[Container], annotations: Mapping[str, str]) -> Json:
    """A pod without a node."""
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations)},
        "spec": {
            "containers": [
                {"name": item.name, "image": "demo", "resources": {"limits": dict(item.limits)}}
                for item in containers
            ],
        },
        "status": {"phase": "Pending"},
    }


# -- the usual way: webhook, filter, bind ----------------------------------------------------------
def create(stage: Stage, body: Json) -> Pod:
    """Create a pod as a user does: unscheduled, and through the webhook. Raises PodDenied."""
    return decode_pod(create_pod(stage.api, stage.extender, body))


def create_tenant(stage: Stage, tenant: Tenant) -> Pod:
    """The same for a pod that shares cards. Raises PodDenied."""
    return create(stage, tenant.body(stage.shared.protocol))


def try_once(stage: Stage, name: str) -> str:
    """Let kube-scheduler try the pod once; its node. Raises CallFailed, Unschedulable."""
    return schedule_pod(stage.api, stage.extender, name, NAMESPACE)


def place(stage: Stage, name: str) -> str:
    """Let kube-scheduler try until the pod is bound; returns its node.

    Raises:
        StepFailed: no node fits, or the extender does not answer.
    """
    reasons: list[str] = []

    def bound() -> str | None:
        try:
            return try_once(stage, name)
        except (CallFailed, Unschedulable) as e:
            reasons.append(str(e))
            return None

    try:
        return stage.until(EXTENDER, f"pod {name} is bound", bound, RETRY_S)
    except StepFailed as e:
        raise StepFailed(f"{e}: {reasons[-1]}" if reasons else str(e)) from e


# -- bypassing webhook and extender ----------------------------------------------------------------
def forge(stage: Stage, name: str, want: Want, card: Device, granted_mib: int) -> None:
    """Write a bound pod with a reservation by hand, which only the scheduler may do."""
    protocol = stage.shared.protocol
    grant = Grant(uuid=card.uuid, vendor=card.vendor, memory_mib=granted_mib, cores=want.cores)
    container = want.container(protocol)
    node, devices = stage.read_node(GPU_NODE), {card.uuid: card}
    placed = encode_placement(node, (container,), ((grant,),), devices, (protocol,))
    now = str(int(stage.clock.now()))
    stamps = {
        names.POD_TIME: now,
        names.POD_BIND_TIME: now,
        names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
    }
    write_bound(stage, name, GPU_NODE, container, {**placed, **stamps})


def write_bound(
    stage: Stage, name: str, node: str, container: Container, annotations: Mapping[str, str]
) -> None:
    """Create a pod that is already bound to a node; all of them belong to one Job.

    Two owners whose pods fail on a node would close it to the namespace for a while.
    """
    body = body_of(name, (container,), annotations)
    body["metadata"]["ownerReferences"] = [BYPASSING_JOB]
    body["spec"]["nodeName"] = node
    stage.api.create("pods", body)


# -- kubelet ---------------------------------------------------------------------------------------
def admit(stage: Stage, name: str) -> Admission:
    """Let the node's kubelet admit the pod and write the outcome into its status.

    Raises:
        StepFailed: the plugin does not answer.
    """
    try:
        admission = stage.kubelet.admit(read(stage, name), stage.resource)
    except grpc.RpcError as e:
        raise StepFailed(f"pod {name}: the device plugin does not answer: {e}") from e
    status = {"phase": "Running"}
    if not admission.is_admitted:
        message = f"{admission.refusal}, which is unexpected"
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    stage.api.edit("pods", name, lambda body: body.update(status=status), NAMESPACE)
    return admission


def delete(stage: Stage, name: str) -> None:
    """The pod ends as kubelet ends it: its containers, its status, then the object."""
    stage.kubelet.remove(NAMESPACE, name)
    stage.api.edit("pods", name, lambda body: body.update(status={"phase": "Succeeded"}), NAMESPACE)
    stage.api.delete("pods", name, NAMESPACE)


def sentence(admission: Admission) -> str:
    """Our own message of a refusal, which follows gRPC's code."""
    return admission.refusal.partition("desc = ")[2] or admission.refusal


# -- the results, read from the API server ---------------------------------------------------------
def read(stage: Stage, name: str) -> Pod:
    """The pod as stored by the API server."""
    return decode_pod(stage.api.read("pods", name, NAMESPACE))


def event_of(stage: Stage, name: str, reason: str) -> str | None:
    """The message of the pod's Event with that reason; None while there is none."""
    for event in stage.api.list("events"):
        if event["involvedObject"]["name"] == name and event["reason"] == reason:
            return str(event["message"])
    return None


def grants_on(
    stage: Stage, protocol: VendorProtocol, node: str
) -> Iterator[tuple[str, tuple[Grant, ...]]]:
    """The containers of a node that hold something of this vendor's, as `pod/container`."""
    for pod in map(decode_pod, stage.api.list("pods")):
        is_refused = pod.annotations.get(names.POD_BIND_PHASE) == names.PHASE_FAILED
        if pod.node_name == node and not is_refused:
            for container, grants in protocol.held_by(pod).by_container.items():
                yield f"{pod.name}/{container}", grants


def shared_grants(stage: Stage, card: Uuid) -> list[tuple[str, Grant]]:
    """The slices of a shared card, each with who holds it."""
    held = grants_on(stage, stage.shared.protocol, GPU_NODE)
    return [(owner, grant) for owner, grants in held for grant in grants if grant.uuid == card]


def granted_mib(stage: Stage, card: Uuid) -> int:
    """The memory that the card's containers hold together."""
    return sum(grant.memory_mib for _, grant in shared_grants(stage, card))
