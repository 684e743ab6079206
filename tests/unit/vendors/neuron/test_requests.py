from __future__ import annotations

import pytest

from hami_node.errors import WireError
from hami_node.model import Ask, Container
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import GENERATIONS, WHOLE_DEVICES
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.neuron.requests import (
    NeuronResources,
    neuron_ask_of,
)

Quantities = dict[str, str]

DEVICE, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
NAMES = NeuronResources()
OLD, NEW = "2.8", "2.10"


def container(limits: Quantities, requests: Quantities | None = None) -> Container:
    return Container(name="main", limits=limits, requests=requests or {})


def ask_of(
    limits: Quantities,
    requests: Quantities | None = None,
    *,
    resources: NeuronResources = NAMES,
    compat: str = OLD,
) -> Ask | None:
    return neuron_protocol(resources, compat).ask_of(container(limits, requests))


def cores(count: int, each: int) -> Ask:
    return Ask(vendor=NEURON, count=count, cores=each)


def whole(count: int) -> Ask:
    return Ask(vendor=NEURON, count=count, cores=2, detail=WHOLE_DEVICES)


@pytest.mark.parametrize(
    ("limits", "old", "new"),
    [
        pytest.param({DEVICE: "4"}, whole(4), whole(4), id="devices"),
        pytest.param({DEVICE: "2", CORE: "3"}, whole(2), whole(2), id="both"),
        pytest.param({CORE: "1"}, cores(1, 1), cores(1, 1), id="one core"),
        pytest.param({CORE: "2"}, cores(1, 2), cores(1, 2), id="one device"),
        pytest.param({CORE: "4"}, cores(2, 2), cores(2, 2), id="two devices"),
        pytest.param({CORE: "3"}, cores(1, 2), None, id="three cores"),
        pytest.param({CORE: "5"}, cores(2, 2), None, id="five cores"),
    ],
)
def test_ask_of_both_generations(limits: Quantities, old: Ask, new: Ask | None) -> None:
    assert ask_of(limits) == old
    if new is not None:
        assert ask_of(limits, compat=NEW) == new
        return
    with pytest.raises(WireError, match="1 or a multiple of 2") as caught:
        ask_of(limits, compat=NEW)
    assert caught.value.key == CORE


def test_2_8_reads_0_cores_as_one_and_reserves_nothing_all_the_same() -> None:
    asked = container({CORE: "0"})

    assert neuron_ask_of(asked, NAMES, GENERATIONS[OLD]) == cores(1, 1)
    assert neuron_ask_of(asked, NAMES, GENERATIONS[NEW]) is None
    assert ask_of({CORE: "0"}) is ask_of({CORE: "0"}, compat=NEW) is None


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"cpu/x": "1"}, id="other resources"),
        pytest.param({DEVICE: "0", CORE: "4"}, id="no device"),
    ],
)
def test_ask_of_nothing(limits: Quantities) -> None:
    assert ask_of(limits) is None


@pytest.mark.parametrize(
    ("limits", "requests", "resource", "why"),
    [
        pytest.param({DEVICE: "500m"}, {}, DEVICE, "whole number", id="half a device"),
        pytest.param({CORE: "-1"}, {}, CORE, "negative", id="negative cores"),
        pytest.param({DEVICE: "1"}, {CORE: "x"}, CORE, "quantity", id="beside a good limit"),
    ],
)
def test_ask_of_bad_value_is_a_wire_error_that_names_it(
    limits: Quantities, requests: Quantities, resource: str, why: str
) -> None:
    with pytest.raises(WireError, match=why) as caught:
        ask_of(limits, requests)
    assert caught.value.key == resource


def test_ask_of_renamed_resources_reads_only_the_new_names() -> None:
    renamed = NeuronResources(device="example.com/chip", core="example.com/chipcore")

    assert ask_of({"example.com/chip": "2"}, resources=renamed) == whole(2)
    assert ask_of({"example.com/chipcore": "1"}, resources=renamed) == cores(1, 1)
    assert ask_of({DEVICE: "2", CORE: "1"}, resources=renamed) is None
