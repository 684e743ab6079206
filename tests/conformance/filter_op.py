"""Vectors of a whole pod's placement: nodes, earlier pods and the pod, through the fleet."""

from __future__ import annotations

import json

from hami_node.engine.compat import Compat
from hami_node.engine.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import ContainerAsks, PodRequest, Refused, Rules
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import PodGrants
from hami_node.errors import WireError
from hami_node.model import Container, ContainerKind, Device, Vendor
from hami_node.wire import names
from hami_node.wire.mig_codec import decode_mig_allocations
from hami_node.wire.neuron_codec import neuron_uuid
from hami_node.wire.node_codec import decode_pair_scores, decode_register
from hami_node.wire.placement_codec import encode_placement
from hami_node.wire.pod_codec import decode_grants
from hami_node.wire.requests import RequestConfig, asks_of
from hami_node.wire.wishes import decode_cordon, decode_wishes
from tests.conformance.objects import Json

OVER = ("Succeeded", "Failed")


def answer_filter(case: Json, compat: Compat) -> Json:
    names_of_nodes = [node["name"] for node in case["nodes"]]
    containers = _containers(case["pod"])
    request = _request(case, containers, compat)
    if request.is_empty:
        return {
            "no_request": True,
            "nodes": sorted(names_of_nodes),
            "annotations_by_node": {},
            "failed_nodes": {},
        }
    fleet = _fleet(case, compat)
    chosen = fleet.place(request, names_of_nodes)
    reasons = fleet.explain(request, names_of_nodes)
    if isinstance(chosen, Refused) or isinstance(reasons, Refused):
        return {"error": True}
    answer: Json = {"failed_nodes": {name: why.text() for name, why in reasons.items()}}
    if isinstance(chosen, NoNode):
        return answer | {"node": None}
    return answer | {
        "node": chosen.node,
        "annotations": _annotations(fleet, chosen, containers),
    }


def _annotations(fleet: Fleet, chosen: Placed, containers: tuple[Container, ...]) -> Json:
    cards = fleet.nodes[chosen.node].usage.cards
    texts: Json = dict(
        encode_placement(
            chosen.node,
            containers,
            chosen.grants.containers,
            chosen.grants.mig,
            {uuid: card.device for uuid, card in cards.items()},
        )
    )
    return texts


def _containers(pod: Json) -> tuple[Container, ...]:
    return tuple(
        Container(name=one["name"], kind=kind, limits=one["limits"])
        for kind, members in (
            (ContainerKind.INIT, pod["init_containers"]),
            (ContainerKind.APP, pod["containers"]),
        )
        for one in members
    )


def _request(case: Json, containers: tuple[Container, ...], compat: Compat) -> PodRequest:
    config = config_of(case["config"], compat)
    return PodRequest(
        namespace=case["pod"]["namespace"],
        containers=tuple(
            ContainerAsks(kind=one.kind, asks=asks_of(one, config=config)) for one in containers
        ),
        wishes=decode_wishes(case["pod"]["annotations"]),
    )


def config_of(config: Json, compat: Compat) -> RequestConfig:
    return RequestConfig(
        default_memory_mib=config["defaultMemory"],
        default_cores=config["defaultCores"],
        memory_factor=config["memoryFactor"],
        is_odd_neuron_rejected=compat.is_odd_neuron_rejected,
    )


def _fleet(case: Json, compat: Compat) -> Fleet:
    rules = Rules(compat=compat, node_policy=case["node_policy"], gpu_policy=case["gpu_policy"])
    quotas = QuotaBook(case["config"]["memoryFactor"])
    for namespace, quota in case["quotas"].items():
        limits = quota["limits"]
        quotas.set_limits(
            namespace,
            "quota",
            Limits(memory_mib=limits.get("memory_mib"), cores=limits.get("cores")),
        )
    fleet = Fleet(rules, quotas)
    for node in case["nodes"]:
        devices = _devices(node)
        if devices:
            annotations = node["annotations"]
            fleet.set_node(
                node["name"],
                devices,
                cordoned=decode_cordon(annotations),
                pair_scores=decode_pair_scores(annotations.get(names.NODE_PAIR_SCORES, "")),
            )
    for pod in case["pods"]:
        if pod["phase"] not in OVER and pod["uid"] != case["pod"]["uid"]:
            fleet.add_pod(pod["uid"], pod["namespace"], pod["node"], _grants(pod))
    return fleet


def _devices(node: Json) -> tuple[Device, ...]:
    try:
        devices = decode_register(node["annotations"].get(names.NODE_REGISTER, ""))
    except WireError:
        devices = ()
    count = int(node["capacity"].get(names.RESOURCE_NEURON, "0"))
    cores = int(node["capacity"].get(names.RESOURCE_NEURON_CORE, "0"))
    neuron = (
        Device(
            uuid=neuron_uuid(node["name"], index),
            index=index,
            vendor=Vendor.AWS_NEURON,
            model=Vendor.AWS_NEURON,
            mode="",
            numa=0,
            slots=2,
            cores=(1 << cores // count) - 1,
            instance_type=node["labels"].get(names.INSTANCE_TYPE, ""),
        )
        for index in range(count)
    )
    return (*devices, *neuron)


def _grants(pod: Json) -> PodGrants:
    annotations = pod["annotations"]
    nvidia = decode_grants(annotations.get(names.POD_ALLOCATED, ""))
    neuron = decode_grants(annotations.get(names.POD_NEURON_ALLOCATED, ""))
    length = max(len(nvidia), len(neuron))
    containers = tuple(
        (nvidia[index] if index < len(nvidia) else ())
        + (neuron[index] if index < len(neuron) else ())
        for index in range(length)
    )
    return PodGrants(
        containers=containers,
        kinds=(ContainerKind.INIT,) * pod["init_containers"],
        mig=tuple(decode_mig_allocations(annotations.get(names.POD_MIG_ALLOCATIONS, "[]"))),
    )


def choices(wanted: Json) -> list[Json]:
    """The recorded answer as one answer for each node that is as right as the others."""
    if "nodes" not in wanted or wanted.get("no_request"):
        return [wanted]
    rest = {
        key: value for key, value in wanted.items() if key not in ("nodes", "annotations_by_node")
    }
    return [
        rest | {"node": node, "annotations": wanted["annotations_by_node"][node]}
        for node in wanted["nodes"]
    ]


def plain(answer: Json) -> Json:
    """The answer with the MIG reservations as JSON."""
    texts = answer.get("annotations", {})
    if names.POD_MIG_ALLOCATIONS not in texts:
        return answer
    parsed = json.loads(texts[names.POD_MIG_ALLOCATIONS])
    return answer | {"annotations": texts | {names.POD_MIG_ALLOCATIONS: parsed}}
