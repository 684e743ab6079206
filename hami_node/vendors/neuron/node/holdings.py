"""Which cores a container holds by kubelet's device IDs, which AWS's plugin chose. Pure.

AWS's plugin numbers devices and cores; both resources count the same silicon, and kubelet does not
know that. Source: CloudWatch's agent, which finds a pod by the number of a device or of a core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hami_node.ports import HeldContainer
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.node.check import NeuronShape
from hami_node.vendors.neuron.placement import NeuronUnit
from hami_node.vendors.neuron.requests import NeuronResources

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
