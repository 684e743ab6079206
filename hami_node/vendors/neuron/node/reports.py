"""On a Neuron node: what we publish about its devices, and whether granted ids obey the rules.

AWS's own plugin serves the devices to kubelet; we only report and check, and never write a pod.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from hami_node.errors import WireError
from hami_node.logs import kv
from hami_node.model import ContainerKind, Node, Pod
from hami_node.ports import EventNote
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.codec import decode_neuron_ids, encode_neuron_register
from hami_node.vendors.neuron.node.check import (
    NeuronClaim,
    NeuronFinding,
    NeuronShape,
    check_neuron_pod,
    held_cores,
)
from hami_node.vendors.neuron.node.devices import devices_of, geometry_of, topology_of
from hami_node.vendors.neuron.placement import NeuronUnit
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.wire.handshake import encode_reported_rfc3339
from hami_node.wire.reservation import count_of
from hami_node.wire.values.json_text import encode_json_text

log = logging.getLogger(__name__)

EVENT: Final = "NeuronGrantInvalid"


class NeuronPublication:
    """Register, topology and handshake of a node's Neuron devices; nothing on other nodes."""

    def __init__(self, resources: NeuronResources) -> None:
        """`resources` are the names under which the node offers its devices."""
        self._resources = resources
        self._logged: frozenset[str] = frozenset()

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """Devices and topology, or nothing where the node has none."""
        del now
        devices = devices_of(node, self._resources)
        if not devices:
            return dict.fromkeys(
                (
                    names.NODE_NEURON_REGISTER,
                    names.NODE_NEURON_TOPOLOGY,
                    names.NODE_NEURON_HANDSHAKE,
                )
            )
        self._log_problems(node)
        topology = topology_of(node, self._resources)
        return {
            names.NODE_NEURON_REGISTER: encode_neuron_register(devices),
            names.NODE_NEURON_TOPOLOGY: (
                encode_json_text(topology.members()) if topology is not None else None
            ),
        }

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The handshake; readers treat it as stale after 90 s."""
        if not devices_of(node, self._resources):
            return {}
        return {names.NODE_NEURON_HANDSHAKE: encode_reported_rfc3339(now)}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """The handshake is removed: the annotations are no longer kept up to date."""
        del node
        return {names.NODE_NEURON_HANDSHAKE: None}

    def _log_problems(self, node: Node) -> None:
        findings = geometry_of(node, self._resources).findings
        details = frozenset(finding.detail for finding in findings)
        for finding in findings:
            if finding.detail not in self._logged:
                log.warning(
                    "neuron_node_problem",
                    extra=kv(problem=finding.problem, detail=finding.detail),
                )
        self._logged = details


class NeuronAuditor:
    """Checks every pod's Neuron ids against the rules; each finding is reported once per pod."""

    def __init__(
        self,
        resources: NeuronResources,
        *,
        notify: Callable[[EventNote], None],
        count: Callable[[str], None],
    ) -> None:
        """Set where findings go: an Event on the pod, a metric by rule.

        Args:
            resources: the names of the extended resources on node and pods.
            notify: receives the Event.
            count: receives the rule.
        """
        self._resources = resources
        self._notify = notify
        self._count = count
        self._reported: dict[str, frozenset[str]] = {}

    def audit(self, node: Node, pods: tuple[Pod, ...]) -> int:
        """Check all pods of the node and return the number of findings."""
        geometry = geometry_of(node, self._resources)
        if not geometry.devices:
            return 0
        shape = NeuronShape(
            devices=geometry.devices,
            cores_per_device=geometry.cores_per_device,
            instance_type=geometry.instance_type,
        )
        claims = [
            (pod, claim)
            for pod in pods
            if not pod.is_over and (claim := claim_of(pod, self._resources)) is not None
        ]
        found = 0
        reported: dict[str, frozenset[str]] = {}
        for pod, claim in claims:
            held = {
                other.key: held_cores(theirs, shape)
                for other, theirs in claims
                if other.uid != pod.uid
            }
            findings = check_neuron_pod(claim, shape, node.name, held)
            found += len(findings)
            reported[pod.uid] = frozenset(finding.detail for finding in findings)
            self._report(pod, findings)
        self._reported = reported
        return found

    def _report(self, pod: Pod, findings: tuple[NeuronFinding, ...]) -> None:
        for finding in findings:
            if finding.detail in self._reported.get(pod.uid, frozenset()):
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


def claim_of(pod: Pod, resources: NeuronResources) -> NeuronClaim | None:
    """What a pod requests of Neuron and what a scheduler wrote; None if it requests nothing."""
    running = [
        container for container in pod.containers if container.kind is not ContainerKind.INIT
    ]
    devices = sum(count_of(container, resources.device) for container in running)
    cores = sum(count_of(container, resources.core) for container in running)
    if not devices and not cores:
        return None
    return NeuronClaim(
        devices=devices,
        cores=cores,
        ids=_ids(pod.annotations.get(names.NEURON_IDS)),
        unit=_unit(pod.annotations.get(names.NEURON_RESOURCE_TYPE), resources),
        predicate_node=pod.annotations.get(names.NEURON_PREDICATE_NODE),
    )


def _ids(text: str | None) -> tuple[int, ...] | None:
    if not text:
        return ()
    try:
        return decode_neuron_ids(text)
    except WireError:
        return None  # unreadable: a finding of its own


def _unit(text: str | None, resources: NeuronResources) -> NeuronUnit | None:
    if text is None:
        return None
    return NeuronUnit.CORE if text == resources.core else NeuronUnit.DEVICE
