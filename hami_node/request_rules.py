"""What the settings say about requests: the names of resources and the defaults of asks."""

from __future__ import annotations

from hami_node.engine.compat import COMPATS
from hami_node.settings import Settings
from hami_node.wire.requests import RequestConfig, ResourceNames


def resource_names_of(settings: Settings) -> ResourceNames:
    """The extended resources by their configured names."""
    return ResourceNames(
        gpu=settings.resource_count,
        gpu_memory=settings.resource_memory,
        gpu_memory_percent=settings.resource_memory_percent,
        gpu_cores=settings.resource_cores,
        gpu_priority=settings.resource_priority,
        neuron=settings.neuron_resource,
        neuron_core=settings.neuron_core_resource,
    )


def request_config_of(settings: Settings) -> RequestConfig:
    """How a container's quantities become asks."""
    return RequestConfig(
        default_memory_mib=settings.default_memory_mib,
        default_cores=settings.default_cores,
        memory_factor=settings.memory_factor,
        default_count=settings.default_count,
        is_odd_neuron_rejected=COMPATS[settings.compat.value].is_odd_neuron_rejected,
    )
