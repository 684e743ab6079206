"""Neuron devices in the admission webhook: hints, and what its author should know. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hami_node.model import Ask, Container
from hami_node.vendors.admission import VendorAdmission
from hami_node.vendors.neuron.placement import (
    TRAINIUM_CORES,
    TRAINIUM_COUNTS,
    WHOLE_DEVICES,
    Family,
    count_problem,
    in_words,
    wanted,
)
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
        """Rounded cores of generation 2.8, and requests that no Trainium node serves."""
        del named
        resources = self.protocol.names
        if lost := rounded_cores(container, resources, self.protocol.generation):
            yield f"{resources.core} is rounded down to whole devices: {lost} less"
        if ask is not None and (problem := _trainium_problem(ask)):
            resource = resources.device if ask.detail == WHOLE_DEVICES else resources.core
            yield f"{resource}: {problem}: only an Inferentia node could take the pod"


def _trainium_problem(ask: Ask) -> str:
    """Why no Trainium node can serve the ask, by its number alone; "" when some can."""
    devices = [wanted(ask, cores)[0] for cores in TRAINIUM_CORES]
    problems = [count_problem(count, Family.TRAINIUM) for count in devices]
    if not all(problems):
        return ""
    if ask.detail == WHOLE_DEVICES:
        return problems[0]
    total, each = ask.count * ask.cores, in_words(TRAINIUM_CORES)
    return (
        f"{total} cores are {in_words(devices)} devices ({each} cores on each), and Trainium "
        f"allows {in_words(TRAINIUM_COUNTS)} per container"
    )
