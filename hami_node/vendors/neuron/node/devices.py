"""AWS Neuron devices of a node, read from its Node object; no hardware is accessed.

AWS's own plugin registers the devices with kubelet and opens them. We compare the resulting
capacity, the instance-type label and a table of instance types, and report where they disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hami_node.model import Device, Node
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.codec import neuron_uuid
from hami_node.vendors.neuron.placement import NeuronDetail
from hami_node.vendors.neuron.requests import NeuronResources

MAX_DEVICES: Final = 64
"""Most devices that the Neuron driver supports on one node."""

MAX_CORES: Final = 8
"""Most cores of one device."""

FAMILY: Final = re.compile(r"(inf|trn)\d", re.IGNORECASE)
QUANTITY: Final = re.compile(r"[0-9]{1,9}")


class NeuronProblem(StrEnum):
    """What can be wrong with a node; values for logs, events and metrics."""

    UNREADABLE = "quantity-unreadable"
    CORES_MISSING = "cores-missing"
    CORES_NOT_DIVISIBLE = "cores-not-divisible"
    CORES_DISAGREE = "cores-disagree-with-type"
    TYPE_MISSING = "instance-type-missing"
    TYPE_UNKNOWN = "instance-type-unknown"
    TYPE_NOT_LISTED = "instance-type-not-listed"
    DEVICES_DISAGREE = "devices-disagree-with-type"
    NOT_ALL_ALLOCATABLE = "not-all-allocatable"
    HARDWARE_ERROR = "hardware-error"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """A problem of a node and its consequence, for people."""

    problem: NeuronProblem
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronTopology:
    """The value of `hami-node.io/neuron-topology`, as far as it is known without the hardware.

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
    """The Neuron devices of a node by its Node object.

    Attributes:
        instance_type: the label without SageMaker's prefix; "" when missing.
        type: its row of the table; None if it is not listed.
        devices: how many there are; 0 when the node has none.
        cores_per_device: logical cores of each; 0 when that is unclear.
        unhealthy_reason: why no device can be used; "" when they can.
        findings: where the node's own data disagree.
    """

    instance_type: str
    type: NeuronType | None
    devices: int
    cores_per_device: int
    unhealthy_reason: str
    findings: tuple[NodeFinding, ...]

    @property
    def is_as_listed(self) -> bool:
        """True when the numbers of devices and cores are those of the instance type."""
        return (
            self.type is not None
            and self.devices == self.type.devices
            and self.cores_per_device in self.type.logical_cores
        )


def geometry_of(node: Node, resources: NeuronResources) -> NeuronGeometry:
    """Read a node's Neuron devices and find every disagreement; never raises.

    Args:
        node: the node.
        resources: what AWS's plugin calls devices and cores on it.
    """
    label = node.labels.get(names.INSTANCE_TYPE, "").strip()
    instance_type = label.removeprefix(SAGEMAKER_PREFIX)
    known = NEURON_TYPES.get(instance_type.lower())
    findings: list[NodeFinding] = []
    devices = _quantity(node.capacity, resources.device, MAX_DEVICES, findings) or 0
    cores, reason = 0, ""
    if devices:
        findings += _type_findings(instance_type, known, devices)
        cores, reason = _cores_per_device(node, resources.core, devices, known, findings)
        reason = _allocatable_reason(node, resources.device, devices, findings) or reason
        reason = _condition_reason(node, findings) or reason
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
    """A small whole number; None when it is absent or, with a finding, impossible."""
    text = quantities.get(resource)
    if text is None:
        return None
    number = text.strip()
    if QUANTITY.fullmatch(number) and int(number) <= most:
        return int(number)
    detail = f"{resource}: {text[:40]!r} is not a whole number from 0 to {most}"
    _found(findings, NeuronProblem.UNREADABLE, detail)
    return None


