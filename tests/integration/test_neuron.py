"""Neuron pods from their creation to their binding, on nodes with AWS's names and with others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.requests import NeuronResources
from tests.documents import DOCS
from tests.fakes.waiting import eventually
from tests.integration.neuron_rig import NODE, NeuronCluster, cluster_of, ids_of, pod_body
from tests.integration.vendor_cluster import LIMIT_S

RENAMED = NeuronResources(device="example.com/chip", core="example.com/chipcore")
TRN1 = "trn1.32xlarge"
ROW = 4


@pytest.fixture
def cluster() -> Iterator[NeuronCluster]:
    with cluster_of() as made:
        yield made


@pytest.fixture
def renamed() -> Iterator[NeuronCluster]:
    """A Trainium node whose resources have other names, with its daemon."""
    with cluster_of(RENAMED) as made:
        made.add_node(NODE, TRN1, 16)
        made.run_daemon(NODE)
        eventually(lambda: neuron_names.NODE_NEURON_REGISTER in made.notes_of(NODE), LIMIT_S)
        made.await_node(NODE, 16)
        yield made


# -- Resources with other names --------------------------------------------------------------------


def test_seed_001_four_renamed_devices_are_four_devices_for_aws_plugin(
    renamed: NeuronCluster,
) -> None:
    pod = renamed.place(pod_body("four", {RENAMED.device: "4"}), NODE)
    assert pod.scheduler_name == "hami-scheduler"
    assert pod.node_name == NODE
    said = pod.annotations
    assert said[neuron_names.NEURON_IDS] == "0,1,2,3"
    assert neuron_names.NEURON_RESOURCE_TYPE not in said
    assert said[neuron_names.NEURON_IS_ALLOCATED] == "false"
    assert said[neuron_names.NEURON_PREDICATE_NODE] == NODE
    assert said[neuron_names.NEURON_ALLOC_TIME].isdecimal()
    grants = "".join(f"{NODE}-AWSNeuron-{at},AWSNeuron,0,3:" for at in range(ROW))
    assert said[neuron_names.POD_NEURON_ALLOCATED] == f"{grants};"


def test_seed_001_renamed_devices_are_counted_until_their_pod_has_ended(
    renamed: NeuronCluster,
) -> None:
    renamed.place(pod_body("a", {RENAMED.device: "4"}), NODE)
    renamed.serve("a")
    assert renamed.used_on(NODE) == dict.fromkeys(range(4), 3)
    assert ids_of(renamed.place(pod_body("b", {RENAMED.device: "8"}), NODE)) == (
        "8,9,10,11,12,13,14,15"
    )
    renamed.submit(pod_body("c", {RENAMED.device: "8"}))
    assert "NumaNotFit" in renamed.filter("c", NODE)["FailedNodes"][NODE]
    view = renamed.view()
    assert sorted(holder.pod for holder in view.holders) == ["a"] * 4 + ["b"] * 8
    renamed.api.delete("pods", "a", "default")
    eventually(lambda: renamed.used_on(NODE).keys() == set(range(8, 16)), LIMIT_S)
    assert renamed.filter("c", NODE)["NodeNames"] == [NODE]
    assert renamed.bind("c", NODE) == ""
    assert ids_of(renamed.pod("c")) == "0,1,2,3,4,5,6,7"


# -- The page --------------------------------------------------------------------------------------
def examples() -> list[dict[str, Any]]:
    """The pods of docs/neuron.md."""
    blocks = DOCS.joinpath("neuron.md").read_text().split("```yaml\n")[1:]
    return [yaml.safe_load(block.partition("```")[0]) for block in blocks]


def test_seed_001_usage_examples_of_the_page_get_what_it_says(cluster: NeuronCluster) -> None:
    cluster.add_node(NODE, TRN1, 16)
    cluster.await_node(NODE, 16)
    devices, core = examples()
    text = DOCS.joinpath("neuron.md").read_text()
    first = cluster.place(devices, NODE)
    assert f"`AWS_NEURON_IDS: {ids_of(first)}`" in text
    assert neuron_names.NEURON_RESOURCE_TYPE not in first.annotations
    second = cluster.place(core, NODE)
    assert f"`AWS_NEURON_IDS: {ids_of(second)}`" in text
    kind = second.annotations[neuron_names.NEURON_RESOURCE_TYPE]
    assert f"`NEURON_RESOURCE_TYPE: {kind}`" in text
    assert (ids_of(first), ids_of(second)) == ("0,1,2,3", "30")
    assert cluster.used_on(NODE) == {0: 3, 1: 3, 2: 3, 3: 3, 15: 1}


# -- Counts ----------------------------------------------------------------------------------------
def test_seed_001_strategy_2_other_counts_are_unresolvable_with_their_sentence(
    cluster: NeuronCluster,
) -> None:
    cluster.add_node(NODE, TRN1, 16)
    cluster.add_node("plain", "", 16)
    cluster.await_node(NODE, 16)
    cluster.await_node("plain", 16)
    sentence = "Trainium allows 1, 4, 8 or 16 devices per container, and 7 are requested"
    (warning,) = cluster.submit(pod_body("p", {neuron_names.RESOURCE_NEURON: "7"}))
    assert sentence in warning
    answer = cluster.filter("p", NODE, "plain")
    assert not answer["FailedNodes"]
    refused = answer["FailedAndUnresolvableNodes"]
    assert refused[NODE].endswith(f"NumaNotFit: {sentence}")
    assert neuron_names.INSTANCE_TYPE in refused["plain"]
    assert cluster.simulate("p", NODE, "plain")["FailedAndUnresolvableNodes"] == refused
    eventually(lambda: any(sentence in text for text in cluster.events("FilteringFailed")), LIMIT_S)
