"""The annotations of a placed pod."""

from __future__ import annotations

import json

from hami_node.model import (
    Container,
    Device,
    Grant,
    MigPlacement,
    MigReservation,
    Uuid,
    Vendor,
)
from hami_node.wire import names
from hami_node.wire.placement_codec import encode_placement

NEURON = {
    Uuid(f"n-{index}"): Device(
        uuid=Uuid(f"n-{index}"),
        index=index,
        vendor=Vendor.AWS_NEURON,
        model="AWSNeuron",
        mode="",
        cores=3,
    )
    for index in range(6)
}


def _grant(uuid: str, memory_mib: int = 0, cores: int = 3, *, is_neuron: bool = True) -> Grant:
    vendor = Vendor.AWS_NEURON if is_neuron else Vendor.NVIDIA
    return Grant(uuid=Uuid(uuid), vendor=vendor, memory_mib=memory_mib, cores=cores)


def _container(**limits: str) -> Container:
    known = {"devices": names.RESOURCE_NEURON, "cores": names.RESOURCE_NEURON_CORE}
    return Container(name="c", limits={known[key]: value for key, value in limits.items()})


def test_nvidia_text_stands_twice_with_a_slot_for_every_container() -> None:
    containers = (_container(), _container(), _container())
    given = ((), (_grant("GPU-1", 4096, 30, is_neuron=False),), ())
    texts = encode_placement("node-a", containers, given, (), {})
    assert texts == {
        names.POD_NODE: "node-a",
        names.POD_ALLOCATED: ";GPU-1,NVIDIA,4096,30:;;",
        names.POD_TO_ALLOCATE: ";GPU-1,NVIDIA,4096,30:;;",
    }


def test_mig_reservations_are_written_as_json() -> None:
    row = MigReservation(
        container_index=0,
        device_index=1,
        uuid=Uuid("GPU-1"),
        profile="2g.10gb",
        placement=MigPlacement(start=2, size=2),
    )
    given = ((_grant("GPU-1", 9856, 29, is_neuron=False),),)
    texts = encode_placement("n", (_container(),), given, (row,), {})
    (written,) = json.loads(texts[names.POD_MIG_ALLOCATIONS])
    assert written["deviceIndex"] == 1
    assert written["placement"] == {"start": 2, "size": 2}


def test_neuron_devices_are_numbered_by_index() -> None:
    texts = encode_placement(
        "n", (_container(devices="2"),), ((_grant("n-2"), _grant("n-3")),), (), NEURON
    )
    assert texts == {
        names.POD_NODE: "n",
        names.POD_NEURON_ALLOCATED: "n-2,AWSNeuron,0,3:n-3,AWSNeuron,0,3:;",
        names.NEURON_IDS: "2,3",
        names.NEURON_IS_ALLOCATED: "false",
        names.NEURON_PREDICATE_NODE: "n",
    }


def test_neuron_cores_are_numbered_over_all_devices() -> None:
    given = ((_grant("n-5", cores=2),), (), (_grant("n-4"),))
    containers = (_container(cores="1"), _container(), _container(cores="2"))
    texts = encode_placement("n", containers, given, (), NEURON)
    assert texts[names.NEURON_IDS] == "11,8,9"
    assert texts[names.NEURON_RESOURCE_TYPE] == names.RESOURCE_NEURON_CORE


def test_container_of_two_vendors_has_both_texts() -> None:
    given = ((_grant("n-0"), _grant("GPU-1", 1, 1, is_neuron=False)),)
    texts = encode_placement("n", (_container(devices="1"),), given, (), NEURON)
    assert texts[names.POD_ALLOCATED] == "GPU-1,NVIDIA,1,1:;"
    assert texts[names.POD_NEURON_ALLOCATED] == "n-0,AWSNeuron,0,3:;"


def test_requests_name_the_unit_where_limits_do_not() -> None:
    asks = Container(name="c", requests={names.RESOURCE_NEURON: "1"})
    texts = encode_placement("n", (asks,), ((_grant("n-4"),),), (), NEURON)
    assert texts[names.NEURON_IDS] == "4"
