"""Specification document 004: filter, from the request to the annotations. Tests by section."""

from __future__ import annotations

from hami_node.engine.filters import Reason, Rejection
from hami_node.engine.place import ContainerAsks, PodRequest
from hami_node.inspection.reasons import explained
from hami_node.model import ContainerKind
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_json
from tests.fakes.pods import Box
from tests.unit.engine.cards import ask
from tests.unit.extender.desk import Desk, card


def _desk(*pods: tuple[str, int], nodes: tuple[str, ...] = ("n1",)) -> Desk:
    desk = Desk(*nodes, is_patched=True)
    for name, memory_mib in pods:
        desk.add_pod(name, memory_mib=memory_mib)
    desk.sync()
    return desk


# -- 3, steps 3 and 4: the node ------------------------------------------------------------------


def test_seed_004_step_3_each_node_that_fails_has_its_reason() -> None:
    desk = _desk(("big", 9000), ("a", 6000), nodes=("n1", "n2"))
    desk.kube.merge_patch_node(
        "n2", {nvidia_names.NODE_REGISTER: encode_json((card("n2", 0, healthy=False),))}
    )
    desk.sync()
    assert desk.choose("a", "n1") == "n1"
    answer = desk.ask("big")
    assert answer["FailedNodes"] == {"n1": "1/1 CardInsufficientMemory"}
    assert answer["FailedAndUnresolvableNodes"] == {"n2": "1/1 CardNotHealth"}


# -- 3, step 5 and 4: annotations ----------------------------------------------------------------


def test_seed_004_4_2_cards_and_containers_stay_apart() -> None:
    desk = Desk("n1", cards=2, is_patched=True)
    desk.add_pod("a", Box(cards=2, memory_mib=100, cores=5), Box(name="b", cards=1, memory_mib=200))
    desk.sync()
    assert desk.choose("a") == "n1"
    assert desk.notes_of("a")["hami.io/vgpu-devices-allocated"] == (
        "GPU-n1-1,NVIDIA,100,5:GPU-n1-0,NVIDIA,100,5:;GPU-n1-1,NVIDIA,200,0:;"
    )


# -- 5: events -----------------------------------------------------------------------------------


def test_seed_004_5_reasons_of_the_example_are_counted_with_their_nodes() -> None:
    memory = Rejection(counts={Reason.TOO_LITTLE_MEMORY: 1}, total=1)
    slots = Rejection(counts={Reason.NO_SLOT: 1}, total=1)
    request = PodRequest(
        namespace="team", containers=(ContainerAsks(kind=ContainerKind.APP, asks=(ask(),)),)
    )
    found = explained(
        request,
        dict.fromkeys(("node-a", "node-b", "node-c"), memory)
        | dict.fromkeys(("node-d", "node-e"), slots),
        lambda _: {},
        lambda nodes: dict.fromkeys(nodes, 99999),
        lambda _: "",
        frozenset(),
    )
    assert "3 nodes CardInsufficientMemory(node-a,node-b,node-c)" in found.summary
    assert "2 nodes CardTimeSlicingExhausted(node-d,node-e)" in found.summary
