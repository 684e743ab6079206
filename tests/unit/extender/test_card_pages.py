"""The metrics of all nodes' cards, under our names and under those of HAMi's scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from hami_node.config.settings import MetricNames
from hami_node.engine.quota import Limits
from hami_node.extender.card_pages import card_pages
from hami_node.model import Uuid
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.codec import encode_neuron_register
from hami_node.vendors.neuron.node.devices import devices_of
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_csv7, encode_json
from hami_node.wire import names
from hami_node.wire.objects import decode_node
from tests.fakes.pods import Box
from tests.unit.extender.desk import Desk, card

GIB = 2**30
OWN = "hami_node_extender_"
TRN_DEVICE = "t1-AWSNeuron-15"  # where the first core goes
Series = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
def desk() -> Desk:
    """n1: our daemon's GPU; h1: a GPU of HAMi's plugin 2.4; t1: Trainium."""
    desk = Desk("n1")
    old = card("h1", 0, uuid=Uuid("GPU-h1-0"), memory_mib=8192)
    add_node(desk, "h1", {nvidia_names.NODE_REGISTER: encode_csv7([old])}, gpu="10")
    amounts = {neuron_names.RESOURCE_NEURON: "16", neuron_names.RESOURCE_NEURON_CORE: "32"}
    labels = {neuron_names.INSTANCE_TYPE: "trn1.32xlarge"}
    body = {"metadata": {"name": "t1", "labels": labels}, "status": {"capacity": amounts}}
    register = encode_neuron_register(devices_of(decode_node(body), NeuronResources()))
    add_node(desk, "t1", {neuron_names.NODE_NEURON_REGISTER: register}, labels, **amounts)
    desk.sync()
    return desk


def add_node(
    desk: Desk,
    name: str,
    annotations: dict[str, str],
    labels: dict[str, str] | None = None,
    gpu: str = "0",
    **amounts: str,
) -> None:
    body = {
        "metadata": {"name": name, "annotations": annotations, "labels": labels or {}},
        "status": {"allocatable": {nvidia_names.RESOURCE_GPU: gpu, **amounts}},
    }
    desk.kube.store.create("nodes", "", body)


def run_neuron_pod(desk: Desk, name: str = "cores", count: str = "1") -> None:
    limits = {neuron_names.RESOURCE_NEURON_CORE: count}
    body: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }
    desk.kube.store.create("pods", "default", body)
    assert desk.choose(name) == "t1"


def text_of(
    desk: Desk,
    names: MetricNames = MetricNames.OWN,
    nodes: list[str] | None = None,
    *,
    has_legacy: bool = False,
) -> str:
    pages = card_pages(desk.state, names, lambda: desk.is_leading, has_legacy=has_legacy)
    return "".join(pages(nodes))


def series_of(text: str, *labels: str) -> Series:
    """Values by the labels named, for each family that has all of them."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if set(labels) <= set(sample.labels):
                key = tuple(sample.labels[label] for label in labels)
                found.setdefault(sample.name, {})[key] = sample.value
    return found


def test_seed_001_feature_3_every_card_of_every_node_and_vendor_is_shown_alike(desk: Desk) -> None:
    desk.add_pod("gpu", Box(name="c", memory_mib=2048, cores=30))
    assert desk.choose("gpu", "h1") == "h1"
    run_neuron_pod(desk)
    found = series_of(text_of(desk), "node", "uuid")
    expected = {
        ("n1", "GPU-n1-0"): (10, 0, 10_000 * 2**20, 0, 1, 0),
        ("h1", "GPU-h1-0"): (10, 1, 8 * GIB, 2 * GIB, 1, 0.3),
        ("t1", TRN_DEVICE): (2, 1, 0, 0, 1, 0.5),
        ("t1", "t1-AWSNeuron-1"): (2, 0, 0, 0, 1, 0),
    }
    families = (
        "card_slots",
        "card_slots_used",
        "card_memory_bytes",
        "card_memory_granted_bytes",
        "card_cores_ratio",
        "card_cores_granted_ratio",
    )
    for key, values in expected.items():
        assert tuple(found[OWN + family][key] for family in families) == values, key
    assert all(len(found[OWN + family]) == 18 for family in families)


def test_seed_001_feature_3_each_core_of_a_neuron_device_is_shown(desk: Desk) -> None:
    run_neuron_pod(desk)
    cores = series_of(text_of(desk), "uuid", "core")[OWN + "card_core_granted"]
    assert cores[TRN_DEVICE, "0"] == 1
    assert cores[TRN_DEVICE, "1"] == 0
    assert len(cores) == 32


