"""What a container requests of Neuron: extended resources in its limits and requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hami_node.errors import WireError
from hami_node.model import Ask, Container
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import WHOLE_DEVICES, NeuronGeneration
from hami_node.vendors.quantities import count_of, text_of

CORES_PER_DEVICE: Final = 2
"""How many cores a device has in a request for cores, before the node is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronResources:
    """The names of the extended resources; device-config.yaml may change them."""

    device: str = names.RESOURCE_NEURON
    core: str = names.RESOURCE_NEURON_CORE

    @property
    def all(self) -> tuple[str, ...]:
        """Both."""
        return (self.device, self.core)


def names_devices(container: Container, resources: NeuronResources) -> bool:
    """True when the container asks for whole devices, not for cores."""
    return resources.device in container.limits or (
        resources.device in container.requests and resources.core not in container.limits
    )


def neuron_ask_of(
    container: Container, resources: NeuronResources, generation: NeuronGeneration
) -> Ask | None:
    """What the container requests; None for 0 devices and for no resource.

    Raises:
        WireError: a value that can't be served; `key` names the resource.
    """
    devices = count_of(container, resources.device)
    if devices is not None:
        return _ask(devices, CORES_PER_DEVICE, is_whole_device=True)
    cores = count_of(container, resources.core)
    if cores is None:
        return None
    if not generation.is_odd_rejected:
        if cores < CORES_PER_DEVICE:
            return _ask(1, max(cores, 1))
        return _ask(cores // CORES_PER_DEVICE, CORES_PER_DEVICE)
    if cores < CORES_PER_DEVICE:
        return _ask(1, cores) if cores else None
    if cores % CORES_PER_DEVICE:
        why = f"has to be 1 or a multiple of {CORES_PER_DEVICE}"
        raise WireError(resources.core, str(cores), why)
    return _ask(cores // CORES_PER_DEVICE, CORES_PER_DEVICE)


def _ask(devices: int, cores_each: int, *, is_whole_device: bool = False) -> Ask | None:
    if not devices:
        return None
    detail = WHOLE_DEVICES if is_whole_device else None
    return Ask(vendor=NEURON, count=devices, cores=cores_each, detail=detail)


def rounded_cores(
    container: Container, resources: NeuronResources, generation: NeuronGeneration
) -> int:
    """How many requested cores the rounding of 2.8 takes away.

    Raises:
        WireError: the container's number of cores can't be read.
    """
    cores = count_of(container, resources.core) or 0
    if text_of(container, resources.device) is not None or generation.is_odd_rejected:
        return 0
    return cores % CORES_PER_DEVICE if cores > CORES_PER_DEVICE else 0
