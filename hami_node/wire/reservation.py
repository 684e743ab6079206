"""A pod's reservation, read from its annotations and solved against its containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hami_node.errors import WireError
from hami_node.model import Container, ContainerKind, Pod
from hami_node.wire import names
from hami_node.wire.pod_codec import decode_grants
from hami_node.wire.quantity import parse_whole_quantity
from hami_node.wire.slots import SlotMap, assign_slots

RESERVATION_KEYS: Final = (
    names.POD_NODE,
    names.POD_TIME,
    names.POD_TO_ALLOCATE,
    names.POD_ALLOCATED,
    names.POD_MIG_ALLOCATIONS,
    names.POD_BIND_PHASE,
    names.POD_BIND_TIME,
    names.POD_NEURON_ALLOCATED,
    names.NEURON_IDS,
    names.NEURON_RESOURCE_TYPE,
    names.NEURON_ALLOC_TIME,
    names.NEURON_IS_ALLOCATED,
    names.NEURON_PREDICATE_NODE,
)
"""What a scheduler writes into a pod and a node serves from: nobody else may bring them along."""


def count_of(container: Container, resource: str) -> int:
    """How many device IDs kubelet allocates for the container; 0 for none or nonsense."""
    text = container.limits.get(resource)
    if text is None:
        return 0
    try:
        return max(parse_whole_quantity(text, resource), 0)
    except WireError:
        return 0


def counts_of(pod: Pod, resource: str) -> dict[str, int]:
    """Counts by container name, only of containers that ask, in the pod's order."""
    counts = {one.name: count_of(one, resource) for one in pod.containers}
    return {name: count for name, count in counts.items() if count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What a scheduler left for a pod: its slots, or why there are none (for people)."""

    slots: SlotMap | None = None
    problem: str = ""


def read_reservation(pod: Pod, resource: str) -> Reservation:
    """Decode a pod's reservation. Never raises: a bad one is a problem in words."""
    allocated = pod.annotations.get(names.POD_ALLOCATED)
    if not allocated:
        return Reservation(
            problem="it has no reservation: it did not come through the scheduler (check its "
            "schedulerName and that spec.nodeName was not set by hand)"
        )
    try:
        granted = decode_grants(allocated, names.POD_ALLOCATED)
        waiting = decode_grants(
            pod.annotations.get(names.POD_TO_ALLOCATE, ""), names.POD_TO_ALLOCATE
        )
    except WireError as e:
        return Reservation(problem=f"its reservation can't be read ({e})")
    solved = assign_slots(pod, counts_of(pod, resource), granted, waiting)
    if isinstance(solved, SlotMap):
        return Reservation(slots=solved)
    return Reservation(problem=f"its reservation does not match its containers ({solved.why})")


def are_inits_over(pod: Pod) -> bool:
    """True once every plain init container has ended well."""
    inits = [one for one in pod.containers if one.kind is ContainerKind.INIT]
    return bool(inits) and all(one.is_terminated_ok for one in inits)