def test_each_containers_share_is_shown_with_its_name(desk: Desk) -> None:
    desk.add_pod("gpu", Box(name="a", memory_mib=1024, cores=10), Box(name="b", memory_mib=2048))
    assert desk.choose("gpu", "n1") == "n1"
    run_neuron_pod(desk)
    found = series_of(text_of(desk), "node", "namespace", "pod", "container", "uuid")
    assert found == {
        OWN + "allocation_memory_bytes": {
            ("n1", "default", "gpu", "a", "GPU-n1-0"): GIB,
            ("n1", "default", "gpu", "b", "GPU-n1-0"): 2 * GIB,
            ("t1", "default", "cores", "main", TRN_DEVICE): 0,
        },
        OWN + "allocation_cores_ratio": {
            ("n1", "default", "gpu", "a", "GPU-n1-0"): 0.1,
            ("n1", "default", "gpu", "b", "GPU-n1-0"): 0,
            ("t1", "default", "cores", "main", TRN_DEVICE): 0.5,
        },
    }


def test_types_are_spelled_as_the_node_registered_them(desk: Desk) -> None:
    types = series_of(text_of(desk), "node", "type")[OWN + "card_info"]
    assert set(types) == {("n1", "NVIDIA H100"), ("h1", "NVIDIA-NVIDIA H100"), ("t1", "AWSNeuron")}


def test_a_cordoned_node_offers_nothing_and_still_shows_what_runs_there(desk: Desk) -> None:
    desk.add_pod("gpu", Box(name="c", memory_mib=2048, cores=30))
    assert desk.choose("gpu", "n1") == "n1"
    assert desk.bind("gpu", "n1") == ""
    desk.kube.store.change("nodes", "", "n1", lambda body: body | {"spec": {"unschedulable": True}})
    desk.sync()
    found = {
        name: values["n1", "GPU-n1-0"]
        for name, values in series_of(text_of(desk), "node", "uuid").items()
        if ("n1", "GPU-n1-0") in values
    }
    assert found == {
        OWN + "card_info": 1,
        OWN + "card_slots": 0,
        OWN + "card_slots_used": 1,
        OWN + "card_memory_bytes": 0,
        OWN + "card_memory_granted_bytes": 2 * GIB,
        OWN + "card_cores_ratio": 0,
        OWN + "card_cores_granted_ratio": 0.3,
        OWN + "allocation_memory_bytes": 2 * GIB,
        OWN + "allocation_cores_ratio": 0.3,
    }


def test_one_node_on_request(desk: Desk) -> None:
    desk.add_pod("gpu", memory_mib=2048)
    assert desk.choose("gpu", "h1") == "h1"
    found = series_of(text_of(desk, nodes=["h1", "unknown"]), "node")
    assert {key for values in found.values() for key in values} == {("h1",)}
    assert OWN + "allocation_memory_bytes" in found


def test_node_that_is_named_twice_is_shown_once(desk: Desk) -> None:
    assert text_of(desk, nodes=["h1", "h1"]) == text_of(desk, nodes=["h1"])


@pytest.mark.parametrize("names", MetricNames)
def test_only_the_replica_that_decides_shows_cards(desk: Desk, names: MetricNames) -> None:
    assert bool(text_of(desk, names)) == (names is not MetricNames.OFF)
    desk.lose_lead()
    assert text_of(desk, names) == ""


