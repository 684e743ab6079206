"""What a scrape shows of all resources of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.model import Container, Device, Node, Pod, Uuid
from hami_node.node.report.series import shown_models, state_series
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.codec import encode_neuron_register
from hami_node.vendors.neuron.node.devices import devices_of
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register, encode_csv7, encode_csv9, encode_json
from hami_node.vendors.on_node.limiter import LimiterState
from hami_node.wire import names
from tests.fakes.cards import card, uuid
from tests.fakes.ledgers import an_entry
from tests.fakes.live_kube import FakeCluster
from tests.fakes.two_vendors import CARD, GPU, acme_card, pod_of
from tests.unit.node.served import Served


class Scraped(Served):
    """The series of both resources, with one pod that holds a card of each, and others."""

    def __init__(self, plugin_dir: Path, *others: Pod, node: Node | None = None) -> None:
        super().__init__(plugin_dir, FakeCluster(pod_of(waiting=(";", ";")), *others))
        if node is not None:
            self.cluster.shown_node = node
        self.gpu_backend.cards, self.card_backend.cards = (card(0),), (acme_card(),)
        self.scan()
        self.limiters: tuple[LimiterState, ...] = ()
        self.metrics.sources.append(
            lambda: state_series(self, shown_models(self), self.limiters, {CARD: True})
        )

    def values(self, name: str, label: str) -> dict[str, float]:
        """Values of a family by one label."""
        return {labels[label]: value for labels, value in self.series(name)}

    def series(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of a family."""
        return [
            (sample.labels, sample.value)
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"hami_node_{name}"
        ]


