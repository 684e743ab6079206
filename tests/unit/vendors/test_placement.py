"""The annotations of a placed pod."""

from __future__ import annotations

import json

import pytest

from hami_node.model import Container, ContainerKind, Device, Grant, Node, Uuid
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.codec import encode_csv7, encode_csv9, encode_json
from hami_node.vendors.nvidia.mig.layout import (
    MigInstance,
    MigPlacement,
    TemplateSlot,
)
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.placement import encode_placement
from hami_node.wire import names
from tests.fakes.cards import card

VENDORS = (nvidia_protocol(), neuron_protocol())
NODE = Node(name="n")
DEVICES = {
    Uuid(f"n-{index}"): Device(
        uuid=Uuid(f"n-{index}"), index=index, vendor=NEURON, model="AWSNeuron", mode="", cores=3
    )
    for index in range(6)
}
INSTANCE = MigInstance(profile="2g.10gb", placement=MigPlacement(start=2, size=2))


def _grant(
    uuid: str,
    memory_mib: int = 0,
    cores: int = 3,
    *,
    is_neuron: bool = True,
    part: MigInstance | TemplateSlot | None = None,
) -> Grant:
    vendor = NEURON if is_neuron else NVIDIA
    return Grant(uuid=Uuid(uuid), vendor=vendor, memory_mib=memory_mib, cores=cores, part=part)


def _gpu(part: MigInstance | TemplateSlot | None = None) -> Grant:
    return _grant("GPU-1", 4096, 30, is_neuron=False, part=part)


def _container(*, kind: ContainerKind = ContainerKind.APP, **limits: str) -> Container:
    known = {"devices": neuron_names.RESOURCE_NEURON, "cores": neuron_names.RESOURCE_NEURON_CORE}
    return Container(
        name="c", kind=kind, limits={known[key]: value for key, value in limits.items()}
    )


def test_nvidia_text_stands_twice_with_a_slot_for_every_container() -> None:
    containers = (_container(), _container(), _container())
    texts = encode_placement(Node(name="node-a"), containers, ((), (_gpu(),), ()), {}, VENDORS)
    assert texts == {
        names.POD_NODE: "node-a",
        nvidia_names.POD_ALLOCATED: ";GPU-1,NVIDIA,4096,30:;;",
        nvidia_names.POD_TO_ALLOCATE: ";GPU-1,NVIDIA,4096,30:;;",
    }


def test_mig_reservations_are_written_as_json() -> None:
    given = ((_gpu(), _gpu(INSTANCE)),)
    texts = encode_placement(NODE, (_container(),), given, {}, VENDORS)
    (written,) = json.loads(texts[nvidia_names.POD_MIG_ALLOCATIONS])
    assert written == {
        "containerIndex": 0,
        "deviceIndex": 1,
        "gpuUUID": "GPU-1",
        "profile": "2g.10gb",
        "placement": {"start": 2, "size": 2},
    }


def test_mig_instance_up_to_2_9_stands_behind_the_card() -> None:
    given = ((_gpu(TemplateSlot(template=2, slot=0)),),)
    texts = encode_placement(NODE, (_container(),), given, {}, VENDORS)
    assert texts[nvidia_names.POD_ALLOCATED] == "GPU-1[2-0],NVIDIA,4096,30:;"
    assert nvidia_names.POD_MIG_ALLOCATIONS not in texts


INIT = _container(kind=ContainerKind.INIT)
SIDECAR = _container(kind=ContainerKind.SIDECAR)
CSV9, JSON = encode_csv9([card()]), encode_json([card()])


@pytest.mark.parametrize(
    ("register", "containers", "given", "written"),
    [
        pytest.param(CSV9, (INIT, _container()), ((), (_gpu(),)), "G;", id="2.5 to 2.7"),
        pytest.param(encode_csv7([card()]), (INIT, _container()), ((), (_gpu(),)), "G;", id="2.4"),
        pytest.param(CSV9, (INIT, SIDECAR, _container()), ((), (), (_gpu(),)), "G;", id="sidecar"),
        pytest.param(JSON, (INIT, _container()), ((), (_gpu(),)), ";G;", id="2.8 and later"),
        pytest.param("", (INIT, _container()), ((), (_gpu(),)), ";G;", id="no register"),
        pytest.param(
            CSV9, (INIT, _container()), ((_gpu(),), (_gpu(),)), "G;G;", id="an init container's"
        ),
        pytest.param(
            CSV9, (INIT, _container()), ((), (_gpu(INSTANCE),)), ";G;", id="MIG counts containers"
        ),
    ],
)
def test_plugins_that_register_in_csv_count_slots_of_app_containers(
    register: str,
    containers: tuple[Container, ...],
    given: tuple[tuple[Grant, ...], ...],
    written: str,
) -> None:
    node = Node(name="n", annotations={nvidia_names.NODE_REGISTER: register})
    texts = encode_placement(node, containers, given, {}, VENDORS)
    assert texts[nvidia_names.POD_ALLOCATED] == written.replace("G", "GPU-1,NVIDIA,4096,30:")
    assert texts[nvidia_names.POD_TO_ALLOCATE] == texts[nvidia_names.POD_ALLOCATED]


def test_neuron_devices_are_numbered_by_index() -> None:
    given = ((_grant("n-2"), _grant("n-3")),)
    texts = encode_placement(NODE, (_container(devices="2"),), given, DEVICES, VENDORS)
    assert texts == {
        names.POD_NODE: "n",
        neuron_names.POD_NEURON_ALLOCATED: "n-2,AWSNeuron,0,3:n-3,AWSNeuron,0,3:;",
        neuron_names.NEURON_IDS: "2,3",
        neuron_names.NEURON_IS_ALLOCATED: "false",
        neuron_names.NEURON_PREDICATE_NODE: "n",
    }


def test_neuron_cores_are_numbered_over_all_devices() -> None:
    given = ((_grant("n-5", cores=2),), (), (_grant("n-4"),))
    containers = (_container(cores="1"), _container(), _container(cores="2"))
    texts = encode_placement(NODE, containers, given, DEVICES, VENDORS)
    assert texts[neuron_names.NEURON_IDS] == "11,8,9"
    assert texts[neuron_names.NEURON_RESOURCE_TYPE] == neuron_names.RESOURCE_NEURON_CORE


def test_container_of_two_vendors_has_both_texts() -> None:
    given = ((_grant("n-0"), _grant("GPU-1", 1, 1, is_neuron=False)),)
    texts = encode_placement(NODE, (_container(devices="1"),), given, DEVICES, VENDORS)
    assert texts[nvidia_names.POD_ALLOCATED] == "GPU-1,NVIDIA,1,1:;"
    assert texts[neuron_names.POD_NEURON_ALLOCATED] == "n-0,AWSNeuron,0,3:;"


def test_requests_name_the_unit_where_limits_do_not() -> None:
    asks = Container(name="c", requests={neuron_names.RESOURCE_NEURON: "1"})
    texts = encode_placement(NODE, (asks,), ((_grant("n-4"),),), DEVICES, VENDORS)
    assert texts[neuron_names.NEURON_IDS] == "4"
