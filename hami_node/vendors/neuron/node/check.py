"""Checks what a scheduler wrote on a Neuron pod against the rules of its node. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hami_node.ports import HeldContainer
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.placement import NeuronUnit, family_of, is_valid_set
from hami_node.vendors.neuron.requests import NeuronResources

MAX_SHOWN: Final = 16
"""Numbers that are named one by one."""


class NeuronFault(StrEnum):
    """What can be wrong with a pod's ids; values for events, logs and metrics."""

    UNREADABLE = "ids-unreadable"
    MISSING = "ids-missing"
    MIXED_UNITS = "devices-and-cores-mixed"
    WRONG_COUNT = "wrong-number-of-ids"
    OUT_OF_RANGE = "id-out-of-range"
    REPEATED = "id-repeated"
    NOT_ASCENDING = "ids-not-ascending"
    NOT_CONSECUTIVE = "ids-not-consecutive"
    INVALID_SET = "devices-not-a-valid-set"
    TAKEN = "cores-of-another-pod"
    RESOURCE_TYPE = "resource-type-disagrees"
    OTHER_NODE = "scheduled-for-another-node"
    DRIFT = "other-cores-than-written"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronFinding:
    """A problem of a pod, with a description for people."""

    fault: NeuronFault
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronShape:
    """The number and type of a node's Neuron devices, as the checks need them."""

    devices: int
    cores_per_device: int
    instance_type: str = ""

    def size(self, unit: NeuronUnit) -> int:
        """How many devices or cores the node has."""
        return self.devices if unit is NeuronUnit.DEVICE else self.devices * self.cores_per_device


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronClaim:
    """What a pod requests and what a scheduler wrote on it.

    Attributes:
        devices, cores: sums over the pod's app containers and sidecars.
        ids: the written ids in their order; () without any, None when they can't be read.
        unit: whether the ids are devices or cores, as a scheduler wrote; None if it did not.
        predicate_node: the node that a scheduler chose; None if it did not write it.
    """

    devices: int = 0
    cores: int = 0
    ids: tuple[int, ...] | None = ()
    unit: NeuronUnit | None = None
    predicate_node: str | None = None

    @property
    def asked_unit(self) -> NeuronUnit:
        """What the ids count. Whole devices take precedence, as in HAMi's scheduler."""
        return NeuronUnit.DEVICE if self.devices else NeuronUnit.CORE

    @property
    def asked(self) -> int:
        """How many ids there should be."""
        return self.devices or self.cores


def held_cores(claim: NeuronClaim, shape: NeuronShape) -> frozenset[int]:
    """The cores behind a pod's ids; those that the node does not have are left out.

    A pod that mixes devices and cores has a list that can't be read either way: it gives none.
    """
    if claim.devices and claim.cores:
        return frozenset()
    ids = [number for number in claim.ids or () if 0 <= number < shape.size(claim.asked_unit)]
    if claim.asked_unit is NeuronUnit.CORE:
        return frozenset(ids)
    each = shape.cores_per_device
    return frozenset(number * each + core for number in ids for core in range(each))


def check_neuron_pod(
    claim: NeuronClaim, shape: NeuronShape, node_name: str, held: Mapping[str, frozenset[int]]
) -> tuple[NeuronFinding, ...]:
    """Every problem of a pod that runs on this node; () without any.

    Args:
        claim: the pod.
        shape: the node.
        node_name: where the pod actually runs.
        held: cores of the other live pods on the node, by pod key.

    A request for one or for all needs no ids: AWS's plugin serves it without reading them.
    Source: AWS's device plugin 2.22 and NEURON_RT_VISIBLE_CORES, which wants a range.
    """
    findings = [*_writing_findings(claim, node_name)]
    if claim.ids is None:
        findings.append(_finding(NeuronFault.UNREADABLE, "the id list is not a list of numbers"))
    elif claim.ids:
        findings += _id_findings(claim, claim.ids, shape)
        findings += _conflicts(held_cores(claim, shape), held)
    elif claim.asked not in (0, 1, shape.size(claim.asked_unit)):
        unit = claim.asked_unit
        findings.append(_finding(NeuronFault.MISSING, f"{claim.asked} {unit}s requested, no ids"))
    return tuple(findings)


def check_listed(
    claim: NeuronClaim,
    listed: frozenset[int],
    shape: NeuronShape,
    held: Mapping[str, frozenset[int]],
) -> tuple[NeuronFinding, ...]:
    """Problems of the cores that kubelet lists for a pod, where these are others than were written.

    AWS's plugin doesn't read the ids of a request for one, so another one is no problem of the pod.
    """
    written = held_cores(claim, shape)
    if not listed or listed == written:
        return ()
    cores = sorted(listed)
    findings = [] if claim.asked == 1 else [*_order_findings(tuple(cores), NeuronUnit.CORE)]
    if written and claim.asked != 1:
        detail = (
            f"cores {shown_numbers(sorted(written))} written, kubelet lists {shown_numbers(cores)}"
        )
        findings.append(_finding(NeuronFault.DRIFT, detail))
    return (
        *findings,
        *_set_findings(tuple(cores), NeuronUnit.CORE, shape),
        *_conflicts(listed, held),
    )


def _finding(fault: NeuronFault, detail: str) -> NeuronFinding:
    return NeuronFinding(fault=fault, detail=detail)


