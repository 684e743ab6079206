from __future__ import annotations

from dataclasses import replace

from hami_node.model import Node
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.node.auditor import claim_of
from hami_node.vendors.neuron.node.reports import NeuronPublication
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.wire.objects import decode_pod

NOW = 1_800_000_000.0
NAMES = NeuronResources()
RENAMED = NeuronResources(device="example.com/chip", core="example.com/chipcore")
TRN = Node(
    name="n1",
    labels={neuron_names.INSTANCE_TYPE: "trn1.32xlarge"},
    capacity={neuron_names.RESOURCE_NEURON: "16", neuron_names.RESOURCE_NEURON_CORE: "32"},
)
RENAMED_TRN = replace(TRN, capacity={RENAMED.device: "16", RENAMED.core: "32"})
PLAIN = Node(name="n1")
KEYS = {
    neuron_names.NODE_NEURON_REGISTER,
    neuron_names.NODE_NEURON_TOPOLOGY,
    neuron_names.NODE_NEURON_HANDSHAKE,
}


def test_publication_other_nodes_have_none_of_the_keys() -> None:
    assert NeuronPublication(NAMES).desired(PLAIN, NOW) == dict.fromkeys(KEYS)
    assert NeuronPublication(NAMES).heartbeat(PLAIN, NOW) == {}


def test_publication_neuron_node_registers_devices_and_wiring() -> None:
    made = NeuronPublication(NAMES).desired(TRN, NOW)
    register = made[neuron_names.NODE_NEURON_REGISTER] or ""
    assert register.count("n1-AWSNeuron-") == 16
    assert made[neuron_names.NODE_NEURON_TOPOLOGY]
    assert NeuronPublication(NAMES).desired(TRN, NOW + 99) == made, "equal state is equal bytes"


def test_publication_handshake_has_the_time_in_rfc_3339_and_goes_at_the_end() -> None:
    publication = NeuronPublication(NAMES)
    assert publication.heartbeat(TRN, NOW) == {
        neuron_names.NODE_NEURON_HANDSHAKE: "Reported_2027-01-15T08:00:00Z"
    }
    assert publication.shutdown(TRN) == {neuron_names.NODE_NEURON_HANDSHAKE: None}


def test_claim_of_init_containers_are_not_counted_with_the_others() -> None:
    limits = {"limits": {neuron_names.RESOURCE_NEURON: "2"}}
    pod = decode_pod(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {
                "initContainers": [{"name": "i", "resources": limits}],
                "containers": [{"name": "a", "resources": limits}],
            },
        }
    )
    claim = claim_of(pod, NAMES)
    assert claim is not None
    assert claim.devices == 2


def test_publication_of_renamed_resources_is_that_of_the_node() -> None:
    publication = NeuronPublication(RENAMED)

    assert publication.desired(RENAMED_TRN, NOW) == NeuronPublication(NAMES).desired(TRN, NOW)
    assert publication.heartbeat(RENAMED_TRN, NOW)
    assert NeuronPublication(NAMES).desired(RENAMED_TRN, NOW) == dict.fromkeys(KEYS)
