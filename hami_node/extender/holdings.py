"""What a pod holds by its annotations, whoever wrote them: 2.4 to 2.10, or we. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hami_node.engine.usage import PodGrants
from hami_node.errors import WireError
from hami_node.model import ContainerGrants, ContainerKind, MigReservation, Pod
from hami_node.wire import names
from hami_node.wire.mig_codec import decode_mig_allocations
from hami_node.wire.pod_codec import decode_grants
from hami_node.wire.requests import ResourceNames
from hami_node.wire.reservation import are_inits_over, counts_of
from hami_node.wire.slots import SlotMap, assign_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A pod's grants on a node. `is_bound` is False while it only has a reservation."""

    node: str
    is_bound: bool
    grants: PodGrants


def marks_of(pod: Pod) -> tuple[str | bool, ...]:
    """Everything of a pod that its holding is made of: equal marks, equal holding."""
    said = pod.annotations
    return (
        pod.is_over,
        pod.is_being_deleted,
        pod.node_name,
        said.get(names.POD_NODE, ""),
        said.get(names.POD_TIME, ""),
        said.get(names.POD_ALLOCATED, ""),
        said.get(names.POD_NEURON_ALLOCATED, ""),
        said.get(names.POD_MIG_ALLOCATIONS, ""),
        are_inits_over(pod),
    )


def holding_of(pod: Pod, resources: ResourceNames) -> Holding | None:
    """What the pod holds; None for nothing. Never raises.

    A reservation that does not match the pod's containers counts in full once the pod is bound:
    rather a refused pod than a full card. Before that it counts for nothing.
    """
    node = pod.node_name or pod.annotations.get(names.POD_NODE, "")
    is_never_bound = pod.is_being_deleted and not pod.node_name
    if pod.is_over or is_never_bound or not node:
        return None
    nvidia = _nvidia(pod, resources)
    neuron = _neuron(pod, resources)
    if not any(nvidia) and not any(neuron):
        return None
    kinds = tuple(one.kind for one in pod.containers)
    width = max(len(nvidia), len(neuron))
    containers = tuple(_at(nvidia, place) + _at(neuron, place) for place in range(width))
    return Holding(
        node=node,
        is_bound=bool(pod.node_name),
        grants=PodGrants(
            containers=containers,
            kinds=kinds if width == len(kinds) else (ContainerKind.APP,) * width,
            mig=_mig(pod),
            are_inits_over=are_inits_over(pod),
        ),
    )


def stamped_age_s(pod: Pod, now_s: float) -> float:
    """Seconds since the reservation was made, by the time that stands on it; 0 without one."""
    stamp = pod.annotations.get(names.POD_TIME, "")
    is_time = stamp.isascii() and stamp.isdigit() and len(stamp) <= 12
    return now_s - int(stamp) if is_time else 0.0


def _at(slots: tuple[ContainerGrants, ...], place: int) -> ContainerGrants:
    return slots[place] if place < len(slots) else ()


def _nvidia(pod: Pod, resources: ResourceNames) -> tuple[ContainerGrants, ...]:
    text = pod.annotations.get(names.POD_ALLOCATED)
    counts = counts_of(pod, resources.gpu)
    if not text or not counts:
        return ()  # whoever asks for no card holds none, whatever it says
    try:
        granted = decode_grants(text, names.POD_ALLOCATED)
    except WireError:
        return ()  # nothing in it can be counted
    # What is left to allocate says who is served, not who holds what.
    slots = assign_slots(pod, counts, granted, ())
    if isinstance(slots, SlotMap):
        return tuple(slots.granted.get(one.name, ()) for one in pod.containers)
    return granted if pod.node_name else ()


def _neuron(pod: Pod, resources: ResourceNames) -> tuple[ContainerGrants, ...]:
    text = pod.annotations.get(names.POD_NEURON_ALLOCATED)
    asks = counts_of(pod, resources.neuron) or counts_of(pod, resources.neuron_core)
    if not text or not asks:
        return ()
    try:
        slots = decode_grants(text, names.POD_NEURON_ALLOCATED)
    except WireError:
        return ()  # nothing in it can be counted
    return slots if len(slots) == len(pod.containers) or pod.node_name else ()


def _mig(pod: Pod) -> tuple[MigReservation, ...]:
    """The MIG reservations; unreadable ones are left out, which makes their card unhealthy."""
    try:
        return decode_mig_allocations(pod.annotations.get(names.POD_MIG_ALLOCATIONS, ""))
    except WireError:
        return ()
