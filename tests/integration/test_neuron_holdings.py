"""What AWS's plugin gave, by kubelet's list, against what was reserved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.codec import decode_neuron_register
from hami_node.vendors.neuron.node.auditor import EVENT, FOLDER
from hami_node.wire import names
from tests.fakes.waiting import eventually
from tests.integration.neuron_rig import NODE, NeuronCluster, cluster_of, ids_of, pod_body
from tests.integration.vendor_cluster import LIMIT_S
from tests.reliability import shows

TRN1 = "trn1.32xlarge"
NEURON, CORE = neuron_names.RESOURCE_NEURON, neuron_names.RESOURCE_NEURON_CORE


@pytest.fixture
def cluster() -> Iterator[NeuronCluster]:
    """A Trainium node with its daemon."""
    with cluster_of() as made:
        made.add_node(NODE, TRN1, 16)
        made.run_daemon(NODE)
        eventually(lambda: neuron_names.NODE_NEURON_REGISTER in made.notes_of(NODE), LIMIT_S)
        made.await_node(NODE, 16)
        yield made


def free_cores(cluster: NeuronCluster) -> dict[int, int]:
    """Masks of the published cores of devices that are not whole."""
    text = cluster.notes_of(NODE).get(neuron_names.NODE_NEURON_REGISTER, "[]")
    devices = decode_neuron_register(text)
    masks = {device.index: device.cores if device.healthy else 0 for device in devices}
    return {index: mask for index, mask in masks.items() if mask != 3}


def await_free(cluster: NeuronCluster, wanted: dict[int, int]) -> None:
    def is_so() -> bool:
        cluster.look()
        return free_cores(cluster) == wanted

    eventually(is_so, LIMIT_S)
    assert cluster.extender is not None
    state = cluster.extender.parts.state
    eventually(
        lambda: (
            {
                card.device.index: card.device.cores if card.device.healthy else 0
                for card in state.cards_of(NODE).values()
                if card.device.cores != 3 or not card.device.healthy
            }
            == wanted
        ),
        LIMIT_S,
    )


@shows(
    "F8",
    fault="pods hold Neuron devices and cores that no scheduler of ours reserved, under both "
    "resource names on one node",
    happens="by kubelet's list exactly these cores are closed to our scheduler until the pods end; "
    "over restarts of kubelet and daemon, too",
)
def test_devices_and_cores_of_unreserved_pods_are_not_given_again(cluster: NeuronCluster) -> None:
    cluster.run_elsewhere("whole", NEURON, "1")
    cluster.run_elsewhere("core", CORE, "31")
    await_free(cluster, {1: 0, 15: 1})
    assert ids_of(cluster.place(pod_body("four", {NEURON: "4"}), NODE)) == "4,5,6,7"
    assert ids_of(cluster.place(pod_body("one", {CORE: "1"}), NODE)) == "30"
    cluster.kubelet.remove("default", "whole")  # as while kubelet starts
    cluster.kubelet.remove("default", "core")
    cluster.restart_daemon(NODE)
    await_free(cluster, {1: 0, 15: 1})
    assert 'hami_node_record_drift_pods{node="trn"} 0.0' in cluster.metrics()
    for name in ("whole", "core"):
        cluster.api.delete("pods", name, "default")
    await_free(cluster, {})


@shows(
    "F9",
    fault="AWS's plugin gives a pod another Neuron device than the scheduler chose",
    happens="both count until it ends; inspect and a metric show the pod, and for more than one "
    "device an Event, too",
)
def test_device_that_aws_chose_otherwise_is_shown_and_not_given_again(
    cluster: NeuronCluster,
) -> None:
    pod = cluster.place(pod_body("one", {NEURON: "1"}), NODE)
    assert ids_of(pod) == "15"
    cluster.hold("one", NEURON, "0")
    await_free(cluster, {0: 0})
    eventually(lambda: 'drift_pods{node="trn"} 1.0' in cluster.metrics(), LIMIT_S)
    assert cluster.events(EVENT) == []
    eventually(lambda: names.NODE_CLOSED_CARDS in cluster.notes_of(NODE), LIMIT_S)
    view = cluster.view()
    assert [(problem.where, problem.why) for problem in view.problems] == [
        ("node trn, card 0", "cores 0,1 are held by default/one, to which 30,31 were given")
    ]
    four = cluster.place(pod_body("four", {NEURON: "4"}), NODE)
    assert ids_of(four) == "4,5,6,7"
    cluster.hold("four", NEURON, "4", "5", "6", "9")
    eventually(lambda: len(cluster.events(EVENT)) == 3, LIMIT_S)
    assert 'rule="other-cores-than-written"' in cluster.metrics()


@shows(
    "F10",
    fault="the Neuron driver counts uncorrectable errors of a device, or AWS's problem detector "
    "marks the node",
    happens="that device is closed, or the whole node; running pods stay",
)
def test_sick_devices_are_not_given(cluster: NeuronCluster) -> None:
    place = cluster.place(pod_body("one", {NEURON: "1"}), NODE)
    for device in range(16):
        hardware = cluster.sysfs / FOLDER / f"neuron{device}/stats/hardware"
        hardware.mkdir(parents=True)
        (hardware / "mem_ecc_uncorrected").write_text("3" if device == 2 else "0")
    cluster.restart_daemon(NODE)
    await_free(cluster, {2: 0})
    condition = {
        "type": "NeuronHealth",
        "status": "True",
        "reason": "NeuronHasError_NC_UNCORRECTABLE_ERROR",
    }
    cluster.api.edit("nodes", NODE, lambda body: body["status"].update(conditions=[condition]))
    await_free(cluster, dict.fromkeys(range(16), 0))
    assert ids_of(cluster.pod("one")) == ids_of(place) == "15"