def _writing_findings(claim: NeuronClaim, node_name: str) -> list[NeuronFinding]:
    """Problems that contradict the pod's own spec."""
    findings = []
    if claim.devices and claim.cores:
        detail = f"{claim.devices} devices and {claim.cores} cores share one id list"
        findings.append(_finding(NeuronFault.MIXED_UNITS, detail))
    elif claim.unit is not None and claim.unit is not claim.asked_unit:
        detail = f"{claim.asked_unit}s requested, ids written as {claim.unit}s"
        findings.append(_finding(NeuronFault.RESOURCE_TYPE, detail))
    if claim.predicate_node is not None and claim.predicate_node != node_name:
        detail = f"scheduled for {claim.predicate_node}, runs on {node_name}"
        findings.append(_finding(NeuronFault.OTHER_NODE, detail))
    return findings


def _id_findings(
    claim: NeuronClaim, ids: tuple[int, ...], shape: NeuronShape
) -> list[NeuronFinding]:
    """Problems of the ids themselves; order and gaps are checked only if each id is possible."""
    if claim.devices and claim.cores:
        return []
    findings, unit = [], claim.asked_unit
    if len(ids) != claim.asked:
        detail = f"{claim.asked} {unit}s requested, {len(ids)} ids written"
        findings.append(_finding(NeuronFault.WRONG_COUNT, detail))
    outside = [number for number in ids if not 0 <= number < shape.size(unit)]
    if outside:
        detail = f"{unit} {outside[0]} of {shape.size(unit)}"
        findings.append(_finding(NeuronFault.OUT_OF_RANGE, detail))
    repeated = [number for number, times in Counter(ids).items() if times > 1]
    if repeated:
        findings.append(_finding(NeuronFault.REPEATED, f"{unit} {repeated[0]}"))
    if findings:
        return findings
    return [*_order_findings(ids, unit), *_set_findings(ids, unit, shape)]


def _order_findings(ids: tuple[int, ...], unit: NeuronUnit) -> list[NeuronFinding]:
    if list(ids) != sorted(ids):
        return [_finding(NeuronFault.NOT_ASCENDING, f"{unit}s {shown_numbers(ids)}")]
    if ids[-1] - ids[0] != len(ids) - 1:
        return [_finding(NeuronFault.NOT_CONSECUTIVE, f"{unit}s {shown_numbers(ids)}")]
    return []


def _set_findings(
    ids: tuple[int, ...], unit: NeuronUnit, shape: NeuronShape
) -> list[NeuronFinding]:
    """The devices in use have to be a set that the family allows; all devices always are."""
    each = 1 if unit is NeuronUnit.DEVICE else max(1, shape.cores_per_device)
    touched = sorted({number // each for number in ids})
    if len(touched) == shape.devices or is_valid_set(touched, family_of(shape.instance_type)):
        return []
    kind = shape.instance_type or "a node without an instance type"
    return [_finding(NeuronFault.INVALID_SET, f"devices {shown_numbers(touched)} on {kind}")]


def _conflicts(cores: frozenset[int], held: Mapping[str, frozenset[int]]) -> list[NeuronFinding]:
    return [
        _finding(
            NeuronFault.TAKEN, f"cores {shown_numbers(sorted(cores & others))} belong to {pod}"
        )
        for pod, others in sorted(held.items())
        if cores & others
    ]


def shown_numbers(numbers: Sequence[int]) -> str:
    """`0,1,2`; a long list is cut."""
    more = len(numbers) - MAX_SHOWN
    if more > 0:
        return f"{','.join(map(str, numbers[:MAX_SHOWN]))} and {more} more"
    return ",".join(map(str, numbers))


# -- which cores a container holds by kubelet's device IDs, which AWS's plugin chose ---------------
# AWS's plugin numbers devices and cores; both resources count the same silicon, and kubelet does
# not know that. Source: CloudWatch's agent, which finds a pod by the number of a device or of a
# core.
MAX_DIGITS: Final = 4


def listed_resources(resources: NeuronResources) -> tuple[str, ...]:
    """Every resource whose IDs are devices or cores of Neuron."""
    return (*resources.all, names.RESOURCE_NEURON_OLD)


def cores_listed(
    held: Sequence[HeldContainer], resources: NeuronResources, shape: NeuronShape
) -> frozenset[int] | None:
    """The cores of one pod, numbered over the whole node; () for none.

    None where an ID is no number of a device or core that the node has: nothing is known then.
    """
    found: set[int] = set()
    for container in held:
        for resource, ids in _of_neuron(container.device_ids, resources):
            unit = NeuronUnit.CORE if resource == resources.core else NeuronUnit.DEVICE
            for device_id in ids:
                number = _number(device_id)
                if number is None or number >= shape.size(unit):
                    return None
                found.update(_cores_of(number, unit, shape))
    return frozenset(found)


def _of_neuron(
    held: Mapping[str, tuple[str, ...]], resources: NeuronResources
) -> Iterable[tuple[str, tuple[str, ...]]]:
    known = listed_resources(resources)
    return ((resource, ids) for resource, ids in held.items() if resource in known)


def _number(device_id: str) -> int | None:
    is_number = device_id.isascii() and device_id.isdecimal() and len(device_id) <= MAX_DIGITS
    return int(device_id) if is_number else None


def _cores_of(number: int, unit: NeuronUnit, shape: NeuronShape) -> range:
    if unit is NeuronUnit.CORE:
        return range(number, number + 1)
    each = shape.cores_per_device
    return range(number * each, (number + 1) * each)
