from __future__ import annotations

from typing import Any

import pytest

from hami_node.extender.offers import MAX_NEURON_DEVICES, marks_of, offer_of
from hami_node.extender.rules import rules_of
from hami_node.model import Node, Vendor
from hami_node.settings import Settings
from hami_node.wire import names
from hami_node.wire.node_codec import encode_csv7, encode_csv9, encode_json
from tests.unit.extender.desk import card

RESOURCES = rules_of(Settings()).names
CARDS = (card("n1", 0), card("n1", 1))


def node(register: str = "", *, gpu: str | None = "20", **fields: Any) -> Node:
    notes = {names.NODE_REGISTER: register} if register else {}
    allocatable = {} if gpu is None else {names.RESOURCE_GPU: gpu}
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
    offer = offer_of(node(register), RESOURCES)
    assert [one.uuid for one in offer.devices] == ["GPU-n1-0", "GPU-n1-1"]
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
    offer = offer_of(given, RESOURCES)
    assert offer.devices == ()
    assert why in offer.why_empty


def test_vendor_given_up_is_not_offered() -> None:
    offer = offer_of(node(encode_json(CARDS)), RESOURCES, {Vendor.NVIDIA: "silent"})
    assert (offer.devices, offer.why_empty) == ((), "silent")


def test_unreadable_links_cost_only_the_links() -> None:
    offer = offer_of(
        node(encode_json(CARDS), annotations={names.NODE_PAIR_SCORES: "{{{"}), RESOURCES
    )
    assert len(offer.devices) == 2
    assert "links" in offer.problem


def test_cordoned_cards_are_named() -> None:
    offer = offer_of(
        node(encode_json(CARDS), annotations={names.NODE_CORDON: "GPU-n1-1"}), RESOURCES
    )
    assert offer.cordoned == {"GPU-n1-1"}


@pytest.mark.parametrize(
    ("devices", "cores", "offered"),
    [
        pytest.param("2", "8", 2, id="as kubelet counts"),
        pytest.param("0", "0", 0, id="none"),
        pytest.param("2", "1", 0, id="fewer cores than devices"),
        pytest.param(str(MAX_NEURON_DEVICES + 1), "99999", 0, id="nonsense"),
    ],
)
def test_neuron_without_a_daemon_is_what_kubelet_counts(
    devices: str, cores: str, offered: int
) -> None:
    allocatable = {names.RESOURCE_NEURON: devices, names.RESOURCE_NEURON_CORE: cores}
    offer = offer_of(node(gpu=None, allocatable=allocatable), RESOURCES)
    assert len(offer.devices) == offered
    assert {one.cores for one in offer.devices} <= {0b1111}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(node(encode_json(CARDS[:1])), id="the register"),
        pytest.param(node(encode_json(CARDS), gpu="0"), id="allocatable"),
        pytest.param(node(encode_json(CARDS), is_unschedulable=True), id="cordoned"),
        pytest.param(node(encode_json(CARDS), labels={names.INSTANCE_TYPE: "x"}), id="type"),
    ],
)
def test_marks_differ_with_what_an_offer_is_made_of(other: Node) -> None:
    assert marks_of(other, RESOURCES) != marks_of(node(encode_json(CARDS)), RESOURCES)


def test_marks_ignore_the_handshake() -> None:
    spoken = node(encode_json(CARDS), annotations={names.NODE_HANDSHAKE: "Reported now"})
    assert marks_of(spoken, RESOURCES) == marks_of(node(encode_json(CARDS)), RESOURCES)
