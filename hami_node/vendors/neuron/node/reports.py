"""On a Neuron node: what we publish about its devices. AWS's own plugin serves them to kubelet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from hami_node.logs import kv
from hami_node.model import Device, Node, Uuid
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.codec import encode_neuron_register
from hami_node.vendors.neuron.node.devices import devices_of, geometry_of, topology_of
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.on_node.publication import Closed
from hami_node.wire.handshake import encode_reported_rfc3339
from hami_node.wire.values import encode_json_text

log = logging.getLogger(__name__)


class NeuronPublication:
    """Register, topology and handshake of a node's Neuron devices; nothing on other nodes."""

    def __init__(
        self,
        resources: NeuronResources,
        closed: Callable[[], Mapping[Uuid, Closed]] = dict,
    ) -> None:
        """Wire the sources.

        Args:
            resources: the names under which the node offers its devices.
            closed: the cores that can't be given, though the node offers them.
        """
        self._resources, self._closed = resources, closed
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
            names.NODE_NEURON_REGISTER: encode_neuron_register(self._open(devices)),
            names.NODE_NEURON_TOPOLOGY: (
                encode_json_text(topology.members()) if topology is not None else None
            ),
        }

    def _open(self, devices: Iterable[Device]) -> Iterator[Device]:
        """The devices without their closed cores; one without any core left is unhealthy."""
        closed = self._closed()
        for device in devices:
            found = closed.get(device.uuid)
            left = device.cores & ~found.cores if found is not None else device.cores
            if found is None or left == device.cores:
                yield device
            elif left:
                yield replace(device, cores=left)
            else:
                yield replace(device, healthy=False, unhealthy_reason=found.reason)

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
