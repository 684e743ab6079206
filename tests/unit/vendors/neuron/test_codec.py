from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.model import Device
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.codec import (
    decode_neuron_ids,
    decode_neuron_register,
    encode_neuron_ids,
    encode_neuron_register,
    neuron_uuid,
)
from hami_node.vendors.neuron.placement import NeuronDetail

FIRST = Device(
    uuid=neuron_uuid("n1", 0),
    index=0,
    vendor=NEURON,
    model="AWSNeuron",
    mode="",
    numa=1,
    slots=4,
    memory_mib=0,
    cores=15,
)
SECOND = replace(FIRST, uuid=neuron_uuid("n1", 1), index=1, numa=0, healthy=False)


def test_encode_neuron_register_is_sorted_and_has_no_memory() -> None:
    text = encode_neuron_register([replace(SECOND, memory_mib=98304), FIRST])

    assert text == (
        '[{"id":"n1-AWSNeuron-0","count":4,"devcore":15,"type":"AWSNeuron","numa":1,'
        '"health":true},'
        '{"id":"n1-AWSNeuron-1","index":1,"count":4,"devcore":15,"type":"AWSNeuron"}]'
    )


def test_decode_neuron_register_gives_the_same_devices_with_the_nodes_type() -> None:
    found = decode_neuron_register(encode_neuron_register([SECOND, FIRST]), "trn1.32xlarge")

    detail = NeuronDetail(instance_type="trn1.32xlarge")
    assert found == tuple(replace(device, detail=detail) for device in (FIRST, SECOND))


@pytest.mark.parametrize(
    "text",
    ["", "{}", "x", '[{"index":0}]', '[{"id":"a","count":-1}]', '[{"id":"a","devcore":"3"}]'],
)
def test_decode_neuron_register_damaged_text_is_a_wire_error(text: str) -> None:
    with pytest.raises(WireError, match="node-register-AWSNeuron"):
        decode_neuron_register(text)


@pytest.mark.parametrize(
    ("text", "ids"),
    [("0,1,2,3", (0, 1, 2, 3)), ("30", (30,)), (" 4, 6 ", (4, 6)), ("11,11", (11, 11)), ("", ())],
)
def test_decode_neuron_ids_are_in_the_order_written(text: str, ids: tuple[int, ...]) -> None:
    assert decode_neuron_ids(text) == ids


@pytest.mark.parametrize("text", ["a", "1,,2", "1,", "-1", "1.5"])
def test_decode_neuron_ids_anything_else_is_a_wire_error(text: str) -> None:
    with pytest.raises(WireError, match="AWS_NEURON_IDS"):
        decode_neuron_ids(text)


@given(st.lists(st.integers(0, 127)).map(tuple))
def test_encode_neuron_ids_decodes_to_the_same_ids(ids: tuple[int, ...]) -> None:
    assert decode_neuron_ids(encode_neuron_ids(ids)) == ids
