"""AWS Neuron devices of a node, from what its Node object says; no hardware is touched.

AWS's own plugin registers the devices with kubelet and opens them. We read the capacity that
results, the instance-type label and a table of instance types, and say where they disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hami_node.backends.neuron_types import NEURON_TYPES, SAGEMAKER_PREFIX, NeuronType, Wiring
from hami_node.model import Device, Node, Uuid, Vendor
from hami_node.wire import names

MAX_DEVICES: Final = 64
"""Most devices that the Neuron driver knows on one node."""

MAX_CORES: Final = 8
"""Most cores of one device."""

FAMILY: Final = re.compile(r"(inf|trn)\d", re.IGNORECASE)
QUANTITY: Final = re.compile(r"[0-9]{1,9}")


class NeuronProblem(StrEnum):
    """What can be wrong with a node; words for logs, events and metrics."""

    UNREADABLE = "quantity-unreadable"
    CORES_MISSING = "cores-missing"
    CORES_NOT_DIVISIBLE = "cores-not-divisible"
    CORES_DISAGREE = "cores-disagree-with-type"
    TYPE_MISSING = "instance-type-missing"
    TYPE_UNKNOWN = "instance-type-unknown"
    TYPE_NOT_LISTED = "instance-type-not-listed"
    DEVICES_DISAGREE = "devices-disagree-with-type"
    NOT_ALL_ALLOCATABLE = "not-all-allocatable"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """One thing that is wrong with a node, and what follows from it, for people."""

    problem: NeuronProblem
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronTopology:
    """Value of `hami-node.io/neuron-topology`, as far as it is known without the hardware.

    Attributes:
        lnc: physical cores in one logical core; None where the numbers don't fit the type.
        links: neighbours of each device; () where they are not known.
    """

    instance_type: str
    family: str
    lnc: int | None
    physical_cores: int | None
    logical_cores: int
    memory_mib: int | None
    wiring: Wiring
    links: tuple[tuple[int, ...], ...] = ()

    def members(self) -> dict[str, object]:
        """Members of the JSON object; what is not known is left out."""
        known = {
            "v": 1,
            "instanceType": self.instance_type,
            "source": "label",
            "family": self.family,
            "lnc": self.lnc,
            "physCores": self.physical_cores,
            "logicalCores": self.logical_cores,
            "memMiB": self.memory_mib,
            "topology": str(self.wiring),
            "adj": [list(near) for near in self.links] or None,
        }
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronGeometry:
    """What a Node object says about its Neuron devices.

    Attributes:
        instance_type: the label without SageMaker's prefix; "" when missing.
        type: its row of the table; None when it has none.
        devices: how many there are; 0 when the node has none.
        cores_per_device: logical cores of each; 0 when they can't be told.
        unhealthy_reason: why no device can be used; "" when they can.
        findings: where the node's own words disagree.
    """

    instance_type: str
    type: NeuronType | None
    devices: int
    cores_per_device: int
    unhealthy_reason: str
    findings: tuple[NodeFinding, ...]

    @property
    def is_as_listed(self) -> bool:
        """True when numbers of devices and cores are those of the instance type."""
        return (
            self.type is not None
            and self.devices == self.type.devices
            and self.cores_per_device in self.type.logical_cores
        )


def geometry_of(node: Node) -> NeuronGeometry:
    """Read a node's Neuron devices and find every disagreement; never raises."""
    label = node.labels.get(names.INSTANCE_TYPE, "").strip()
    instance_type = label.removeprefix(SAGEMAKER_PREFIX)
    known = NEURON_TYPES.get(instance_type.lower())
    findings: list[NodeFinding] = []
    devices = _quantity(node.capacity, names.RESOURCE_NEURON, MAX_DEVICES, findings) or 0
    cores, reason = 0, ""
    if devices:
        findings += _type_findings(instance_type, known, devices)
        cores, reason = _cores_per_device(node, devices, known, findings)
        reason = _allocatable_reason(node, devices, findings) or reason
    return NeuronGeometry(
        instance_type=instance_type,
        type=known,
        devices=devices,
        cores_per_device=cores,
        unhealthy_reason=reason,
        findings=tuple(findings),
    )


def _found(findings: list[NodeFinding], problem: NeuronProblem, detail: str) -> None:
    findings.append(NodeFinding(problem=problem, detail=detail))


def _quantity(
    quantities: Mapping[str, str], resource: str, most: int, findings: list[NodeFinding]
) -> int | None:
    """A small whole number; None when it is absent or impossible, which is found too."""
    text = quantities.get(resource)
    if text is None:
        return None
    if QUANTITY.fullmatch(text.strip()) and int(text) <= most:
        return int(text)
    detail = f"{resource}: {text[:40]!r} is not a whole number from 0 to {most}"
    _found(findings, NeuronProblem.UNREADABLE, detail)
    return None


