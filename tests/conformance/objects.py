"""Objects of the vectors as values of the engine."""

from __future__ import annotations

from typing import Any

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage
from hami_node.model import (
    Ask,
    Device,
    MigPlacement,
    MigProfile,
    MigTemplate,
    Uuid,
    Vendor,
)

Json = dict[str, Any]

COMPAT_OF: dict[str, Compat] = {"seed": V2_8, "v2.10": V2_10}


def placement_of(json: Json) -> MigPlacement:
    return MigPlacement(start=json["start"], size=json["size"])


def device_of(json: Json) -> Device:
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
    return Device(
        uuid=Uuid(json["uuid"]),
        index=json["index"],
        vendor=Vendor(json["vendor"]),
        model=json["model"],
        mode=json["mode"],
        numa=json["numa"],
        healthy=json["healthy"],
        slots=json["slots_total"],
        memory_mib=json["memory_total_mib"],
        cores=json["cores_total"],
        instance_type=json.get("instance_type", ""),
        mig_profiles=profiles,
        mig_templates=templates,
    )


def usage_of(json: Json) -> DeviceUsage:
    mig_usage = json.get("mig_usage") or {}
    return DeviceUsage(
        device=device_of(json),
        slots_used=json["slots_used"],
        memory_used_mib=json["memory_used_mib"],
        cores_used=json["cores_used"],
        mig_template=mig_usage.get("template"),
        mig_slots=frozenset(
            slot for slot, in_use in enumerate(mig_usage.get("in_use", ())) if in_use
        ),
        mig_placements=tuple(placement_of(entry) for entry in json.get("mig_in_use") or ()),
    )


def ask_of(json: Json) -> Ask:
    """An ask; 0 MiB stands for "not given"."""
    return Ask(
        vendor=Vendor(json["vendor"]),
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
