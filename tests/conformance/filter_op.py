"""Vectors of a whole pod's placement: nodes, earlier pods and the pod, through the fleet."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hami_node.engine.compat import Compat
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import Refused, Rules
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.model import Container, ContainerKind, Node, Pod
from hami_node.vendors.holding import holding_of
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.offer import offer_of
from hami_node.vendors.placement import encode_placement
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import request_of
from hami_node.wire.grants import decode_grants
from tests.conformance.objects import Json, vendors_of

Vendors = Sequence[VendorProtocol]


def answer_filter(case: Json, compat: Compat) -> Json:
    vendors = vendors_of(compat, case["config"])
    nodes = {node["name"]: _node(node) for node in case["nodes"]}
    pod = _pod(case["pod"])
    request = request_of(pod, vendors)
    if request.is_empty:
        return {
            "no_request": True,
            "nodes": sorted(nodes),
            "annotations_by_node": {},
            "failed_nodes": {},
        }
    fleet = _fleet(case, nodes, compat, vendors)
    chosen = fleet.place(request, list(nodes))
    reasons = fleet.explain(request, list(nodes))
    if isinstance(chosen, Refused) or isinstance(reasons, Refused):
        return {"error": True}
    answer: Json = {"failed_nodes": {name: why.text() for name, why in reasons.items()}}
    if isinstance(chosen, NoNode):
        return answer | {"node": None}
    texts = _annotations(fleet, chosen, nodes[chosen.node], pod, vendors)
    return answer | {"node": chosen.node, "annotations": texts}


def _annotations(fleet: Fleet, chosen: Placed, node: Node, pod: Pod, vendors: Vendors) -> Json:
    cards = fleet.nodes[chosen.node].usage.cards
    devices = {uuid: card.device for uuid, card in cards.items()}
    grants = chosen.grants.containers
    texts: Json = dict(encode_placement(node, pod.containers, grants, devices, vendors))
    return texts


def _node(json: Json) -> Node:
    """A node whose device plugins run."""
    return Node(
        name=json["name"],
        annotations=json["annotations"],
        labels=json["labels"],
        capacity=json["capacity"],
        allocatable={nvidia_names.RESOURCE_GPU: "1", **json["capacity"]},
    )


def _pod(json: Json) -> Pod:
    containers = (
        Container(name=member["name"], kind=kind, limits=member["limits"])
        for kind, members in (
            (ContainerKind.INIT, json["init_containers"]),
            (ContainerKind.APP, json["containers"]),
        )
        for member in members
    )
    return Pod(
        uid=json["uid"],
        namespace=json["namespace"],
        name=json["name"],
        annotations=json["annotations"],
        containers=tuple(containers),
    )


def _earlier_pod(json: Json) -> Pod:
    """A pod of which a case has only the grants: its containers ask for what they hold."""
    annotations, inits = json["annotations"], json["init_containers"]
    nvidia = _counts(annotations, nvidia_names.POD_ALLOCATED)
    neuron = _counts(annotations, neuron_names.POD_NEURON_ALLOCATED)
    length = max(len(nvidia), len(neuron))
    containers = []
    for index in range(length):
        asked = (
            (nvidia_names.RESOURCE_GPU, nvidia[index : index + 1]),
            (neuron_names.RESOURCE_NEURON, neuron[index : index + 1]),
        )
        containers.append(
            Container(
                name=f"c{index}",
                kind=ContainerKind.INIT if index < inits else ContainerKind.APP,
                limits={resource: str(count[0]) for resource, count in asked if any(count)},
            )
        )
    return Pod(
        uid=json["uid"],
        namespace=json["namespace"],
        name=json["name"],
        node_name=json["node"],
        phase=json["phase"],
        annotations=annotations,
        containers=tuple(containers),
    )


def _counts(annotations: Json, key: str) -> list[int]:
    """How many cards each slot of an earlier pod holds."""
    return [len(held) for held in decode_grants(annotations.get(key, ""), key, NVIDIA)]


def _fleet(case: Json, nodes: dict[str, Node], compat: Compat, vendors: Vendors) -> Fleet:
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
    for name, node in nodes.items():
        offer = offer_of(node, vendors)
        if offer.devices:
            fleet.set_node(
                name, offer.devices, cordoned=offer.cordoned, pair_scores=offer.pair_scores
            )
    for pod in map(_earlier_pod, case["pods"]):
        holding = holding_of(pod, vendors)
        if holding is not None and pod.uid != case["pod"]["uid"]:
            fleet.add_pod(pod.uid, pod.namespace, holding.node, holding.grants)
    return fleet


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
    if nvidia_names.POD_MIG_ALLOCATIONS not in texts:
        return answer
    parsed = json.loads(texts[nvidia_names.POD_MIG_ALLOCATIONS])
    return answer | {"annotations": texts | {nvidia_names.POD_MIG_ALLOCATIONS: parsed}}
