"""What a scheduler writes on a pod once it has chosen its node and cards, without the times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hami_node.model import (
    Container,
    ContainerGrants,
    Device,
    Grant,
    MigReservation,
    Uuid,
    Vendor,
)
from hami_node.wire import names
from hami_node.wire.mig_codec import MigAllocation, encode_mig_allocations
from hami_node.wire.neuron_codec import encode_neuron_ids
from hami_node.wire.pod_codec import encode_grants


def encode_placement(
    node: str,
    containers: Sequence[Container],
    grants: Sequence[ContainerGrants],
    reserved: Iterable[MigReservation],
    devices: Mapping[Uuid, Device],
) -> dict[str, str]:
    """The annotations of a placed pod.

    Args:
        node: the chosen node.
        containers: the pod's containers, init containers first.
        grants: what each of them gets, in the same order.
        reserved: MIG instances reserved for the grants.
        devices: the node's cards; Neuron's numbers are taken from them.

    Every vendor's text has a slot for every container.
    Source: HAMi 2.10 nvidia/device.go:505, awsneuron/device.go:200-243.
    """
    texts = {names.POD_NODE: node}
    nvidia = _of_vendor(grants, Vendor.NVIDIA)
    if any(nvidia):
        texts[names.POD_TO_ALLOCATE] = texts[names.POD_ALLOCATED] = encode_grants(nvidia)
    allocations = encode_mig_allocations(
        MigAllocation(
            container_index=one.container_index,
            device_index=one.device_index,
            uuid=one.uuid,
            profile=one.profile,
            placement=one.placement,
        )
        for one in reserved
    )
    if allocations is not None:
        texts[names.POD_MIG_ALLOCATIONS] = allocations
    neuron = _of_vendor(grants, Vendor.AWS_NEURON)
    if any(neuron):
        texts |= _neuron_texts(node, containers, neuron, devices)
    return texts


def _of_vendor(grants: Sequence[ContainerGrants], vendor: Vendor) -> list[ContainerGrants]:
    return [tuple(grant for grant in one if grant.vendor is vendor) for one in grants]


def _neuron_texts(
    node: str,
    containers: Sequence[Container],
    grants: Sequence[ContainerGrants],
    devices: Mapping[Uuid, Device],
) -> dict[str, str]:
    texts = {
        names.POD_NEURON_ALLOCATED: encode_grants(grants),
        names.NEURON_IS_ALLOCATED: "false",
        names.NEURON_PREDICATE_NODE: node,
    }
    ids: list[int] = []
    for container, held in zip(containers, grants, strict=True):
        counts_devices = _names_devices(container)
        if held and not counts_devices:
            texts[names.NEURON_RESOURCE_TYPE] = names.RESOURCE_NEURON_CORE
        for grant in held:
            ids += _ids_of(grant, devices[grant.uuid], counts_devices=counts_devices)
    texts[names.NEURON_IDS] = encode_neuron_ids(ids)
    return texts


def _names_devices(container: Container) -> bool:
    """True when the container asks for whole devices, not for cores."""
    return names.RESOURCE_NEURON in container.limits or (
        names.RESOURCE_NEURON in container.requests
        and names.RESOURCE_NEURON_CORE not in container.limits
    )


def _ids_of(grant: Grant, device: Device, *, counts_devices: bool) -> list[int]:
    if counts_devices:
        return [device.index]
    per_device = device.cores.bit_count()
    return [
        device.index * per_device + core for core in range(per_device) if grant.cores >> core & 1
    ]
