"""What Prometheus sees of every vendor's cards, on the daemon's and on the extender's page."""

from __future__ import annotations

import urllib.request
from typing import Any

from hami_node.vendors.neuron import names as neuron_names
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import NODE, Box
from tests.fakes.waiting import eventually
from tests.integration.extender_rig import ExtenderRig, pod_manifest
from tests.integration.rig import LIMIT_S, Rig

DEVICE = f"{NODE}-AWSNeuron-0"


def add_neuron_devices(node: dict[str, Any]) -> None:
    amounts = {neuron_names.RESOURCE_NEURON: "16", neuron_names.RESOURCE_NEURON_CORE: "32"}
    node["metadata"].setdefault("labels", {})[neuron_names.INSTANCE_TYPE] = "trn1.32xlarge"
    for kind in ("capacity", "allocatable"):
        node["status"].setdefault(kind, {}).update(amounts)


def neuron_pod() -> dict[str, Any]:
    limits = {neuron_names.RESOURCE_NEURON_CORE: "1"}
    notes = {neuron_names.POD_NEURON_ALLOCATED: f"{DEVICE},AWSNeuron,0,1:;", names.POD_NODE: NODE}
    return {
        "metadata": {"name": "core", "namespace": "default", "uid": "u", "annotations": notes},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Running"},
    }


def test_seed_001_feature_3_the_daemon_shows_neuron_devices_beside_gpus(node: Rig) -> None:
    node.api.edit("nodes", NODE, add_neuron_devices)
    node.start()
    eventually(lambda: node.metric("card_slots", uuid=DEVICE, type="AWSNeuron") == 2, LIMIT_S)
    assert node.metric("card_slots", uuid=uuid(0)) is not None
    node.api.create("pods", neuron_pod())
    eventually(lambda: node.metric("card_cores_granted_ratio", uuid=DEVICE) == 0.5, LIMIT_S)
    assert node.metric("card_core_granted", uuid=DEVICE, core="0") == 1
    assert node.metric("allocation_cores_ratio", pod="core", container="main") == 0.5


def test_the_extender_shows_all_nodes_or_one_under_both_names() -> None:
    rig = ExtenderRig(metrics_address="127.0.0.1:0", card_metrics="both")
    try:
        for name in ("n0", "n1"):
            rig.write_node(name, has_identity=True)
        rig.start()
        rig.api.create("pods", pod_manifest("p0", (Box(memory_mib=1000),), {}))
        assert rig.filter(rig.api.read("pods", "p0", "default"), ["n1"])["NodeNames"] == ["n1"]
        text = page(rig)
        assert 'hami_node_extender_card_slots{node="n0"' in text
        assert 'hami_gpu_memory_limit_bytes{zone="vGPU",node="n0"' in text
        assert "hami_node_extender_build_info" in text
        item = page(rig, "?node=n1")
        assert 'node="n0"' not in item
        assert 'namespace="default",pod="p0",container="main"' in item
    finally:
        rig.close()


def page(rig: ExtenderRig, query: str = "") -> str:
    server = rig.extender.parts.metrics_server
    assert server is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics{query}") as answer:
        return str(answer.read().decode())
