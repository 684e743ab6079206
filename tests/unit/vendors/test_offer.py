from __future__ import annotations

from typing import Any

import pytest

from hami_node.model import Node, Vendor
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.protocol import MAX_DEVICES, neuron_protocol
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.codec import encode_csv7, encode_csv9, encode_json
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.offer import marks_of, offer_of
from hami_node.wire import names
from hami_node.wire.register import encode_pair_scores
from tests.fakes.cards import card

VENDORS = (nvidia_protocol(), neuron_protocol())
CARDS = (card(0), card(1))


def node(register: str = "", *, gpu: str | None = "20", **fields: Any) -> Node:
    notes = {nvidia_names.NODE_REGISTER: register} if register else {}
    allocatable = {} if gpu is None else {nvidia_names.RESOURCE_GPU: gpu}
    return Node(
        name="n1",
        annotations=notes | fields.pop("annotations", {}),
        allocatable=allocatable | fields.pop("allocatable", {}),
        **fields,
    )


@pytest.mark.parametrize(
    "register",
    [
        pytest.param(encode_json(CARDS), id="2.8 to 2.10"),
        pytest.param(encode_csv9(CARDS), id="2.5 to 2.7"),
        pytest.param(encode_csv7(CARDS), id="2.4"),
    ],
)
def test_cards_of_every_generation_are_offered(register: str) -> None:
    offer = offer_of(node(register), VENDORS)
    assert [device.uuid for device in offer.devices] == [item.uuid for item in CARDS]
    assert offer.why_empty == ""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param(node(), "no cards are registered", id="nothing registered"),
        pytest.param(node(encode_json(CARDS), gpu="0"), "device plugin", id="allocatable 0"),
        pytest.param(node(encode_json(CARDS), gpu=None), "absent", id="no allocatable"),
        pytest.param(
            node(encode_json(CARDS), is_unschedulable=True), "cordoned", id="cordoned node"
        ),
        pytest.param(node("[{"), "truncated", id="unreadable"),
        pytest.param(node(encode_json((*CARDS, CARDS[0]))), "named twice", id="a card twice"),
    ],
)
def test_node_offers_nothing_and_says_why(given: Node, why: str) -> None:
    offer = offer_of(given, VENDORS)
    assert offer.devices == ()
    assert why in offer.why_empty


def test_vendor_given_up_is_not_offered() -> None:
    offer = offer_of(node(encode_json(CARDS)), VENDORS, {NVIDIA: "silent"})
    assert (offer.devices, offer.why_empty) == ((), "silent")


def test_unreadable_links_cost_only_the_links() -> None:
    offer = offer_of(
        node(encode_json(CARDS), annotations={nvidia_names.NODE_PAIR_SCORES: "{{{"}), VENDORS
    )
    assert len(offer.devices) == 2
    assert "links" in offer.problem


def test_cordoned_cards_are_named() -> None:
    offer = offer_of(
        node(encode_json(CARDS), annotations={names.NODE_CORDON: CARDS[1].uuid}), VENDORS
    )
    assert offer.cordoned == {CARDS[1].uuid}


@pytest.mark.parametrize(
    ("devices", "cores", "offered"),
    [
        pytest.param("2", "8", 2, id="as kubelet counts"),
        pytest.param("0", "0", 0, id="none"),
        pytest.param("2", "1", 0, id="fewer cores than devices"),
        pytest.param(str(MAX_DEVICES + 1), "99999", 0, id="nonsense"),
    ],
)
def test_neuron_without_a_daemon_is_what_kubelet_counts(
    devices: str, cores: str, offered: int
) -> None:
    allocatable = {neuron_names.RESOURCE_NEURON: devices, neuron_names.RESOURCE_NEURON_CORE: cores}
    offer = offer_of(node(gpu=None, allocatable=allocatable), VENDORS)
    assert len(offer.devices) == offered
    assert {device.cores for device in offer.devices} <= {0b1111}


