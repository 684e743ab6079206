"""What a node offers for scheduling: its cards by annotation, as far as somebody serves them.

Pure: a node in, values out. A vendor whose device plugin is gone (allocatable 0) is gone, whatever
stale annotations say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hami_node.errors import WireError
from hami_node.model import Device, Node, Uuid, Vendor
from hami_node.wire import names
from hami_node.wire.neuron_codec import decode_neuron_register, neuron_uuid
from hami_node.wire.node_codec import PairScores, decode_pair_scores, decode_register
from hami_node.wire.quantity import parse_whole_quantity
from hami_node.wire.requests import ResourceNames
from hami_node.wire.wishes import decode_cordon

NOTHING: Final[Mapping[Uuid, Mapping[Uuid, int]]] = MappingProxyType({})
MAX_NEURON_DEVICES: Final = 1024
"""More than any node has; a larger number is nonsense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What may be scheduled on a node.

    Attributes:
        devices: cards of every vendor that is served, in order of registration.
        cordoned: cards that people took out.
        pair_scores: links between cards.
        missing: why a vendor that the node has registered is not offered, by vendor, for people.
        problem: what else can't be read, for people.
        largest_mib: all memory of the largest NVIDIA card.
    """

    devices: tuple[Device, ...] = ()
    cordoned: frozenset[Uuid] = frozenset()
    pair_scores: PairScores = field(default_factory=lambda: NOTHING)
    missing: Mapping[Vendor, str] = field(default_factory=lambda: MappingProxyType({}))
    problem: str = ""
    largest_mib: int = 0

    @property
    def why_empty(self) -> str:
        """Why nothing is offered, for people; "" when something is."""
        if self.devices:
            return ""
        return "; ".join(dict.fromkeys(self.missing.values())) or "no cards are registered"


def marks_of(node: Node, resources: ResourceNames) -> tuple[str | bool | None, ...]:
    """Everything of a node that its offer is made of: equal marks, equal offer."""
    said, allocatable = node.annotations, node.allocatable
    return (
        said.get(names.NODE_REGISTER),
        said.get(names.NODE_PAIR_SCORES),
        said.get(names.NODE_CORDON),
        said.get(names.NODE_NEURON_REGISTER),
        allocatable.get(resources.gpu),
        allocatable.get(resources.neuron),
        allocatable.get(resources.neuron_core),
        node.labels.get(names.INSTANCE_TYPE),
        node.is_unschedulable,
    )


def offer_of(
    node: Node, resources: ResourceNames, given_up: Mapping[Vendor, str] | None = None
) -> Offer:
    """Decode what a node offers; never raises: what can't be read is `missing`.

    Args:
        node: the node.
        resources: the names of the extended resources.
        given_up: vendors whose daemon has gone silent, with the reason.
    """
    if node.is_unschedulable:
        return Offer(missing={vendor: "the node is cordoned" for vendor in Vendor})
    devices: list[Device] = []
    missing: dict[Vendor, str] = dict(given_up or {})
    readers: tuple[tuple[Vendor, Callable[[Node, ResourceNames], tuple[Device, ...]]], ...] = (
        (Vendor.NVIDIA, _nvidia),
        (Vendor.AWS_NEURON, _neuron),
    )
    for vendor, read in readers:
        if vendor in missing:
            continue
        try:
            devices += read(node, resources)
        except WireError as e:
            missing[vendor] = str(e)
    scores, problem = _scores(node)
    return Offer(
        devices=tuple(devices),
        cordoned=decode_cordon(node.annotations),
        pair_scores=scores,
        missing=missing,
        problem=problem,
        largest_mib=max(
            (one.memory_mib for one in devices if one.vendor is Vendor.NVIDIA), default=0
        ),
    )


def _nvidia(node: Node, resources: ResourceNames) -> tuple[Device, ...]:
    devices = decode_register(node.annotations.get(names.NODE_REGISTER, ""))
    if devices:
        _require_plugin(node, resources.gpu)
    unique = {device.uuid: device for device in devices}
    if len(unique) < len(devices) or "" in unique:
        text = node.annotations[names.NODE_REGISTER]
        raise WireError(names.NODE_REGISTER, text, "a card without a name, or named twice")
    return devices


def _neuron(node: Node, resources: ResourceNames) -> tuple[Device, ...]:
    """Devices as our daemon registers them; without it as kubelet counts them (as 2.10 does)."""
    instance_type = node.labels.get(names.INSTANCE_TYPE, "")
    text = node.annotations.get(names.NODE_NEURON_REGISTER)
    if text:
        devices = decode_neuron_register(text, instance_type)
        if devices:
            _require_plugin(node, resources.neuron, resources.neuron_core)
        return devices
    count = _whole(node, resources.neuron)
    cores = _whole(node, resources.neuron_core)
    if not 0 < count <= MAX_NEURON_DEVICES or cores < count:
        return ()
    per_device = min(cores // count, 16)
    return tuple(
        Device(
            uuid=neuron_uuid(node.name, index),
            index=index,
            vendor=Vendor.AWS_NEURON,
            model=Vendor.AWS_NEURON,
            mode="",
            numa=0,
            slots=per_device,
            cores=(1 << per_device) - 1,
            instance_type=instance_type,
        )
        for index in range(count)
    )


def _require_plugin(node: Node, *resources: str) -> None:
    """Refuse cards that no device plugin serves now.

    Raises:
        WireError: kubelet offers nothing of any of these resources.
    """
    if not any(_whole(node, resource) for resource in resources):
        shown = node.allocatable.get(resources[0], "absent")
        raise WireError(
            f"allocatable {resources[0]}", shown, "the node's device plugin does not run"
        )


def _whole(node: Node, resource: str) -> int:
    text = node.allocatable.get(resource)
    return 0 if text is None else parse_whole_quantity(text, resource)


def _scores(node: Node) -> tuple[PairScores, str]:
    """Links between cards; unreadable ones only cost the links, not the cards."""
    try:
        return decode_pair_scores(node.annotations.get(names.NODE_PAIR_SCORES, "")), ""
    except WireError as e:
        return NOTHING, f"links between cards are unknown: {e}"