def test_names_of_hamis_scheduler(desk: Desk) -> None:
    desk.add_pod("gpu", Box(name="c", memory_mib=2048, cores=30))
    assert desk.choose("gpu", "h1") == "h1"
    run_neuron_pod(desk)
    text = text_of(desk, MetricNames.HAMI)
    on_card = ("zone", "node", "device_uuid", "device_index", "device_type")
    found = series_of(text, *on_card)
    gpu = ("vGPU", "h1", "GPU-h1-0", "0", "NVIDIA-NVIDIA H100")
    device = ("vGPU", "t1", TRN_DEVICE, "15", "AWSNeuron")
    expected = {
        "hami_gpu_memory_limit_bytes": (8 * GIB, 0),
        "hami_gpu_core_limit_ratio": (100, 3),
        "hami_gpu_memory_allocated_bytes": (2 * GIB, 0),
        "hami_gpu_shared_count": (1, 1),
        "hami_gpu_core_allocated_ratio": (30, 1),
        "hami_node_gpu_overview": (2 * GIB, 0),
        "hami_node_gpu_memory_allocated_ratio": (0.25, None),
    }
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert (found[name].get(gpu), found[name].get(device)) == values, name
    cores = series_of(text, "device_uuid", "device_cores")["hami_gpu_memory_allocated_bytes"]
    assert {("GPU-h1-0", "100"), (TRN_DEVICE, "3")} <= set(cores)
    sizes = series_of(text, "device_uuid", "device_cores", "device_memory_limit")
    assert ("GPU-h1-0", "100", "8192") in sizes["hami_node_gpu_overview"]
    shares = series_of(text, "namespace", "node", "pod", "container_index", "device_uuid")
    assert shares == {
        "hami_vgpu_memory_allocated_bytes": {
            ("default", "h1", "gpu", "0", "GPU-h1-0"): 2 * GIB,
            ("default", "t1", "cores", "0", TRN_DEVICE): 0,
        },
        "hami_vgpu_core_allocated_ratio": {
            ("default", "h1", "gpu", "0", "GPU-h1-0"): 30,
            ("default", "t1", "cores", "0", TRN_DEVICE): 1,
        },
    }


def test_quotas_under_hamis_names(desk: Desk) -> None:
    desk.state.set_quota("default", "gpus", Limits(memory_mib=5000))
    desk.add_pod("gpu", Box(name="c", memory_mib=2048, cores=30))
    assert desk.choose("gpu", "n1") == "n1"
    found = series_of(text_of(desk, MetricNames.HAMI), "namespace", "quota_name")
    memory, cores = (
        ("default", nvidia_names.RESOURCE_GPU_MEMORY),
        ("default", "nvidia.com/gpucores"),
    )
    assert found["hami_resource_quota_used"] == {memory: 2048, cores: 30}
    assert found["hami_resource_quota_limit"] == {memory: 5000}


def test_mig_instances_once_each_under_hamis_names_even_if_two_pods_name_one(desk: Desk) -> None:
    row = (
        '[{"gpuUUID":"GPU-n1-0","profile":"1g.10gb","placement":{"start":4,"size":2},'
        '"migUUID":"MIG-1","gpuInstanceID":6,"computeInstanceID":0}]'
    )
    notes = {
        names.POD_NODE: "n1",
        nvidia_names.POD_ALLOCATED: "GPU-n1-0,NVIDIA,9728,0:;",
        nvidia_names.POD_MIG_ALLOCATIONS: row,
    }
    for pod in ("mig", "copy"):
        desk.add_pod(pod, annotations=notes)
        desk.edit_pod(pod, spec={"nodeName": "n1"})
    desk.sync()
    text = text_of(desk, MetricNames.HAMI, has_legacy=True)
    families = {found.name: found.samples for found in text_string_to_metric_families(text)}
    (sample,), (legacy,) = (
        families[name] for name in ("hami_node_gpu_mig_instance_info", "nodeGPUMigInstance")
    )
    assert (sample.value, legacy.value) == (1, 1)
    assert legacy.labels == {
        "zone": "vGPU",
        "nodeid": "n1",
        "deviceidx": "0",
        "deviceuuid": "GPU-n1-0",
        "migname": "1g.10gb-6",
    }
    assert sample.labels == {
        "zone": "vGPU",
        "node": "n1",
        "device_uuid": "GPU-n1-0",
        "device_index": "0",
        "mig_uuid": "MIG-1",
        "profile": "1g.10gb",
        "gpu_instance_id": "6",
        "compute_instance_id": "0",
        "placement_start": "4",
        "placement_size": "2",
    }


def test_both_names_are_well_formed_in_both_formats(desk: Desk) -> None:
    strange = card("s1", 0, uuid=Uuid('GPU-"\\\n'), model='a "b" \\')
    annotations = {
        nvidia_names.NODE_REGISTER: encode_json([strange]),
        names.NODE_IDENTITY: names.IDENTITY_POD_RESOURCES,
    }
    add_node(desk, "s1", annotations, gpu="10")
    desk.sync()
    text = text_of(desk, MetricNames.BOTH, has_legacy=True)
    assert set(series_of(text, "node", "uuid", "type")[OWN + "card_info"]) >= {
        ("s1", 'GPU-"\\\n', 'a "b" \\')
    }
    families = list(openmetrics(text + "# EOF\n"))  # type: ignore[no-untyped-call]  # it has no types
    assert len({family.name for family in families}) == len(families)
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(set(lines)) == len(lines)