@pytest.mark.parametrize(("cores", "shown"), [(None, "absent"), ("0", "0"), ("1", "1")])
def test_neuron_devices_without_cores_say_what_is_missing(cores: str | None, shown: str) -> None:
    allocatable = {neuron_names.RESOURCE_NEURON: "2"}
    if cores is not None:
        allocatable[neuron_names.RESOURCE_NEURON_CORE] = cores
    offer = offer_of(node(gpu=None, allocatable=allocatable), VENDORS)
    assert offer.why_empty.startswith(
        "allocatable aws.amazon.com/neuroncore: fewer cores than the 2 Neuron devices of the node"
    )
    assert offer.why_empty.endswith(repr(shown))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(node(encode_json(CARDS[:1])), id="the register"),
        pytest.param(node(encode_json(CARDS), gpu="0"), id="allocatable"),
        pytest.param(node(encode_json(CARDS), is_unschedulable=True), id="cordoned"),
        pytest.param(node(encode_json(CARDS), labels={neuron_names.INSTANCE_TYPE: "x"}), id="type"),
        *(
            pytest.param(node(encode_json(CARDS), annotations={key: "x"}), id=key)
            for key in (
                nvidia_names.NODE_PAIR_SCORES,
                neuron_names.NODE_NEURON_REGISTER,
                names.NODE_CORDON,
            )
        ),
        *(
            pytest.param(node(encode_json(CARDS), allocatable={key: "1"}), id=key)
            for key in (neuron_names.RESOURCE_NEURON, neuron_names.RESOURCE_NEURON_CORE)
        ),
    ],
)
def test_marks_differ_with_what_an_offer_is_made_of(other: Node) -> None:
    assert marks_of(other, VENDORS) != marks_of(node(encode_json(CARDS)), VENDORS)


def test_marks_ignore_the_handshake() -> None:
    spoken = node(encode_json(CARDS), annotations={nvidia_names.NODE_HANDSHAKE: "Reported now"})
    assert marks_of(spoken, VENDORS) == marks_of(node(encode_json(CARDS)), VENDORS)


def test_neuron_that_kubelet_counts_under_other_names_is_offered() -> None:
    renamed = NeuronResources(device="example.com/chip", core="example.com/chipcore")
    allocatable = {renamed.device: "2", renamed.core: "8"}
    given = node(gpu=None, allocatable=allocatable)

    assert len(offer_of(given, (neuron_protocol(renamed),)).devices) == 2
    assert offer_of(given, VENDORS).devices == ()


def test_links_between_cards_are_offered_and_the_largest_card_is_known() -> None:
    scores = {CARDS[0].uuid: {CARDS[1].uuid: 50}}
    written = {nvidia_names.NODE_PAIR_SCORES: encode_pair_scores(scores)}
    offer = offer_of(node(encode_json(CARDS), annotations=written), VENDORS)

    assert offer.pair_scores == scores
    assert offer.problem == ""
    assert offer.largest_mib == CARDS[0].memory_mib


def test_one_vendor_that_can_not_be_read_leaves_the_other() -> None:
    neuron = {neuron_names.RESOURCE_NEURON: "2", neuron_names.RESOURCE_NEURON_CORE: "4"}
    offer = offer_of(node("[{", allocatable=neuron), VENDORS)

    assert [device.index for device in offer.devices] == [0, 1]
    assert list(offer.missing) == [NVIDIA]


def test_node_that_is_not_selected_keeps_what_else_is_wrong_with_it() -> None:
    given = node(encode_json(CARDS), annotations={nvidia_names.NODE_PAIR_SCORES: "garbage"})
    given_up: dict[Vendor, str] = {NEURON: "silent"}
    offer = offer_of(given, VENDORS, given_up, {"pool": "gpu"})
    assert "node-label-selector" in offer.missing[NVIDIA]
    assert offer.missing[NEURON] == "silent"
    assert "links between cards are unknown" in offer.problem
