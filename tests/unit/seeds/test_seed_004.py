"""Specification document 004: filter, from the request to the annotations. Tests by section."""

from __future__ import annotations

import pytest

from hami_node.engine.filters import Reason, Rejection
from hami_node.engine.place import ContainerAsks, PodRequest
from hami_node.engine.quota import Limits
from hami_node.errors import KubeError
from hami_node.inspection.reasons import explained
from hami_node.model import ContainerKind
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_json
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.request import request_of
from hami_node.vendors.spec import protocols_of
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.fakes.settings import settings
from tests.unit.engine.cards import ask
from tests.unit.extender.desk import Desk, card
from tests.unit.seeds.bench import asks_in, pod_of

GPU, MEM, PCT, CORES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
)


def _desk(*pods: tuple[str, int], nodes: tuple[str, ...] = ("n1",)) -> Desk:
    desk = Desk(*nodes, is_patched=True)
    for name, memory_mib in pods:
        desk.add_pod(name, memory_mib=memory_mib)
    desk.sync()
    return desk


# -- 3, step 1: the request ----------------------------------------------------------------------
def test_seed_004_step_1_example_of_two_containers() -> None:
    first = {GPU: 2, MEM: 4096, CORES: 50}
    second = {GPU: 1, MEM: 2048, CORES: 30}
    found = asks_in(pod_of(first, second))
    assert [(each.count, each.memory_mib, each.cores) for each in found] == [
        (2, 4096, 50),
        (1, 2048, 30),
    ]
    assert {each.vendor.word for each in found} == {"NVIDIA"}


@pytest.mark.parametrize(
    ("limits", "defaults", "memory_mib", "percent"),
    [
        pytest.param({GPU: "1", MEM: "100"}, {"memory_factor": 10}, 1000, None, id="memory-factor"),
        pytest.param({GPU: "1", PCT: "25"}, {}, None, 25, id="percentage"),
        pytest.param({GPU: "1", PCT: "101"}, {}, None, 100, id="101-is-unset"),
        pytest.param({GPU: "1"}, {}, None, 100, id="nothing-is-the-whole-card"),
        pytest.param({GPU: "1"}, {"default_memory_mib": 5000}, 5000, None, id="default-memory"),
        pytest.param(
            {GPU: "1", MEM: "0"}, {"default_memory_mib": 5000}, 5000, None, id="0-is-unset"
        ),
        pytest.param(
            {GPU: "1", PCT: "30"}, {"default_memory_mib": 5000}, None, 30, id="percentage-wins"
        ),
    ],
)
def test_seed_004_step_1_memory_of_a_request(
    limits: dict[str, str],
    defaults: dict[str, int],
    memory_mib: int | None,
    percent: int | None,
) -> None:
    vendors = protocols_of(VENDORS, settings(**defaults))
    (container,) = request_of(pod_of(limits), vendors).containers
    (found,) = container.asks
    assert (found.memory_mib, found.memory_percent) == (memory_mib, percent)


def test_seed_004_step_1_pod_that_asks_nothing_is_passed_on_at_once() -> None:
    desk = _desk(nodes=("n1", "n2"))
    desk.add_pod("plain", Box(cards=0), Box(name="b", cards=0))
    answer = desk.ask("plain", "n1", "n2", "stranger")
    assert answer["NodeNames"] == ["n1", "n2", "stranger"]
    assert desk.kube.calls == []


# -- 3, step 2: what is used ---------------------------------------------------------------------
def test_seed_004_step_2_cards_begin_unused_and_pods_add_up() -> None:
    desk = _desk(("a", 6000), ("b", 4000), ("c", 1))
    assert desk.choose("a") == "n1"
    assert desk.choose("b") == "n1"
    assert desk.held() == {"a": 6000, "b": 4000}
    assert desk.choose("c") == ""


def test_seed_004_step_2_only_candidates_are_looked_at_and_strangers_are_unregistered() -> None:
    desk = _desk(("a", 6000), nodes=("n1", "n2"))
    assert desk.choose("a", "n2") == "n2"
    desk.add_pod("b")
    failed = desk.ask("b", "stranger")["FailedAndUnresolvableNodes"]
    assert failed["stranger"].startswith("node unregistered")


