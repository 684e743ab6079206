"""On a Neuron node: what we say of its devices, and whether granted ids obey the rules.

AWS's own plugin serves the devices to kubelet; we only report and check, and never write a pod.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from hami_node.backends.neuron import devices_of, geometry_of, topology_of
from hami_node.engine.neuron import NeuronUnit
from hami_node.engine.neuron_check import (
    NeuronClaim,
    NeuronFinding,
    NeuronShape,
    check_neuron_pod,
    held_cores,
)
from hami_node.errors import WireError
from hami_node.logs import kv
from hami_node.model import ContainerKind, Node, Pod
from hami_node.ports import EventNote
from hami_node.wire import names
from hami_node.wire.handshake import encode_neuron_reported
from hami_node.wire.json_text import encode_json_text
from hami_node.wire.neuron_codec import decode_neuron_ids, encode_neuron_register
from hami_node.wire.reservation import count_of

log = logging.getLogger(__name__)

EVENT: Final = "NeuronGrantInvalid"


class NeuronPublication:
    """Register, topology and handshake of a node's Neuron devices; silent on other nodes."""

    def __init__(self) -> None:
        self._told: frozenset[str] = frozenset()

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """Devices and topology, or nothing where the node has none."""
        del now
        devices = devices_of(node)
        if not devices:
            return dict.fromkeys(
                (
                    names.NODE_NEURON_REGISTER,
                    names.NODE_NEURON_TOPOLOGY,
                    names.NODE_NEURON_HANDSHAKE,
                )
            )
        self._tell(node)
        topology = topology_of(node)
        return {
            names.NODE_NEURON_REGISTER: encode_neuron_register(devices),
            names.NODE_NEURON_TOPOLOGY: (
                encode_json_text(topology.members()) if topology is not None else None
            ),
        }

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The handshake; readers call it stale after 90 s."""
        if not devices_of(node):
            return {}
        return {names.NODE_NEURON_HANDSHAKE: encode_neuron_reported(now)}

    def farewell(self, node: Node) -> Mapping[str, str | None]:
        """The handshake goes: what stands is no longer vouched for."""
        del node
        return {names.NODE_NEURON_HANDSHAKE: None}

    def _tell(self, node: Node) -> None:
        findings = geometry_of(node).findings
        said = frozenset(finding.detail for finding in findings)
        for finding in findings:
            if finding.detail not in self._told:
                log.warning(
                    "neuron_node_problem",
                    extra=kv(problem=finding.problem, detail=finding.detail),
                )
        self._told = said


class NeuronAuditor:
    """Checks every pod's Neuron ids against the rules; each finding is told once per pod."""

    def __init__(
        self, *, notify: Callable[[EventNote], None], count: Callable[[str], None]
    ) -> None:
        """Wire the outcomes: an Event on the pod, a metric by rule."""
        self._notify = notify
        self._count = count
        self._told: dict[str, frozenset[str]] = {}

    def audit(self, node: Node, pods: tuple[Pod, ...]) -> int:
        """Look at all pods of the node; how many findings there are now."""
        geometry = geometry_of(node)
        if not geometry.devices:
            return 0
        shape = NeuronShape(
            devices=geometry.devices,
            cores_per_device=geometry.cores_per_device,
            instance_type=geometry.instance_type,
        )
        claims = [
            (pod, claim) for pod in pods if not pod.is_over and (claim := claim_of(pod)) is not None
        ]
        found = 0
        told: dict[str, frozenset[str]] = {}
        for pod, claim in claims:
            held = {
                other.key: held_cores(theirs, shape)
                for other, theirs in claims
                if other.uid != pod.uid
            }
            findings = check_neuron_pod(claim, shape, node.name, held)
            found += len(findings)
            told[pod.uid] = frozenset(finding.detail for finding in findings)
            self._tell(pod, findings)
        self._told = told
        return found

    def _tell(self, pod: Pod, findings: tuple[NeuronFinding, ...]) -> None:
        for finding in findings:
            if finding.detail in self._told.get(pod.uid, frozenset()):
                continue
            self._count(finding.fault)
            log.warning(
                "neuron_grant_invalid",
                extra=kv(pod=pod.key, rule=finding.fault, detail=finding.detail),
            )
            self._notify(
                EventNote(
                    kind="Pod",
                    namespace=pod.namespace,
                    name=pod.name,
                    uid=pod.uid,
                    reason=EVENT,
                    message=f"{finding.fault}: {finding.detail}",
                )
            )


def claim_of(pod: Pod) -> NeuronClaim | None:
    """What a pod asks of Neuron and what a scheduler wrote; None where it asks nothing."""
    running = [one for one in pod.containers if one.kind is not ContainerKind.INIT]
    devices = sum(count_of(one, names.RESOURCE_NEURON) for one in running)
    cores = sum(count_of(one, names.RESOURCE_NEURON_CORE) for one in running)
    if not devices and not cores:
        return None
    return NeuronClaim(
        devices=devices,
        cores=cores,
        ids=_ids(pod.annotations.get(names.NEURON_IDS)),
        unit=_unit(pod.annotations.get(names.NEURON_RESOURCE_TYPE)),
        predicate_node=pod.annotations.get(names.NEURON_PREDICATE_NODE),
    )


def _ids(text: str | None) -> tuple[int, ...] | None:
    if not text:
        return ()
    try:
        return decode_neuron_ids(text)
    except WireError:
        return None  # means unreadable: a finding of its own


def _unit(text: str | None) -> NeuronUnit | None:
    if text is None:
        return None
    return NeuronUnit.CORE if text == names.RESOURCE_NEURON_CORE else NeuronUnit.DEVICE