def _type_findings(
    instance_type: str, known: NeuronType | None, devices: int
) -> tuple[NodeFinding, ...]:
    """The label against the table. Multi-device placement needs a known family."""
    findings: list[NodeFinding] = []
    alone = "requests for more than one device are refused"
    if not instance_type:
        detail = f"label {names.INSTANCE_TYPE} is missing: {alone}"
        _found(findings, NeuronProblem.TYPE_MISSING, detail)
    elif not FAMILY.match(instance_type):
        detail = f"{instance_type} is no Neuron instance type: {alone}"
        _found(findings, NeuronProblem.TYPE_UNKNOWN, detail)
    elif known is None:
        detail = f"{instance_type} is not in the table: the rules of its family are used"
        _found(findings, NeuronProblem.TYPE_NOT_LISTED, detail)
    elif known.devices != devices:
        detail = f"{instance_type} has {known.devices} devices, the node offers {devices}"
        _found(findings, NeuronProblem.DEVICES_DISAGREE, detail)
    return tuple(findings)


def _cores_per_device(
    node: Node, devices: int, known: NeuronType | None, findings: list[NodeFinding]
) -> tuple[int, str]:
    """Logical cores of one device, and why the devices can't be used; "" when they can."""
    resource = names.RESOURCE_NEURON_CORE
    cores = _quantity(node.capacity, resource, devices * MAX_CORES, findings)
    if not cores:
        usual = known.logical_cores[0] if known else 0
        detail = f"the node offers no {resource}: {usual or 'an unknown number of'} on each device"
        _found(findings, NeuronProblem.CORES_MISSING, detail)
        return usual, "" if usual else detail
    each, rest = divmod(cores, devices)
    if rest:
        detail = f"{cores} cores can't be spread evenly over {devices} devices"
        _found(findings, NeuronProblem.CORES_NOT_DIVISIBLE, detail)
        return 0, detail
    if known and each not in known.logical_cores:
        listed = " or ".join(map(str, known.logical_cores))
        detail = f"{each} cores on each device, the instance type has {listed}"
        _found(findings, NeuronProblem.CORES_DISAGREE, detail)
    return each, ""


def _allocatable_reason(node: Node, devices: int, findings: list[NodeFinding]) -> str:
    """Why no device can be used although the node counts them; "" otherwise.

    kubelet lowers allocatable for every unhealthy device, to 0 when AWS's plugin is gone. Which
    device it is can't be told from here unless it is all of them.
    """
    resource = names.RESOURCE_NEURON
    allocatable = _quantity(node.allocatable, resource, MAX_DEVICES, findings)
    if allocatable is None or allocatable >= devices:
        return ""
    detail = f"{allocatable} of {devices} devices can be allocated"
    _found(findings, NeuronProblem.NOT_ALL_ALLOCATABLE, detail)
    return "" if allocatable else f"{detail}: AWS's device plugin does not offer them"


def devices_of(node: Node) -> tuple[Device, ...]:
    """The node's Neuron devices, ascending; () without any. Never raises.

    `cores` is the mask of the logical cores, `slots` their number: each may have its container.
    Memory stays 0: AWS's plugin gives devices and cores, never an amount of memory.
    Source: HAMi awsneuron/device.go:156 for the ids.
    """
    geometry = geometry_of(node)
    cores = geometry.cores_per_device
    return tuple(
        Device(
            uuid=Uuid(f"{node.name}-{Vendor.AWS_NEURON}-{index}"),
            index=index,
            vendor=Vendor.AWS_NEURON,
            model=str(Vendor.AWS_NEURON),
            mode="",
            healthy=not geometry.unhealthy_reason,
            unhealthy_reason=geometry.unhealthy_reason,
            slots=cores,
            cores=(1 << cores) - 1,
            instance_type=geometry.instance_type,
        )
        for index in range(geometry.devices)
    )


def topology_of(node: Node) -> NeuronTopology | None:
    """What to publish about the wiring; None for a node without Neuron devices.

    Links are only told where the node has exactly the devices of its instance type.
    """
    geometry = geometry_of(node)
    if not geometry.devices:
        return None
    known, cores = geometry.type, geometry.cores_per_device
    is_sure = geometry.is_as_listed
    family = FAMILY.match(geometry.instance_type)
    return NeuronTopology(
        instance_type=geometry.instance_type,
        family=known.family if known else family[0].lower() if family else "unknown",
        lnc=known.physical_cores // cores if known and is_sure else None,
        physical_cores=known.physical_cores if known else None,
        logical_cores=cores,
        memory_mib=known.memory_mib if known else None,
        wiring=known.wiring if known and is_sure else Wiring.UNKNOWN,
        links=known.links() if known and is_sure else (),
    )
