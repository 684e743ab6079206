from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.inspection.cluster import MAX_SENTENCE, inspect
from hami_node.inspection.saved import read_saved
from hami_node.inspection.views import ClusterView
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.saved_cluster import GPU, NOW_S, node_json, pod_json, saved
from tests.unit.inspection.views import BASIS

OTHER = "GPU-99999999-2222-3333-4444-555555555555"
CSV9 = f"{GPU},10,40960,100,NVIDIA-NVIDIA A100,1,true,0,hami-core:"
WAITING = f"{GPU},NVIDIA,1024,10:;"


def seen(*items: dict[str, object]) -> ClusterView:
    found = read_saved(saved(*items), "file")
    view = inspect(found.nodes, found.pods, BASIS.vendors, NOW_S)
    assert found.problems == ()
    return view


def card_node(**annotations: str) -> dict[str, object]:
    return node_json("n1", {nvidia_names.NODE_REGISTER: CSV9, **annotations})


def test_slices_of_pods_are_charged_to_their_card() -> None:
    done = {nvidia_names.POD_ALLOCATED: WAITING, nvidia_names.POD_TO_ALLOCATE: ";"}
    view = seen(card_node(), pod_json("a", done), pod_json("b", done))
    (card,) = view.cards
    assert (card.slots_used, card.memory_used_mib, card.cores_used) == (2, 2048, 20)
    assert (card.slots, card.memory_mib, card.cores, card.numa) == (10, 40960, 100, 1)
    assert view.problems == ()


def test_limiter_of_the_node_and_of_each_container_is_shown() -> None:
    held = {nvidia_names.POD_ALLOCATED: WAITING, nvidia_names.POD_TO_ALLOCATE: ";"}
    noted = held | {names.POD_LIMITERS: '{"main":"v2.9.0-0123456789ab","other":"v1"}'}
    node = node_json(
        "n1", {nvidia_names.NODE_REGISTER: CSV9, names.NODE_LIMITER: "v2.10.0-cdef01234567"}
    )
    view = seen(node, pod_json("a", noted), pod_json("b", held))
    assert view.nodes[0].limiter == "v2.10.0-cdef01234567"
    assert [holder.limiter for holder in view.holders] == ["v2.9.0-0123456789ab", ""]


def test_containers_are_told_apart_and_the_unserved_is_marked() -> None:
    annotations = {
        nvidia_names.POD_ALLOCATED: f"{GPU},NVIDIA,1024,10:;{GPU},NVIDIA,2048,20:;",
        nvidia_names.POD_TO_ALLOCATE: f";{GPU},NVIDIA,2048,20:;",
    }
    view = seen(card_node(), pod_json("a", annotations, counts={"first": 1, "second": 1}))
    assert [(holder.container, holder.memory_mib, holder.is_served) for holder in view.holders] == [
        ("first", 1024, True),
        ("second", 2048, False),
    ]


def test_grants_that_match_no_container_are_shown_by_slot_and_named() -> None:
    annotations = {nvidia_names.POD_ALLOCATED: WAITING, nvidia_names.POD_TO_ALLOCATE: ";"}
    view = seen(card_node(), pod_json("a", annotations, counts={"x": 1, "y": 1}))
    assert [holder.container for holder in view.holders] == ["slot 0"]
    assert "does not match its containers" in view.problems[0].why
    assert view.cards[0].memory_used_mib == 1024


def test_grant_on_a_card_that_is_not_there_is_named() -> None:
    annotations = {
        nvidia_names.POD_ALLOCATED: f"{OTHER},NVIDIA,1,1:;",
        nvidia_names.POD_TO_ALLOCATE: ";",
    }
    view = seen(card_node(), pod_json("a", annotations))
    assert view.holders[0].index is None
    assert f"holds card {OTHER}, which node n1 does not have" in view.problems[0].why


def test_over_committed_card_is_named() -> None:
    annotations = {
        nvidia_names.POD_ALLOCATED: f"{GPU},NVIDIA,50000,1:;",
        nvidia_names.POD_TO_ALLOCATE: ";",
    }
    view = seen(card_node(), pod_json("a", annotations))
    assert [problem.why for problem in view.problems] == [f"card 0 ({GPU}) is over-committed"]


def test_second_allocator_of_a_nodes_cards_is_named() -> None:
    body = card_node()
    metadata = body["metadata"]
    assert isinstance(metadata, dict)
    metadata["labels"] = {nvidia_names.LABEL_DRA_DRIVER: "true"}
    (problem,) = seen(body).problems
    assert problem.where == "node n1"
    assert "nvidia.com/gpu.deploy.dra-driver=true" in problem.why


