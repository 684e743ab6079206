"""Neuron devices from a Node object: geometry of every instance type, disagreements, wiring."""

from __future__ import annotations

import pytest

from hami_node.model import Node
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.node.devices import (
    NEURON_TYPES,
    NeuronProblem,
    Wiring,
    devices_of,
    geometry_of,
    topology_of,
)
from hami_node.vendors.neuron.placement import instance_type_of
from hami_node.vendors.neuron.requests import NeuronResources

NAMES = NeuronResources()


def _node(
    label: str | None = "trn1.32xlarge",
    neuron: str | None = "16",
    cores: str | None = "32",
    allocatable: dict[str, str] | None = None,
) -> Node:
    capacity = {
        neuron_names.RESOURCE_NEURON: neuron,
        neuron_names.RESOURCE_NEURON_CORE: cores,
        "cpu": "128",
    }
    return Node(
        name="n1",
        labels={} if label is None else {neuron_names.INSTANCE_TYPE: label},
        capacity={key: value for key, value in capacity.items() if value is not None},
        allocatable=allocatable or {},
    )


def _problems(node: Node) -> list[NeuronProblem]:
    return [finding.problem for finding in geometry_of(node, NAMES).findings]


@pytest.mark.parametrize(
    ("label", "devices", "cores", "gib", "wiring", "lnc"),
    [
        ("inf1.xlarge", 1, 4, 8, "none", 1),
        ("inf1.2xlarge", 1, 4, 8, "none", 1),
        ("inf1.6xlarge", 4, 16, 8, "line", 1),
        ("inf1.24xlarge", 16, 64, 8, "unknown", 1),
        ("inf2.xlarge", 1, 2, 32, "none", 1),
        ("inf2.8xlarge", 1, 2, 32, "none", 1),
        ("inf2.24xlarge", 6, 12, 32, "line", 1),
        ("inf2.48xlarge", 12, 24, 32, "ring", 1),
        ("trn1.2xlarge", 1, 2, 32, "none", 1),
        ("trn1.32xlarge", 16, 32, 32, "torus2d", 1),
        ("ml.trn1.32xlarge", 16, 32, 32, "torus2d", 1),
        ("trn1n.32xlarge", 16, 32, 32, "torus2d", 1),
        ("trn2.3xlarge", 1, 4, 96, "none", 2),
        ("trn2.3xlarge", 1, 8, 96, "none", 1),
        ("trn2.48xlarge", 16, 64, 96, "torus2d", 2),
        ("trn2.48xlarge", 16, 128, 96, "torus2d", 1),
        ("trn2u.48xlarge", 16, 64, 96, "torus2d", 2),
        ("trn3.48xlarge", 16, 64, 144, "all-to-all", 2),
        ("trn3e.24xlarge", 4, 16, 144, "all-to-all", 2),
        ("trn3e.24xlarge", 4, 32, 144, "all-to-all", 1),
    ],
)
def test_geometry_of_every_instance_type_agrees_with_capacity(
    label: str, devices: int, cores: int, gib: int, wiring: str, lnc: int
) -> None:
    node = _node(label, str(devices), str(cores))
    assert _problems(node) == []
    found = devices_of(node, NAMES)
    each = cores // devices
    assert [device.index for device in found] == list(range(devices))
    assert {(device.cores, device.slots) for device in found} == {((1 << each) - 1, each)}
    assert {instance_type_of(device) for device in found} == {label.removeprefix("ml.")}
    topology = topology_of(node, NAMES)
    assert topology is not None
    assert (topology.memory_mib, topology.wiring, topology.lnc) == (gib * 1024, wiring, lnc)