def test_cards_and_holders_of_all_resources_are_shown(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    granted = {uuid(0): 1000 * 2**20, "ACME-0": 500 * 2**20}
    assert scraped.values("card_memory_granted_bytes", "uuid") == granted
    assert scraped.values("allocation_memory_bytes", "uuid") == granted


def test_each_resource_is_registered_for_itself(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    scraped.card.lifecycle.registered.set()
    scraped.card.lifecycle.registrations = 3
    assert scraped.values("registered", "resource") == {GPU: 0, CARD: 1}
    assert scraped.values("registrations_total", "resource") == {CARD: 3}
    assert scraped.values("resource_taken", "resource") == {CARD: 1}


def test_backends_of_one_name_show_the_longest_time_since_a_pass(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    scraped.gpu_backend.pass_age_s, scraped.card_backend.pass_age_s = 7.0, 3.0
    assert scraped.values("backend_pass_age_seconds", "backend") == {"fake": 7.0}


def test_driver_errors_are_counted_as_their_vendor_judges_them(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    scraped.gpu_backend.errors = {(uuid(0), 31): 2, (uuid(0), 79): 1}
    scraped.card_backend.errors = {(Uuid("ACME-0"), 31): 1}
    assert scraped.values("xid_events_total", "ignored") == {"true": 2, "false": 1}
    by_card = scraped.values("xid_events_total", "uuid")
    assert by_card["ACME-0"] == 1


def test_series_of_a_lost_card_and_an_ended_container_vanish(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    scraped.gpu_backend.cards = ()
    scraped.scan()
    assert set(scraped.values("card_slots", "uuid")) == {"ACME-0"}


def test_entries_by_source_and_what_limits_them(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    scraped.ledger.put(an_entry("a", limiter="v2.10.0" + "x" * 200))
    assert scraped.values("record_entries", "source") == {"served": 1, "rebuilt": 0, "adopted": 0}
    ((labels, _),) = scraped.series("container_limiter_info")
    assert (labels["pod"], len(labels["version"])) == ("a", 120)


def test_limiters_that_containers_get(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path)
    scraped.limiters = LimiterState(version="v2", sha256="ab"), LimiterState(is_missing=True)
    assert scraped.series("limiter_info") == [({"node": "n1", "version": "v2", "sha256": "ab"}, 1)]
    assert scraped.values("limiter_missing", "node") == {"n1": 1}
    assert scraped.values("limiter_defective", "node") == {"n1": 0}


# -- cards that other device plugins serve ---------------------------------------------------------
def neuron_node() -> Node:
    """trn1.32xlarge, registered by our daemon and served by AWS's plugin."""
    amounts = {neuron_names.RESOURCE_NEURON: "16", neuron_names.RESOURCE_NEURON_CORE: "32"}
    labels = {neuron_names.INSTANCE_TYPE: "trn1.32xlarge"}
    node = Node(name="n1", labels=labels, capacity=amounts, allocatable=amounts)
    register = encode_neuron_register(devices_of(node, NeuronResources()))
    return replace(node, annotations={neuron_names.NODE_NEURON_REGISTER: register})


def neuron_pod(name: str, text: str, *, phase: str = "Running", **limits: str) -> Pod:
    """A pod with one container that holds Neuron devices."""
    return Pod(
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        node_name="n1",
        phase=phase,
        annotations={neuron_names.POD_NEURON_ALLOCATED: text, names.POD_NODE: "n1"},
        containers=(Container(name="main", limits=limits),),
    )


CORE = {neuron_names.RESOURCE_NEURON_CORE: "1"}


@pytest.fixture
def neuron(tmp_path: Path) -> Scraped:
    return Scraped(
        tmp_path,
        neuron_pod("core", "n1-AWSNeuron-0,AWSNeuron,0,2:;", **CORE),
        neuron_pod(
            "pair",
            "n1-AWSNeuron-4,AWSNeuron,0,3:n1-AWSNeuron-5,AWSNeuron,0,3:;",
            **{neuron_names.RESOURCE_NEURON: "2"},
        ),
        neuron_pod("over", "n1-AWSNeuron-7,AWSNeuron,0,1:;", phase="Succeeded", **CORE),
        node=neuron_node(),
    )


def test_seed_001_feature_3_neuron_devices_have_the_series_and_labels_of_gpus(
    neuron: Scraped,
) -> None:
    names_shown = [
        "card_info", "card_healthy", "card_slots", "card_slots_used", "card_memory_bytes",
        "card_memory_granted_bytes", "card_cores_ratio", "card_cores_granted_ratio",
        "allocation_memory_bytes", "allocation_cores_ratio",
    ]  # fmt: skip
    for name in names_shown:
        labels = {labels["uuid"]: set(labels) for labels, _ in neuron.series(name)}
        assert labels[uuid(0)] == labels["n1-AWSNeuron-0"], name


def test_seed_001_feature_3_neuron_devices_show_what_is_granted(neuron: Scraped) -> None:
    granted = neuron.values("card_cores_granted_ratio", "uuid")
    used = {name: share for name, share in granted.items() if "Neuron" in name and share}
    assert used == {"n1-AWSNeuron-0": 0.5, "n1-AWSNeuron-4": 1, "n1-AWSNeuron-5": 1}
    slots = neuron.values("card_slots", "uuid")
    assert sum("Neuron" in name for name in slots) == 16
    assert slots["n1-AWSNeuron-15"] == 2
    assert neuron.values("card_cores_ratio", "uuid")["n1-AWSNeuron-15"] == 1
    assert {labels["type"] for labels, _ in neuron.series("card_slots_used")} >= {"AWSNeuron"}


def test_seed_001_feature_3_neuron_cores_are_shown_one_by_one(neuron: Scraped) -> None:
    cores = {
        (labels["uuid"], labels["core"]): value
        for labels, value in neuron.series("card_core_granted")
    }
    assert len(cores) == 32, "GPUs have no numbered cores"
    assert cores["n1-AWSNeuron-0", "0"] == 0
    assert cores["n1-AWSNeuron-0", "1"] == 1
    assert cores["n1-AWSNeuron-5", "0"] == 1


def test_seed_001_feature_3_containers_show_their_share_of_neuron_devices(neuron: Scraped) -> None:
    shares = {
        (labels["pod"], labels["container"], labels["uuid"]): value
        for labels, value in neuron.series("allocation_cores_ratio")
        if "Neuron" in labels["uuid"]
    }
    assert shares == {
        ("core", "main", "n1-AWSNeuron-0"): 0.5,
        ("pair", "main", "n1-AWSNeuron-4"): 1,
        ("pair", "main", "n1-AWSNeuron-5"): 1,
    }


@pytest.mark.parametrize("text", ["", "no list"])
def test_a_node_without_readable_neuron_devices_shows_none(tmp_path: Path, text: str) -> None:
    annotations = {neuron_names.NODE_NEURON_REGISTER: text}
    node = replace(neuron_node(), annotations=annotations)
    scraped = Scraped(tmp_path, node=node)
    assert set(scraped.values("card_slots", "uuid")) == {uuid(0), "ACME-0"}


# -- types ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("encode", [encode_json, encode_csv9, encode_csv7])
def test_types_join_with_the_register_annotation(
    tmp_path: Path, encode: Callable[[tuple[Device, ...]], str]
) -> None:
    found = Scraped(tmp_path)
    text = encode(found.gpu.inventory.cards)
    found.cluster.shown_node = Node(name="n1", annotations={nvidia_names.NODE_REGISTER: text})
    (registered,) = decode_register(text)
    types = {labels["uuid"]: labels["type"] for labels, _ in found.series("card_slots")}
    assert types == {registered.uuid: registered.model, "ACME-0": "Rocket"}
