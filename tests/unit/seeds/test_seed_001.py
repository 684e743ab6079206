"""Specification document 001: AWS Neuron devices and cores. Tests by section."""

from __future__ import annotations

import pytest
import yaml

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Node
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.request import asks_of
from hami_node.wire.objects import decode_node, decode_pod
from tests.unit.extender.desk import SCHEDULER, Desk
from tests.unit.seeds.bench import asks_in, place, pod_of

NEURON, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
COMPATS = pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])

EXAMPLES = """
apiVersion: v1
kind: Pod
metadata:
  name: neuron-device-demo
spec:
  restartPolicy: Never
  containers:
  - name: nuropod
    command: ["sleep","infinity"]
    image: public.ecr.aws/neuron/pytorch-inference-neuron:1.13.1-neuron-py310-sdk2.20.2-ubuntu20.04
    resources:
      limits:
        cpu: "4"
        memory: 4Gi
        aws.amazon.com/neuron: 4
---
apiVersion: v1
kind: Pod
metadata:
  name: neuron-core-demo
spec:
  restartPolicy: Never
  containers:
  - name: nuropod
    command: ["sleep","infinity"]
    image: public.ecr.aws/neuron/pytorch-inference-neuron:1.13.1-neuron-py310-sdk2.20.2-ubuntu20.04
    resources:
      limits:
        cpu: "4"
        memory: 4Gi
        aws.amazon.com/neuroncore: 1
"""


def _node(devices: int, instance_type: str, *, name: str = "n") -> Node:
    """A node whose devices AWS's plugin offers, two cores each."""
    return decode_node(_node_body(devices, instance_type, name))


def _node_body(devices: int, instance_type: str, name: str = "n") -> dict[str, object]:
    return {
        "metadata": {
            "name": name,
            "labels": {"node.kubernetes.io/instance-type": instance_type},
        },
        "status": {"allocatable": {NEURON: str(devices), CORE: str(2 * devices)}},
    }


def _cards(devices: int, instance_type: str, *busy: int) -> list[DeviceUsage]:
    """The devices of such a node; the busy ones have one core taken."""
    return [
        DeviceUsage(
            device=device,
            slots_used=int(device.index in busy),
            cores_used=int(device.index in busy),
        )
        for device in neuron_protocol().offered_by(_node(devices, instance_type))
    ]


def _placed(
    cards: list[DeviceUsage], resource: str, amount: int, compat: Compat
) -> list[int] | str:
    """Indexes of the devices, or the reasons."""
    (wanted,) = asks_in(pod_of({resource: amount}))
    answer = place(cards, wanted, compat=compat)
    if "n-AWSNeuron-" not in answer:
        return answer
    return [int(uuid.rpartition("-")[2]) for uuid in answer.split("+")]


# -- 1: instance type and the list of devices ----------------------------------------------------


@COMPATS
@pytest.mark.parametrize("instance_type", ["inf2.48xlarge", "trn1.32xlarge"])
def test_seed_001_1_enough_devices_that_are_no_neighbours_are_refused(
    compat: Compat, instance_type: str
) -> None:
    cards = _cards(8, instance_type, 1, 3, 5, 7)
    assert isinstance(_placed(cards, NEURON, 4, compat), str)


# -- 2: strategies -------------------------------------------------------------------------------


@COMPATS
def test_seed_001_2_inferentia_finds_the_last_neighbours(compat: Compat) -> None:
    cards = _cards(12, "inf2.48xlarge", *range(10))
    assert _placed(cards, NEURON, 2, compat) == [10, 11]


@COMPATS
@pytest.mark.parametrize(
    ("count", "blocks"),
    [
        (4, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
        (8, [list(range(8)), list(range(8, 16))]),
        (16, [list(range(16))]),
    ],
)
def test_seed_001_2_trainium_takes_the_blocks_of_the_document(
    compat: Compat, count: int, blocks: list[list[int]]
) -> None:
    busy: list[int] = []
    for block in blocks:
        assert _placed(_cards(16, "trn1.32xlarge", *busy), NEURON, count, compat) == block
        busy.append(block[1])
    assert isinstance(_placed(_cards(16, "trn1.32xlarge", *busy), NEURON, count, compat), str)


# -- 3: cores ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cores", "devices", "each"),
    [(1, 1, 1), (2, 1, 2), (3, 1, 2), (4, 2, 2), (5, 2, 2), (6, 3, 2), (32, 16, 2)],
)
def test_seed_001_3_cores_become_devices_of_two(cores: int, devices: int, each: int) -> None:
    (wanted,) = asks_in(pod_of({CORE: cores}))
    assert (wanted.count, wanted.cores) == (devices, each)


# -- The examples --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "allocated", "ids", "unit"),
    [
        (
            "neuron-device-demo",
            "".join(f"trn-AWSNeuron-{at},AWSNeuron,0,3:" for at in range(4)) + ";",
            "0,1,2,3",
            None,
        ),
        ("neuron-core-demo", "trn-AWSNeuron-15,AWSNeuron,0,1:;", "30", CORE),
    ],
)
def test_seed_001_examples_are_filtered_and_bound(
    name: str, allocated: str, ids: str, unit: str | None
) -> None:
    desk = Desk()
    desk.kube.store.create("nodes", "", _node_body(16, "trn1.32xlarge", "trn"))
    body = next(item for item in yaml.safe_load_all(EXAMPLES) if item["metadata"]["name"] == name)
    body["metadata"] |= {"namespace": "default", "uid": f"uid-{name}"}
    body["spec"]["schedulerName"] = SCHEDULER
    limits = body["spec"]["containers"][0]["resources"]["limits"]
    assert asks_of(decode_pod(body).containers[0], (neuron_protocol(),))
    limits.update({key: str(value) for key, value in limits.items()})
    desk.kube.store.create("pods", "default", body)
    desk.sync()
    assert desk.choose(name) == "trn"
    notes = desk.notes_of(name)
    assert notes[names.POD_NEURON_ALLOCATED] == allocated
    assert notes[names.NEURON_IDS] == ids
    assert notes.get(names.NEURON_RESOURCE_TYPE) == unit
    assert desk.bind(name, "trn") == ""
    assert desk.pod(name).node_name == "trn"
