"""Objects of the vectors as values of the engine."""

from __future__ import annotations

from typing import Any

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask, Device, Uuid, Vendor
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import NeuronDetail
from hami_node.vendors.neuron.protocol import NeuronProtocol, neuron_protocol
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.choice import (
    MigUse,
)
from hami_node.vendors.nvidia.mig.layout import (
    MigInstance,
    MigLayout,
    MigPlacement,
    MigProfile,
    MigTemplate,
)
from hami_node.vendors.nvidia.protocol import NvidiaProtocol, nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings

Json = dict[str, Any]

COMPAT_OF: dict[str, Compat] = {"seed": V2_8, "v2.10": V2_10}

VENDOR_OF: dict[str, Vendor] = {vendor.word: vendor for vendor in (NVIDIA, NEURON)}


def vendors_of(compat: Compat, config: Json | None = None) -> tuple[NvidiaProtocol, NeuronProtocol]:
    """Both vendors under the settings of a case."""
    config = config or {"defaultMemory": 0, "defaultCores": 0, "memoryFactor": 1}
    settings = NvidiaSettings(
        default_memory_mib=config["defaultMemory"],
        default_cores=config["defaultCores"],
        memory_factor=max(config["memoryFactor"], 1),
    )
    return nvidia_protocol(settings), neuron_protocol(compat=compat.name)


def placement_of(json: Json) -> MigPlacement:
    return MigPlacement(start=json["start"], size=json["size"])


def instance_of(json: Json) -> MigInstance:
    return MigInstance(profile=json["profile"], placement=placement_of(json["placement"]))


def _detail_of(json: Json) -> MigLayout | NeuronDetail | None:
    if json["vendor"] == NEURON.word:
        return NeuronDetail(instance_type=json.get("instance_type", ""))
    profiles = tuple(
        MigProfile(
            name=entry["name"],
            memory_mib=entry["memory_mib"],
            cores=entry["cores"],
            slice_count=entry["slice_count"],
            placements=tuple(placement_of(place) for place in entry["placements"]),
        )
        for entry in json.get("mig_profiles") or ()
    )
    templates = tuple(
        tuple(
            MigTemplate(
                name=entry["name"],
                memory_mib=entry["memory_mib"],
                cores=entry["cores"],
                count=entry["count"],
            )
            for entry in geometry
        )
        for geometry in json.get("mig_templates") or ()
    )
    return MigLayout(profiles=profiles, templates=templates) if profiles or templates else None


def device_of(json: Json) -> Device:
    return Device(
        uuid=Uuid(json["uuid"]),
        index=json["index"],
        vendor=VENDOR_OF[json["vendor"]],
        model=json["model"],
        mode=json["mode"],
        numa=json["numa"],
        healthy=json["healthy"],
        slots=json["slots_total"],
        memory_mib=json["memory_total_mib"],
        cores=json["cores_total"],
        detail=_detail_of(json),
    )


def usage_of(json: Json) -> DeviceUsage:
    return DeviceUsage(
        device=device_of(json),
        slots_used=json["slots_used"],
        memory_used_mib=json["memory_used_mib"],
        cores_used=json["cores_used"],
        parts=_use_of(json),
    )


def _use_of(json: Json) -> MigUse | None:
    if not json.get("mig_usage") and not json.get("mig_in_use"):
        return None
    geometry = json.get("mig_usage") or {}
    return MigUse(
        template=geometry.get("template"),
        slots=frozenset(slot for slot, in_use in enumerate(geometry.get("in_use", ())) if in_use),
        placements=tuple(placement_of(entry) for entry in json.get("mig_in_use") or ()),
    )


def ask_of(json: Json) -> Ask:
    """An ask; 0 MiB stands for "not given"."""
    return Ask(
        vendor=VENDOR_OF[json["vendor"]],
        count=json["count"],
        memory_mib=json["memory_mib"] or None,
        memory_percent=json["memory_percent"],
        cores=json["cores"],
    )


def quota_of(json: Json | None) -> Quota | None:
    if json is None:
        return None
    return Quota(
        memory_limit_mib=json["limits"].get("memory_mib"),
        core_limit=json["limits"].get("cores"),
        memory_used_mib=json["used"]["memory_mib"],
        cores_used=json["used"]["cores"],
        memory_factor=json["memory_factor"],
    )