# -- 3, steps 3 and 4: the node ------------------------------------------------------------------
@pytest.mark.parametrize(("policy", "node"), [(None, "n2"), ("binpack", "n2"), ("spread", "n1")])
def test_seed_004_step_4_fullest_node_by_default_and_emptiest_for_spread(
    policy: str | None, node: str
) -> None:
    desk = _desk(("a", 1000), nodes=("n1", "n2"))
    assert desk.choose("a", "n2") == "n2"
    annotations = {} if policy is None else {names.POD_NODE_POLICY: policy}
    desk.add_pod("b", memory_mib=1000, annotations=annotations)
    desk.sync()
    assert desk.choose("b") == node


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
def test_seed_004_step_5_decision_is_on_the_pod_and_the_only_node_is_answered() -> None:
    desk = _desk(("a", 6000), nodes=("n1", "n2"))
    answer = desk.ask("a")
    notes = desk.notes_of("a")
    assert answer["NodeNames"] == [notes["hami.io/vgpu-node"]]
    assert notes["hami.io/vgpu-devices-to-allocate"] == "GPU-n1-0,NVIDIA,6000,0:;"
    assert notes["hami.io/vgpu-devices-allocated"] == notes["hami.io/vgpu-devices-to-allocate"]


def test_seed_004_4_2_cards_and_containers_stay_apart() -> None:
    desk = Desk("n1", cards=2, is_patched=True)
    desk.add_pod("a", Box(cards=2, memory_mib=100, cores=5), Box(name="b", cards=1, memory_mib=200))
    desk.sync()
    assert desk.choose("a") == "n1"
    assert desk.notes_of("a")["hami.io/vgpu-devices-allocated"] == (
        "GPU-n1-1,NVIDIA,100,5:GPU-n1-0,NVIDIA,100,5:;GPU-n1-1,NVIDIA,200,0:;"
    )


# -- 5: events -----------------------------------------------------------------------------------
def test_seed_004_5_success_is_an_event_with_the_node() -> None:
    desk = _desk(("a", 6000))
    desk.choose("a")
    assert desk.notes[-1].reason == "FilteringSucceed"
    assert desk.notes[-1].message.startswith("find fit node(n1)")


def test_seed_004_5_no_node_is_an_event_with_their_number() -> None:
    desk = _desk(("a", 99000), nodes=("n1", "n2"))
    desk.choose("a")
    assert desk.notes[-1].reason == "FilteringFailed"
    assert desk.notes[-1].message.startswith("no available node, 2 nodes do not meet")


def test_seed_004_5_failed_patch_is_an_event() -> None:
    desk = _desk(("a", 6000))
    desk.kube.fail("patch_pod_exactly", KubeError("broken", 500))
    assert desk.ask("a")["Error"]
    assert [note.reason for note in desk.notes] == ["FilteringFailed"]
    assert "broken" in desk.notes[-1].message


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


# -- 6: what is remembered -----------------------------------------------------------------------
def test_seed_004_6_1_filter_forgets_what_the_pod_held_before() -> None:
    desk = _desk(("a", 6000), nodes=("n1", "n2"))
    assert desk.choose("a", "n1") == "n1"
    assert desk.choose("a", "n1") == "n1", "its own 6000 MiB are not in its way"
    assert desk.choose("a", "n2") == "n2"
    assert desk.held() == {"a": 6000}


def test_seed_004_6_2_decision_counts_before_the_watch_shows_it() -> None:
    desk = _desk(("a", 6000), ("b", 6000))
    assert desk.choose("a") == "n1"
    assert desk.choose("b") == ""


def test_seed_004_6_2_quota_counts_the_decision_at_once() -> None:
    desk = _desk(("a", 6000), ("b", 1000), nodes=("n1", "n2"))
    desk.state.set_quota("default", "q", Limits(memory_mib=6500))
    assert desk.choose("a", "n1") == "n1"
    answer = desk.ask("b", "n2")
    assert answer["FailedNodes"] == {"n2": "1/1 ResourceQuotaNotFit"}


def test_seed_004_6_3_failed_patch_frees_the_cards() -> None:
    desk = _desk(("a", 6000), ("b", 6000))
    desk.kube.fail("patch_pod_exactly", KubeError("broken", 500))
    assert desk.ask("a")["Error"]
    assert desk.choose("b") == "n1"