def _type_findings(
    instance_type: str, known: NeuronType | None, devices: int
) -> tuple[NodeFinding, ...]:
    """Compare the label with the table. Placing several devices needs a known family."""
    findings: list[NodeFinding] = []
    alone = "requests for more than one device are refused"
    if not instance_type:
        detail = f"label {names.INSTANCE_TYPE} is missing: {alone}"
        _found(findings, NeuronProblem.TYPE_MISSING, detail)
    elif not FAMILY.match(instance_type):
        detail = f"{instance_type} is not a Neuron instance type: {alone}"
        _found(findings, NeuronProblem.TYPE_UNKNOWN, detail)
    elif known is None:
        detail = f"{instance_type} is not in the table: the rules of its family are used"
        _found(findings, NeuronProblem.TYPE_NOT_LISTED, detail)
    elif known.devices != devices:
        detail = f"{instance_type} has {known.devices} devices, the node offers {devices}"
        _found(findings, NeuronProblem.DEVICES_DISAGREE, detail)
    return tuple(findings)


def _cores_per_device(
    node: Node,
    resource: str,
    devices: int,
    known: NeuronType | None,
    findings: list[NodeFinding],
) -> tuple[int, str]:
    """Logical cores of one device, and why the devices can't be used; "" when they can."""
    cores = _quantity(node.capacity, resource, devices * MAX_CORES, findings)
    if not cores:
        usual = known.logical_cores[0] if known else 0
        kind = "the instance type"
        counted = f"{kind} has {usual} on each device" if usual else f"{kind} does not say how many"
        detail = f"the node offers no {resource}, and {counted}"
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


def _allocatable_reason(
    node: Node, resource: str, devices: int, findings: list[NodeFinding]
) -> str:
    """Why no device can be used although the node counts them; "" otherwise.

    kubelet lowers allocatable for every unhealthy device, to 0 when AWS's plugin is down. Which
    device it is stays unknown unless it is all of them.
    """
    allocatable = _quantity(node.allocatable, resource, MAX_DEVICES, findings)
    if allocatable is None or allocatable >= devices:
        return ""
    detail = f"{allocatable} of {devices} devices can be allocated"
    _found(findings, NeuronProblem.NOT_ALL_ALLOCATABLE, detail)
    return "" if allocatable else f"{detail}: AWS's device plugin does not offer them"


def _condition_reason(node: Node, findings: list[NodeFinding]) -> str:
    """What AWS's node problem detector says; it names no device, so it is about all of them.

    Its reason decides, not its status: names and states of such conditions read either way.
    """
    said = node.conditions.get(names.CONDITION_HEALTH, "")
    if not said.startswith(names.CONDITION_ERROR):
        return ""
    detail = f"the node's condition {names.CONDITION_HEALTH} says {said}: replace the instance"
    _found(findings, NeuronProblem.HARDWARE_ERROR, detail)
    return detail


def devices_of(node: Node, resources: NeuronResources) -> tuple[Device, ...]:
    """The node's Neuron devices, ascending; () without any. Never raises.

    `cores` is the mask of the logical cores, `slots` their number: each may have its container.
    Memory stays 0: AWS's plugin gives devices and cores, never an amount of memory.
    Source: HAMi awsneuron/device.go:156 for the ids.
    """
    geometry = geometry_of(node, resources)
    cores = geometry.cores_per_device
    return tuple(
        Device(
            uuid=neuron_uuid(node.name, index),
            index=index,
            vendor=NEURON,
            model=NEURON.word,
            mode="",
            healthy=not geometry.unhealthy_reason,
            unhealthy_reason=geometry.unhealthy_reason,
            slots=cores,
            cores=(1 << cores) - 1,
            detail=NeuronDetail(instance_type=geometry.instance_type),
        )
        for index in range(geometry.devices)
    )


def topology_of(node: Node, resources: NeuronResources) -> NeuronTopology | None:
    """The topology to publish; None for a node without Neuron devices.

    Links are only published if the node has exactly the devices of its instance type.
    """
    geometry = geometry_of(node, resources)
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


# -- EC2 instance types with AWS Neuron devices, and how their devices are linked ------------------
# Sources: AWS Neuron documentation (neuron-hardware), address maps and link tables of the Neuron
# driver, neuron-ls captures. Trainium 3 sizes are named by the driver only.
TORUS_SIDE: Final = 4
"""Trainium servers are a 4 x 4 torus, numbered by rows."""

SAGEMAKER_PREFIX: Final = "ml."
"""SageMaker HyperPod writes it before the instance type."""


