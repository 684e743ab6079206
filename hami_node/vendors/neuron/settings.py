"""The settings that concern Neuron devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hami_node.setting_types import Group, SettingsBlock, setting
from hami_node.vendors.neuron import names
from hami_node.vendors.quantities import ResourceName


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronSettings:
    """The part of the configuration for Neuron devices."""

    neuron_resource: ResourceName = setting(
        names.RESOURCE_NEURON, "Resource: whole Neuron devices.", yaml="resourceCountName"
    )
    neuron_core_resource: ResourceName = setting(
        names.RESOURCE_NEURON_CORE, "Resource: Neuron cores.", yaml="resourceCoreName"
    )


NEURON_SETTINGS: Final = SettingsBlock(
    kind=NeuronSettings,
    groups={"neuron_resource": Group.REQUESTS},
    section="awsneuron",
    resources=("neuron_resource", "neuron_core_resource"),
    fixed=("neuron_resource", "neuron_core_resource"),
)
