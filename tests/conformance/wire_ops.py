"""Vectors of the wire: codecs and requests."""

from __future__ import annotations

from collections.abc import Callable

from hami_node.engine.compat import V2_8, Compat
from hami_node.errors import WireError
from hami_node.model import (
    Ask,
    Container,
    ContainerGrants,
    Device,
    Grant,
    MigProfile,
    Uuid,
    Vendor,
)
from hami_node.wire.mig_codec import MigAllocation, decode_mig_allocations, encode_mig_allocations
from hami_node.wire.node_codec import (
    decode_csv_register,
    decode_csv_register_leniently,
    decode_json_register,
    encode_csv9,
    encode_json,
)
from hami_node.wire.pod_codec import decode_grants, encode_grants
from hami_node.wire.requests import asks_of
from tests.conformance.filter_op import config_of
from tests.conformance.objects import Json, device_of, placement_of

ERROR: Json = {"error": True}


def answer_requests(case: Json, compat: Compat) -> Json:
    container = Container(name="c", limits=case["limits"], requests=case["requests"])
    asks = asks_of(container, config=config_of(case["config"], compat))
    wanted = [ask for ask in asks if ask.vendor == case["vendor"]]
    return {"request": _ask_json(wanted[0]) if wanted else None}


def _ask_json(ask: Ask) -> Json:
    return {
        "vendor": ask.vendor.value,
        "count": ask.count,
        "memory_mib": ask.memory_mib or 0,
        "memory_percent": ask.memory_percent,
        "cores": ask.cores,
    }


def answer_codec(case: Json, compat: Compat) -> Json:
    try:
        return KINDS[case["kind"]](case, compat)
    except WireError:
        return ERROR


def _node_csv_decode(case: Json, compat: Compat) -> Json:
    decode = decode_csv_register_leniently if compat is V2_8 else decode_csv_register
    return {"devices": [_device_json(device) for device in decode(case["text"])]}


def _node_json_decode(case: Json, _: Compat) -> Json:
    return {"devices": [_device_json(device) for device in decode_json_register(case["text"])]}


def _node_csv_encode(case: Json, _: Compat) -> Json:
    return {"text": encode_csv9(_devices(case), type_prefix="")}


def _node_json_encode(case: Json, compat: Compat) -> Json:
    return {"text": encode_json(_devices(case), with_pair_scores=compat is V2_8)}


def _pod_decode(case: Json, compat: Compat) -> Json:
    containers = decode_grants(case["text"])
    if compat is V2_8:
        # That generation drops empty slots when it reads; ours are kept for the slot's owner.
        containers = tuple(grants for grants in containers if grants)
    return {"containers": [[_grant_json(grant) for grant in grants] for grants in containers]}


def _pod_encode(case: Json, _: Compat) -> Json:
    return {"text": encode_grants([_grants(devices) for devices in case["containers"]])}


def _mig_decode(case: Json, _: Compat) -> Json:
    return {"allocations": [_allocation_json(one) for one in decode_mig_allocations(case["text"])]}


def _mig_encode(case: Json, _: Compat) -> Json:
    allocations = [
        MigAllocation(
            container_index=container,
            device_index=place,
            uuid=Uuid(item["uuid"]),
            profile=item["profile"],
            placement=placement_of(item["placement"]),
        )
        for container, items in enumerate(case["allocations"])
        for place, item in enumerate(items)
        if "profile" in item
    ]
    return {"text": encode_mig_allocations(allocations)}


KINDS: dict[str, Callable[[Json, Compat], Json]] = {
    "node_csv_decode": _node_csv_decode,
    "node_csv_encode": _node_csv_encode,
    "node_json_decode": _node_json_decode,
    "node_json_encode": _node_json_encode,
    "pod_decode": _pod_decode,
    "pod_encode": _pod_encode,
    "mig_allocations_decode": _mig_decode,
    "mig_allocations_encode": _mig_encode,
}


def _devices(case: Json) -> list[Device]:
    return [device_of({"vendor": Vendor.NVIDIA, **device}) for device in case["devices"]]


def _grants(devices: list[Json]) -> ContainerGrants:
    return tuple(
        Grant(
            uuid=Uuid(device["uuid"]),
            vendor=device["vendor"],
            memory_mib=device["memory_mib"],
            cores=device["cores"],
        )
        for device in devices
    )


def _grant_json(grant: Grant) -> Json:
    return {
        "uuid": grant.uuid,
        "vendor": str(grant.vendor),
        "memory_mib": grant.memory_mib,
        "cores": grant.cores,
    }


def _device_json(device: Device) -> Json:
    json: Json = {
        "uuid": device.uuid,
        "index": device.index,
        "slots_total": device.slots,
        "memory_total_mib": device.memory_mib,
        "cores_total": device.cores,
        "model": device.model,
        "numa": -1 if device.numa is None else device.numa,
        "mode": str(device.mode),
        "healthy": device.healthy,
    }
    if device.mig_profiles:
        json["mig_profiles"] = [_profile_json(profile) for profile in device.mig_profiles]
    return json


def _profile_json(profile: MigProfile) -> Json:
    return {
        "name": profile.name,
        "memory_mib": profile.memory_mib,
        "cores": profile.cores,
        "slice_count": profile.slice_count,
        "placements": [
            {"start": placement.start, "size": placement.size} for placement in profile.placements
        ],
    }


def _allocation_json(allocation: MigAllocation) -> Json:
    json: Json = {
        "container_index": allocation.container_index,
        "device_index": allocation.device_index,
        "uuid": allocation.uuid,
        "profile": allocation.profile,
        "placement": {"start": allocation.placement.start, "size": allocation.placement.size},
    }
    if allocation.instance is not None:
        json["mig_uuid"] = allocation.instance.uuid
        json["gpu_instance_id"] = allocation.instance.gpu_instance_id
        json["compute_instance_id"] = allocation.instance.compute_instance_id
    return json
