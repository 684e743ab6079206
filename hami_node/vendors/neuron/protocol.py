"""Neuron devices in Kubernetes objects: what pods request, nodes offer, schedulers write. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hami_node.errors import WireError
from hami_node.model import (
    NO_CARD_WISHES,
    Ask,
    CardWishes,
    Container,
    ContainerGrants,
    Device,
    Grant,
    Node,
    Pod,
    Uuid,
)
from hami_node.vendors.held_grants import HeldGrants
from hami_node.vendors.neuron import codec, names, requests
from hami_node.vendors.neuron.cards import NEURON, NeuronDoubt
from hami_node.vendors.neuron.placement import (
    GENERATIONS,
    WHOLE_DEVICES,
    NeuronDetail,
    NeuronGeneration,
)
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.protocol import NO_RESERVATION, VendorKeys, VendorProtocol
from hami_node.vendors.quantities import allocatable_of, check_quantities, count_of, text_of
from hami_node.wire.grants import decode_grants, encode_grants
from hami_node.wire.reservation import GrantKeys, counts_of
from hami_node.wire.wishes import decode_uuid_wish

MAX_DEVICES: Final = 1024
"""More than any node has; a larger number is an error."""
MAX_CORES: Final = 16
"""The same for the cores of one device."""

KEYS: Final = VendorKeys(
    grants=GrantKeys(vendor=NEURON, allocated=names.POD_NEURON_ALLOCATED),
    register=names.NODE_NEURON_REGISTER,
    handshake=names.NODE_NEURON_HANDSHAKE,
    reservation=(
        names.POD_NEURON_ALLOCATED,
        names.NEURON_IDS,
        names.NEURON_RESOURCE_TYPE,
        names.NEURON_ALLOC_TIME,
        names.NEURON_IS_ALLOCATED,
        names.NEURON_PREDICATE_NODE,
    ),
)

MEANINGS: Final[Mapping[StrEnum, str]] = MappingProxyType(
    {NeuronDoubt.CORES_TAKEN: "the reserved cores are held by others"}
)


@dataclass(frozen=True, kw_only=True)
class NeuronProtocol(VendorProtocol):
    """How Neuron devices are read from Kubernetes objects and written to them."""

    names: NeuronResources
    generation: NeuronGeneration

    # -- what a pod asks for -----------------------------------------------------------------------
    def ask_of(self, container: Container) -> Ask | None:
        """See `VendorProtocol`; devices take precedence over cores."""
        check_quantities(container, self.resources)
        # 2.8 reads 0 cores as 1; kubelet never allocates for them: nothing is reserved.
        if not any(count_of(container, resource) for resource in self.resources):
            return None
        return requests.neuron_ask_of(container, self.names, self.generation)

    def refuse_conflict(self, container: Container) -> None:
        """Refuse cores beside a number of devices: those alone would be reserved, 0 included."""
        devices = text_of(container, self.names.device)
        cores = count_of(container, self.names.core)
        if devices is not None and cores:
            why = f"beside it the container asks for {cores} {self.names.core}, which kubelet "
            why += "would hand out although nobody reserves them: ask for one of the two"
            raise WireError(self.names.device, devices, why)

    def wishes_of(self, annotations: Mapping[str, str]) -> CardWishes:
        """Only UUIDs."""
        if names.USE_NEURON_UUID not in annotations and names.NOUSE_NEURON_UUID not in annotations:
            return NO_CARD_WISHES
        uuids = decode_uuid_wish(annotations, names.USE_NEURON_UUID, names.NOUSE_NEURON_UUID)
        return CardWishes(uuids=uuids)

    def asks_in_words(self, ask: Ask) -> str:
        """`2 x Neuron whole`, `1 x Neuron 2 cores`."""
        cores = "whole" if ask.detail == WHOLE_DEVICES else f"{ask.cores} cores"
        return f"{ask.count} x Neuron {cores}"

    # -- what a node offers ------------------------------------------------------------------------
    def decode_register(self, text: str, node: Node) -> tuple[Device, ...]:
        """Our own registration, with the instance type of the node's label."""
        return codec.decode_neuron_register(text, node.labels.get(names.INSTANCE_TYPE, ""))

    def offered_by(self, node: Node) -> tuple[Device, ...]:
        """Devices as our daemon registers them; else as kubelet counts them (as in 2.10).

        Raises:
            WireError: see `VendorProtocol`; or there are devices and too few cores.
        """
        if node.annotations.get(names.NODE_NEURON_REGISTER):
            return super().offered_by(node)
        count = allocatable_of(node, self.names.device)
        cores = allocatable_of(node, self.names.core)
        if not 0 < count <= MAX_DEVICES:
            return ()
        if cores < count:
            shown = node.allocatable.get(self.names.core, "absent")
            raise WireError(f"allocatable {self.names.core}", shown, _few_cores(count))
        per_device = min(cores // count, MAX_CORES)
        instance_type = node.labels.get(names.INSTANCE_TYPE, "")
        return tuple(
            Device(
                uuid=codec.neuron_uuid(node.name, index),
                index=index,
                vendor=NEURON,
                model=NEURON.word,
                mode="",
                numa=0,
                slots=per_device,
                cores=(1 << per_device) - 1,
                detail=NeuronDetail(instance_type=instance_type),
            )
            for index in range(count)
        )

    def marks_of(self, node: Node) -> tuple[str | None, ...]:
        """The instance type matters too: it decides which devices belong together."""
        return (*super().marks_of(node), node.labels.get(names.INSTANCE_TYPE))

    # -- what a pod holds --------------------------------------------------------------------------
    def held_by(self, pod: Pod) -> HeldGrants:
        """Slots by the containers' order: limits don't contain the number of devices."""
        keys = self.keys.grants
        text = pod.annotations.get(keys.allocated)
        counts = counts_of(pod, self.counted_in(pod))
        if not text or not counts:
            return HeldGrants(problem="" if not counts else NO_RESERVATION)
        try:
            slots = decode_grants(text, keys.allocated, keys.vendor)
        except WireError as e:
            return HeldGrants(problem=str(e))
        if len(slots) != len(pod.containers):
            why = f"{len(slots)} slots, {len(pod.containers)} containers"
            return HeldGrants(slots=slots, problem=f"its reservation does not match ({why})")
        named = zip(pod.containers, slots, strict=True)
        return HeldGrants(
            by_container={container.name: held for container, held in named if held}, slots=slots
        )

    # -- what a scheduler writes -------------------------------------------------------------------
    def annotations_of(
        self,
        node: Node,
        containers: Sequence[Container],
        grants: Sequence[ContainerGrants],
        devices: Mapping[Uuid, Device],
    ) -> dict[str, str]:
        """Grants as masks, and the ids that AWS's plugin reads: of devices, or of cores.

        Source: HAMi 2.10 awsneuron/device.go:200-243.
        """
        texts = {
            names.POD_NEURON_ALLOCATED: encode_grants(grants),
            names.NEURON_IS_ALLOCATED: "false",
            names.NEURON_PREDICATE_NODE: node.name,
        }
        ids: list[int] = []
        for container, held in zip(containers, grants, strict=True):
            counts_devices = requests.names_devices(container, self.names)
            if held and not counts_devices:
                texts[names.NEURON_RESOURCE_TYPE] = self.names.core
            for grant in held:
                ids += _ids_of(grant, devices[grant.uuid], counts_devices=counts_devices)
        texts[names.NEURON_IDS] = codec.encode_neuron_ids(ids)
        return texts

    def stamps_of(self, now_s: float) -> dict[str, str]:
        """The time for AWS's plugin. Source: HAMi 2.10 awsneuron/device.go:200-243."""
        return {names.NEURON_ALLOC_TIME: str(int(now_s * 1e9))}


def _few_cores(devices: int) -> str:
    return (
        f"fewer cores than the {devices} Neuron devices of the node, so the cores of a device are "
        "unknown (check AWS's device plugin, or run hami-node's daemon, which knows instance types)"
    )


def _ids_of(grant: Grant, device: Device, *, counts_devices: bool) -> list[int]:
    if counts_devices:
        return [device.index]
    # not the bits of its mask: cores that can't be given are missing in it
    per_device = max(device.slots, device.cores.bit_length())
    return [
        device.index * per_device + core for core in range(per_device) if grant.cores >> core & 1
    ]


def neuron_protocol(
    resources: NeuronResources | None = None, compat: str = "2.8"
) -> NeuronProtocol:
    """The protocol with these names in that generation of rules."""
    resources = resources or NeuronResources()
    return NeuronProtocol(
        cards=NEURON,
        title="AWS Neuron",
        keys=KEYS,
        resources=resources.all,
        counted=resources.all,
        core_name="Neuron cores",
        wish_keys=((names.USE_NEURON_UUID, names.NOUSE_NEURON_UUID),),
        meanings=MEANINGS,
        names=resources,
        generation=GENERATIONS[compat],
    )