class Wiring(StrEnum):
    """How the devices of one node are linked."""

    NONE = "none"
    LINE = "line"
    RING = "ring"
    TORUS = "torus2d"
    ALL = "all-to-all"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronType:
    """An EC2 instance type with Neuron devices.

    Attributes:
        family: generation of the chip.
        devices: chips of one node.
        physical_cores: cores of one chip; the driver's sysfs counts these.
        memory_mib: memory of one chip.
        lncs: how many physical cores may make one logical core, the default first.
    """

    family: str
    devices: int
    physical_cores: int
    memory_mib: int
    wiring: Wiring
    lncs: tuple[int, ...] = (1,)

    @property
    def logical_cores(self) -> tuple[int, ...]:
        """Possible numbers of logical cores on one chip, the default first."""
        return tuple(self.physical_cores // lnc for lnc in self.lncs)

    def links(self) -> tuple[tuple[int, ...], ...]:
        """Neighbours of each device in the driver's order; () where they are not documented."""
        if self.wiring is Wiring.UNKNOWN:
            return ()
        return tuple(self._links_of(device) for device in range(self.devices))

    def _links_of(self, device: int) -> tuple[int, ...]:
        last = self.devices - 1
        if self.wiring is Wiring.NONE:
            return ()
        if self.wiring is Wiring.LINE:
            return tuple(other for other in (device - 1, device + 1) if 0 <= other <= last)
        if self.wiring is Wiring.RING:
            return (device - 1) % self.devices, (device + 1) % self.devices
        if self.wiring is Wiring.ALL:
            return tuple(other for other in range(self.devices) if other != device)
        row, column = divmod(device, TORUS_SIDE)
        up, down = (row - 1) % TORUS_SIDE, (row + 1) % TORUS_SIDE
        left, right = (column - 1) % TORUS_SIDE, (column + 1) % TORUS_SIDE
        return (
            up * TORUS_SIDE + column,
            row * TORUS_SIDE + left,
            down * TORUS_SIDE + column,
            row * TORUS_SIDE + right,
        )


def _type(
    family: str, devices: int, physical_cores: int, memory_gib: int, wiring: Wiring
) -> NeuronType:
    # Only Trainium 2 and 3 combine two physical cores into a logical core, and do so by default.
    return NeuronType(
        family=family,
        devices=devices,
        physical_cores=physical_cores,
        memory_mib=memory_gib * 1024,
        wiring=wiring,
        lncs=(2, 1) if family in ("trn2", "trn3") else (1,),
    )


NEURON_TYPES: Final[Mapping[str, NeuronType]] = MappingProxyType(
    {
        "inf1.xlarge": _type("inf1", 1, 4, 8, Wiring.NONE),
        "inf1.2xlarge": _type("inf1", 1, 4, 8, Wiring.NONE),
        "inf1.6xlarge": _type("inf1", 4, 4, 8, Wiring.LINE),
        "inf1.24xlarge": _type("inf1", 16, 4, 8, Wiring.UNKNOWN),  # ring or line: undocumented
        "inf2.xlarge": _type("inf2", 1, 2, 32, Wiring.NONE),
        "inf2.8xlarge": _type("inf2", 1, 2, 32, Wiring.NONE),
        "inf2.24xlarge": _type("inf2", 6, 2, 32, Wiring.LINE),
        "inf2.48xlarge": _type("inf2", 12, 2, 32, Wiring.RING),
        "trn1.2xlarge": _type("trn1", 1, 2, 32, Wiring.NONE),
        "trn1.32xlarge": _type("trn1", 16, 2, 32, Wiring.TORUS),
        "trn1n.32xlarge": _type("trn1", 16, 2, 32, Wiring.TORUS),
        "trn2.3xlarge": _type("trn2", 1, 8, 96, Wiring.NONE),
        "trn2.48xlarge": _type("trn2", 16, 8, 96, Wiring.TORUS),
        "trn2u.48xlarge": _type("trn2", 16, 8, 96, Wiring.TORUS),
        "trn3.48xlarge": _type("trn3", 16, 8, 144, Wiring.ALL),
        "trn3e.24xlarge": _type("trn3", 4, 8, 144, Wiring.ALL),
    }
)
"""By the value of the node label, without SageMaker's prefix."""
