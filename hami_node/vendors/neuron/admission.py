"""Neuron devices in the admission webhook: hints, and cores that are rounded down. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hami_node.model import Ask, Container
from hami_node.vendors.admission import VendorAdmission
from hami_node.vendors.neuron.protocol import NeuronProtocol
from hami_node.vendors.neuron.requests import CORES_PER_DEVICE, rounded_cores


@dataclass(frozen=True, kw_only=True)
class NeuronAdmission(VendorAdmission):
    """What the webhook checks on pods with Neuron devices: hints, and warnings about odd cores."""

    protocol: NeuronProtocol

    def hint_of(self, resource: str) -> str:
        """What to write for devices, and for cores."""
        if resource == self.protocol.names.device:
            return "write a whole number of devices, such as 1"
        return f"write 1 or a multiple of {CORES_PER_DEVICE} cores"

    def warnings_of(
        self, container: Container, named: Sequence[str], ask: Ask | None
    ) -> Iterator[str]:
        """Generation 2.8 rounds odd numbers of cores down."""
        del named, ask
        resources = self.protocol.names
        if lost := rounded_cores(container, resources, self.protocol.generation):
            yield f"{resources.core} is rounded down to whole devices: {lost} less"