@pytest.mark.parametrize(
    ("node", "problems"),
    [
        (_node(None), [NeuronProblem.TYPE_MISSING]),
        (_node("p4d.24xlarge"), [NeuronProblem.TYPE_UNKNOWN]),
        (_node("trn2n.48xlarge", "16", "64"), [NeuronProblem.TYPE_NOT_LISTED]),
        (_node("trn1.32xlarge", "12", "24"), [NeuronProblem.DEVICES_DISAGREE]),
        (_node("trn1.32xlarge", "16", "64"), [NeuronProblem.CORES_DISAGREE]),
        (_node("trn1.32xlarge", "16", "33"), [NeuronProblem.CORES_NOT_DIVISIBLE]),
        (_node("trn1.32xlarge", "16", None), [NeuronProblem.CORES_MISSING]),
        (_node("trn1.32xlarge", "16", "0"), [NeuronProblem.CORES_MISSING]),
        (_node("trn1.32xlarge", "65", "130"), [NeuronProblem.UNREADABLE]),
        (_node("trn1.32xlarge", "16k"), [NeuronProblem.UNREADABLE]),
        (_node("trn1.32xlarge", "-1"), [NeuronProblem.UNREADABLE]),
        (
            _node("trn1.32xlarge", "16", "1" + "0" * 5000),
            [NeuronProblem.UNREADABLE, NeuronProblem.CORES_MISSING],
        ),
        (
            _node(allocatable={NAMES.device: "15", NAMES.core: "30"}),
            [NeuronProblem.NOT_ALL_ALLOCATABLE],
        ),
        (_node(allocatable={neuron_names.RESOURCE_NEURON: "16"}), []),
        (_node(allocatable={"cpu": "128"}), []),
        (_node(None, None, None), []),
    ],
    ids=[
        "no label", "other type", "unlisted size", "devices", "cores", "uneven", "no cores",
        "cores 0", "too many", "suffix", "negative", "endless", "one unhealthy", "all allocatable",
        "allocatable unknown", "no Neuron node",
    ],
)  # fmt: skip
def test_geometry_of_disagreement_is_named(node: Node, problems: list[NeuronProblem]) -> None:
    assert _problems(node) == problems


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (_node(None), "more than one device are refused"),
        (_node("trn1.32xlarge", "12", "24"), "trn1.32xlarge has 16 devices, the node offers 12"),
        (
            _node("trn2.48xlarge", "16", "48"),
            "3 cores on each device, the instance type has 4 or 8",
        ),
        (
            _node(allocatable={neuron_names.RESOURCE_NEURON: "0"}),
            "0 of 16 devices can be allocated",
        ),
    ],
    ids=["label", "devices", "cores", "allocatable"],
)
def test_geometry_of_disagreement_says_what_follows(node: Node, words: str) -> None:
    assert words in geometry_of(node, NAMES).findings[0].detail


def test_devices_of_missing_cores_take_the_types_default() -> None:
    assert {device.cores for device in devices_of(_node("trn2.48xlarge", "16", None), NAMES)} == {
        15
    }


@pytest.mark.parametrize(
    "node",
    [
        _node("trn1.32xlarge", "16", "33"),
        _node("unlisted", "16", None),
        _node(allocatable={neuron_names.RESOURCE_NEURON: "0"}),
    ],
    ids=["uneven cores", "unknown cores", "plugin gone"],
)
def test_devices_of_useless_devices_are_unhealthy_with_a_reason(node: Node) -> None:
    found = devices_of(node, NAMES)
    assert len(found) == 16
    assert not any(device.healthy for device in found)
    assert all(device.unhealthy_reason for device in found)


@pytest.mark.parametrize(
    ("label", "device", "near"),
    [
        ("inf1.6xlarge", 0, (1,)),
        ("inf1.6xlarge", 3, (2,)),
        ("inf2.24xlarge", 5, (4,)),
        ("inf2.48xlarge", 0, (11, 1)),
        ("inf2.48xlarge", 11, (10, 0)),
        ("trn1.32xlarge", 0, (12, 3, 4, 1)),
        ("trn1.32xlarge", 5, (1, 4, 9, 6)),
        ("trn2.48xlarge", 15, (11, 14, 3, 12)),
        ("trn2.3xlarge", 0, ()),
        ("trn3e.24xlarge", 1, (0, 2, 3)),
    ],
)
def test_links_are_those_of_the_driver(label: str, device: int, near: tuple[int, ...]) -> None:
    assert NEURON_TYPES[label].links()[device] == near


@pytest.mark.parametrize("label", NEURON_TYPES)
def test_links_are_symmetric(label: str) -> None:
    links = NEURON_TYPES[label].links()
    assert all(device in links[other] for device, near in enumerate(links) for other in near)
    assert bool(links) is (NEURON_TYPES[label].wiring is not Wiring.UNKNOWN)


def test_topology_of_trn2_members_are_those_of_the_annotation() -> None:
    topology = topology_of(_node("ml.trn2.48xlarge", "16", "64"), NAMES)
    assert topology is not None
    members = topology.members()
    links = members.pop("adj")
    assert isinstance(links, list)
    assert links[0] == [12, 3, 4, 1]
    assert members == {
        "v": 1,
        "instanceType": "trn2.48xlarge",
        "source": "label",
        "family": "trn2",
        "lnc": 2,
        "physCores": 8,
        "logicalCores": 4,
        "memMiB": 98304,
        "topology": "torus2d",
    }


@pytest.mark.parametrize(
    ("node", "family"),
    [
        (_node("trn1.32xlarge", "12", "24"), "trn1"),
        (_node("trn2n.48xlarge", "16", "64"), "trn2"),
        (_node(None), "unknown"),
    ],
    ids=["other number", "unlisted", "no label"],
)
def test_topology_of_doubtful_node_tells_no_links(node: Node, family: str) -> None:
    topology = topology_of(node, NAMES)
    assert topology is not None
    assert (topology.family, topology.wiring, topology.links) == (family, Wiring.UNKNOWN, ())
    assert "adj" not in topology.members()


def test_topology_of_node_without_neuron_is_none() -> None:
    assert topology_of(_node("m5.large", None, None), NAMES) is None
