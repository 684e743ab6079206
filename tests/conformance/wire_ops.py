"""Vectors of the wire: codecs and requests."""

from __future__ import annotations

from collections.abc import Callable

from hami_node.engine.compat import V2_8, Compat
from hami_node.errors import WireError
from hami_node.model import Ask, Container, ContainerGrants, Device, Grant, Uuid
from hami_node.vendors.neuron.requests import neuron_ask_of
from hami_node.vendors.nvidia import codec
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import (
    NVIDIA,
)
from hami_node.vendors.nvidia.mig.codec import (
    MigAllocation,
    allocations_of,
    decode_mig_allocations,
    encode_mig_allocations,
)
from hami_node.vendors.nvidia.mig.layout import (
    MigProfile,
    layout_of,
)
from hami_node.vendors.nvidia.requests import gpu_ask_of
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import register
from hami_node.wire.grants import decode_grants, encode_grants
from hami_node.wire.values import parse_bool, parse_whole
from tests.conformance.objects import Json, device_of, instance_of, vendors_of

ERROR: Json = {"error": True}


def answer_requests(case: Json, compat: Compat) -> Json:
    container = Container(name="c", limits=case["limits"], requests=case["requests"])
    nvidia, neuron = vendors_of(compat, case["config"])
    asked: VendorProtocol = nvidia if case["vendor"] == nvidia.cards.word else neuron
    try:
        ask = _asked_of(asked, container)
        if ask is not None:
            return {"request": _ask_json(ask)}
        # Ours refuses more pods than the original, which looks at winning values only, and asks
        # for nothing where kubelet allocates nothing. What it would have read is compared then.
        if asked is nvidia:
            ask = gpu_ask_of(container, nvidia.settings)
        else:
            ask = neuron_ask_of(container, neuron.names, neuron.generation)
    except WireError:
        return ERROR
    return {"request": None if ask is None else _ask_json(ask)}


def _asked_of(vendor: VendorProtocol, container: Container) -> Ask | None:
    try:
        return vendor.ask_of(container)
    except WireError:
        return None


def _ask_json(ask: Ask) -> Json:
    return {
        "vendor": ask.vendor.word,
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
    text = case["text"]
    if compat is V2_8:
        text = ":".join(",".join(_as_2_8_reads(card.split(","))) for card in text.split(":"))
    devices = register.decode_csv_register(text, nvidia_names.NODE_REGISTER, NVIDIA)
    return {"devices": [_device_json(device) for device in devices]}


def _as_2_8_reads(fields: list[str]) -> list[str]:
    """A card's fields as that generation takes them: a bad number is 0, a bad boolean is false."""
    if len(fields) not in (7, 9):
        return fields
    numbers = [*fields[1:4], *fields[7:8]]
    slots, memory, cores, *index = ["0" if _is_bad(parse_whole, it) else it for it in numbers]
    numa = "0" if fields[5] != "-1" and _is_bad(parse_whole, fields[5]) else fields[5]
    health = "false" if _is_bad(parse_bool, fields[6]) else fields[6]
    return [fields[0], slots, memory, cores, fields[4], numa, health, *index, *fields[8:]]


def _is_bad(parse: Callable[[str, str], object], text: str) -> bool:
    try:
        parse(text, "")
    except WireError:
        return True
    return False


def _node_json_decode(case: Json, _: Compat) -> Json:
    text = case["text"]
    if not register.is_json(text):
        raise WireError(nvidia_names.NODE_REGISTER, text, "not the JSON form")
    return {"devices": [_device_json(device) for device in codec.decode_register(text)]}


def _node_csv_encode(case: Json, _: Compat) -> Json:
    return {"text": register.encode_csv9(_devices(case))}


def _node_json_encode(case: Json, _: Compat) -> Json:
    return {"text": codec.encode_json(_devices(case))}


def _pod_decode(case: Json, compat: Compat) -> Json:
    containers = decode_grants(case["text"], nvidia_names.POD_ALLOCATED, NVIDIA)
    if compat is V2_8:
        # That generation drops empty slots when it reads; ours are kept for the slot's owner.
        containers = tuple(grants for grants in containers if grants)
    return {"containers": [[_grant_json(grant) for grant in grants] for grants in containers]}


def _pod_encode(case: Json, _: Compat) -> Json:
    return {"text": encode_grants([_grants(devices) for devices in case["containers"]])}


def _mig_decode(case: Json, _: Compat) -> Json:
    rows = decode_mig_allocations(case["text"])
    return {"allocations": [_allocation_json(row) for row in rows]}


def _mig_encode(case: Json, _: Compat) -> Json:
    containers = [tuple(map(_instance_grant, items)) for items in case["allocations"]]
    return {"text": encode_mig_allocations(allocations_of(containers))}


def _instance_grant(item: Json) -> Grant:
    part = instance_of(item) if "profile" in item else None
    return Grant(uuid=Uuid(item["uuid"]), vendor=NVIDIA, memory_mib=0, cores=0, part=part)


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
    return [device_of({"vendor": NVIDIA.word, **device}) for device in case["devices"]]


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
    profiles = layout_of(device).profiles
    if profiles:
        json["mig_profiles"] = [_profile_json(profile) for profile in profiles]
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
    instance, device = allocation.instance, allocation.device
    json: Json = {
        "container_index": allocation.container_index,
        "device_index": allocation.device_index,
        "uuid": allocation.uuid,
        "profile": instance.profile,
        "placement": {"start": instance.placement.start, "size": instance.placement.size},
    }
    if device is not None:
        json["mig_uuid"] = device.uuid
        json["gpu_instance_id"] = device.gpu_instance_id
        json["compute_instance_id"] = device.compute_instance_id
    return json