def test_closed_card_is_named_with_its_reason() -> None:
    closed = {names.NODE_CLOSED_CARDS: f'{{"{GPU}": "held by default/old", "GPU-x": "gone"}}'}
    problems = seen(card_node(**closed)).problems
    assert [(problem.where, problem.why) for problem in problems] == [
        ("node n1, card 0", "held by default/old"),
        ("node n1, card GPU-x", "gone"),
    ]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        pytest.param(nvidia_names.NODE_REGISTER, "[{]", id="register"),
        pytest.param(names.NODE_CLOSED_CARDS, "[1]", id="closed_cards"),
        pytest.param(neuron_names.NODE_NEURON_REGISTER, "nonsense", id="neuron_register"),
        pytest.param(nvidia_names.NODE_HANDSHAKE, "hello", id="handshake"),
    ],
)
def test_broken_annotation_of_a_node_is_shown(key: str, text: str) -> None:
    view = seen(node_json("n1", {key: text}), node_json("n2", {nvidia_names.NODE_REGISTER: CSV9}))
    (problem,) = view.problems
    assert problem.where == "node n1"
    assert key in problem.why
    assert [card.node for card in view.cards] == ["n2"]


def test_neuron_cores_are_counted_not_shown_as_a_mask() -> None:
    register = json.dumps(
        [{"id": "n1-AWSNeuron-0", "count": 2, "devcore": 3, "type": "AWSNeuron", "health": True}]
    )
    pod = pod_json("a", {neuron_names.POD_NEURON_ALLOCATED: "n1-AWSNeuron-0,AWSNeuron,0,1:;"})
    limits = {neuron_names.RESOURCE_NEURON_CORE: "1"}
    pod["spec"]["containers"][0]["resources"]["limits"] = limits  # type: ignore[index]  # JSON
    view = seen(node_json("n1", {neuron_names.NODE_NEURON_REGISTER: register}), pod)
    assert (view.cards[0].cores, view.cards[0].cores_used) == (2, 1)
    assert view.holders[0].cores == 1


def test_node_shows_handshake_lock_and_who_it_is() -> None:
    node = card_node(
        **{
            nvidia_names.NODE_HANDSHAKE: "Reported 2023-11-14 22:12:50.5 +0000 UTC",
            names.NODE_LOCK: "2023-11-14T22:13:00Z,default,p",
            names.NODE_IDENTITY: "pod-resources",
            names.NODE_SIMULATED: "true",
            names.NODE_HAND_OVER: "refused: no CDI" + "x" * 999,
        }
    )
    (view,) = seen(node).nodes
    assert view.hand_over.startswith("refused: no CDI")
    assert len(view.hand_over) <= MAX_SENTENCE
    assert (view.handshake, view.handshake_age_s) == ("Reported", 29)
    assert (view.lock, view.identity, view.is_simulated) == ("default/p", "pod-resources", True)
    assert view.allocatable == "10"


def test_broken_object_in_a_file_costs_only_itself() -> None:
    bad = {"kind": "Pod", "metadata": {"name": 7}}
    found = read_saved(saved(bad, card_node()), "dump.json")
    assert [node.name for node in found.nodes] == ["n1"]
    assert [problem.where for problem in found.problems] == ["dump.json"]


@pytest.mark.parametrize("kind", ["NodeList", "PodList"])
def test_typed_list_without_kinds_is_understood(kind: str) -> None:
    item = card_node() if kind == "NodeList" else pod_json("a", {})
    del item["kind"]
    found = read_saved(json.dumps({"kind": kind, "items": [item]}).encode(), "f")
    assert len(found.nodes) + len(found.pods) == 1


@given(st.binary(max_size=100) | st.sampled_from([b"[" * 5000, b'{"items":[1,null]}']))
def test_any_bytes_give_objects_or_a_named_error(data: bytes) -> None:
    with suppress(WireError):
        found = read_saved(data, "f")
        assert found.nodes or found.pods or found.problems


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_any_annotations_give_a_view(register: str, allocated: str, waiting: str) -> None:
    node = node_json("n1", {nvidia_names.NODE_REGISTER: register, names.NODE_LOCK: waiting})
    pod = pod_json(
        "a", {nvidia_names.POD_ALLOCATED: allocated, nvidia_names.POD_TO_ALLOCATE: waiting}
    )
    found = read_saved(saved(node, pod), "file")
    view = inspect(found.nodes, found.pods, BASIS.vendors, NOW_S)
    assert not register or view.cards or view.problems or view.nodes == ()
