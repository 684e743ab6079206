from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.inspection.picture import Listed
from hami_node.inspection.pod import PodState, Verdict, explain_pod
from hami_node.inspection.saved import read_saved
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.saved_cluster import (
    NOW_S,
    card_json,
    card_node_json,
    node_json,
    pending_json,
    pod_json,
    quota_json,
    saved,
)
from tests.unit.inspection.views import BASIS, SCHEDULER, explained, held, with_memory_factor

NODES = [
    card_node_json("sick", card_json("GPU-s", health=False)),
    card_node_json("near", card_json("GPU-a"), card_json("GPU-b", 1)),
    card_node_json("far", card_json("GPU-c")),
    card_node_json("cordoned", card_json("GPU-d"), unschedulable=True),
    node_json("cpu", {}),
]
HELD = [
    pod_json("h1", held("GPU-a", 30000, 30), node="near"),
    pod_json("h2", held("GPU-b", 20000, 30), node="near"),
    pod_json("h3", held("GPU-c", 40000, 30), node="far"),
]


def test_pending_pod_hears_from_every_node_with_cards_nearest_first() -> None:
    view = explained("p", *NODES, *HELD, pending_json("p", gpu=1, gpumem=30000))
    assert (view.state, view.asks, view.waits_s) == (PodState.WAITING, "1 x 30000 MiB", 3600)
    assert [(node.node, node.verdict, node.why) for node in view.nodes] == [
        ("near", Verdict.NO_ROOM, "2/2 CardInsufficientMemory"),
        ("far", Verdict.NO_ROOM, "1/1 CardInsufficientMemory"),
        ("sick", Verdict.NEVER, "1/1 CardNotHealth"),
        ("cordoned", Verdict.NOT_OFFERED, "the node is cordoned"),
    ]
    assert view.other_nodes == 1
    assert "nearest: 20960 MiB free on GPU-b of near" in view.summary
    assert view.basis == "as of now, computed from the objects of nodes and pods"


def test_pod_that_fits_says_where_and_what_else_to_look_at() -> None:
    view = explained("p", *NODES, *HELD, pending_json("p", gpu=1, gpumem=500))
    assert view.nodes[0].verdict is Verdict.FITS
    assert view.nodes[0].why == ""
    assert view.summary.startswith("its cards are free on far, near: ")
    assert view.cures == ("kubectl describe pod shows kube-scheduler's reasons other than cards",)


def test_node_that_is_not_ready_does_not_fit() -> None:
    node = card_node_json("n1", card_json("GPU-a"))
    node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]  # type: ignore[index]  # JSON
    view = explained("p", node, pending_json("p", gpu=1, gpumem=1))
    assert [(node.verdict, node.why) for node in view.nodes] == [
        (Verdict.NOT_OFFERED, "the node is not ready")
    ]


def test_silent_vendor_is_named_on_a_node_that_offers_another() -> None:
    node = card_node_json("both", card_json("GPU-a"))
    node["status"] = {
        "allocatable": {"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "2"}
    }
    view = explained("p", node, pending_json("p"))
    assert "not offered: allocatable nvidia.com/gpu" in view.nodes[0].why


@pytest.mark.parametrize(
    ("pod", "more", "cures"),
    [
        pytest.param(
            pending_json("p", gpu=1, gpumem=30000),
            [],
            (
                "request at most 20960 of nvidia.com/gpumem: that fits on near now",
                "or wait: when other pods have ended, it fits on far",
            ),
            id="memory",
        ),
        pytest.param(
            pending_json("p", gpu=1, gpumem=90000),
            [],
            (
                "request at most 20960 of nvidia.com/gpumem: that fits on near now",
                "waiting alone does not help: it fits on no node even without other pods",
            ),
            id="more_than_any_card",
        ),
        pytest.param(
            pending_json("p", gpu=1),
            [],
            (
                "request at most 20960 of nvidia.com/gpumem: that fits on near now",
                "or wait: when other pods have ended, it fits on far",
            ),
            id="whole_card_by_default",
        ),
        pytest.param(
            pending_json("p", gpu=1, gpumem=100, gpucores=90),
            [],
            (
                "request at most 70 of nvidia.com/gpucores: that fits on far now",
                "or wait: when other pods have ended, it fits on far",
            ),
            id="cores",
        ),
        pytest.param(
            pending_json("p", gpu=3, gpumem=100),
            [],
            (
                "request at most 2 of nvidia.com/gpu: that fits on near now",
                "waiting alone does not help: it fits on no node even without other pods",
            ),
            id="count",
        ),
        pytest.param(
            pending_json("p", {nvidia_names.USE_GPU_TYPE: "H100"}, gpu=1, gpumem=100),
            [],
            (
                "remove nvidia.com/use-gputype and nvidia.com/nouse-gputype: then it fits on "
                "far now",
                "waiting alone does not help: it fits on no node even without other pods",
            ),
            id="model",
        ),
        pytest.param(
            pending_json("p", {nvidia_names.USE_GPU_UUID: "GPU-c"}, gpu=1, gpumem=2000),
            [],
            (
                "request at most 960 of nvidia.com/gpumem: that fits on far now",
                "remove nvidia.com/use-gpuuuid and nvidia.com/nouse-gpuuuid: then it fits on "
                "near now",
                "or wait: when other pods have ended, it fits on far",
            ),
            id="uuid",
        ),
        pytest.param(
            pending_json("p", gpu=1, gpumem=2000),
            [quota_json("default", gpumem=90500)],
            (
                "request at most 500 of nvidia.com/gpumem: that fits on far now",
                "the ResourceQuota of namespace default prevents it: without it the pod fits on "
                "near now",
            ),
            id="quota",
        ),
    ],
)
def test_cures_are_changes_that_were_tried(
    pod: dict[str, object], more: list[dict[str, object]], cures: tuple[str, ...]
) -> None:
    assert explained("p", *NODES, *HELD, *more, pod).cures == cures


def test_cure_is_in_units_of_the_resource() -> None:
    pod = pending_json("p", gpu=1, gpumem=30)
    view = explained("p", *NODES, *HELD, pod, basis=with_memory_factor(1000))
    assert view.cures[0] == "request at most 20 of nvidia.com/gpumem: that fits on near now"


def test_pod_of_another_scheduler_is_told_so_first() -> None:
    pod = pending_json("p", gpu=1, gpumem=1)
    pod["spec"]["schedulerName"] = "other"  # type: ignore[index]  # JSON
    view = explained("p", *NODES, pod)
    assert view.cures[0] == "its schedulerName is other, the extender serves hami-scheduler"


def test_reserved_pod_shows_its_slice_and_does_not_stand_in_its_own_way() -> None:
    node = card_node_json("n1", card_json("GPU-a", count=1))
    pod = pending_json("p", held("GPU-a", 100, on="n1", at_s=int(NOW_S)), gpu=1, gpumem=100)
    view = explained("p", node, pod)
    assert (view.state, view.node) == (PodState.RESERVED, "n1")
    assert [(holder.uuid, holder.is_served) for holder in view.held] == [("GPU-a", False)]
    assert [node.verdict for node in view.nodes] == [Verdict.FITS]
    assert view.summary == "its cards are reserved on n1, and it is not yet bound"


def test_reservation_that_was_not_bound_in_time_is_told() -> None:
    pod = pending_json("p", held("GPU-a", 1, on="near", at_s=int(NOW_S) - 1600), gpu=1, gpumem=1)
    view = explained("p", *NODES, pod)
    assert view.state is PodState.WAITING
    assert view.summary.endswith("it was reserved on near and not bound within 25 min")


@pytest.mark.parametrize(
    ("pod", "state", "summary"),
    [
        pytest.param(
            pod_json("p", held("GPU-a", 100), node="near"),
            PodState.BOUND,
            "bound, and every container has its cards",
            id="served",
        ),
        pytest.param(
            pod_json("p", held("GPU-a", 100, on="near"), node="near", phase="Pending"),
            PodState.BOUND,
            "bound; kubelet has not yet requested the cards of main",
            id="to_be_served",
        ),
        pytest.param(
            pod_json("p", {}, node="near"),
            PodState.BOUND,
            "it holds no card: it has no reservation: it did not come through the scheduler",
            id="past_the_scheduler",
        ),
        pytest.param(
            pod_json("p", held("GPU-a", 100), node="near", phase="Succeeded"),
            PodState.OVER,
            "it has ended (Succeeded): it holds nothing",
            id="over",
        ),
        pytest.param(
            pod_json("p", {}, node="cpu", counts={"main": 0}),
            PodState.ASKS_NOTHING,
            "it requests no card: any node fits",
            id="asks_nothing",
        ),
        pytest.param(
            pending_json("p", gpucores=30),
            PodState.UNREADABLE,
            "container main: nvidia.com/gpucores: is a share of no card: add nvidia.com/gpu: 1",
            id="no_count",
        ),
        pytest.param(
            pending_json("p", gpu="-1"),
            PodState.UNREADABLE,
            "container main: nvidia.com/gpu: can't be negative: '-1'",
            id="unreadable",
        ),
        pytest.param(
            pending_json("p", {names.POD_SCORING_WEIGHTS: "x"}),
            PodState.WAITING,
            "it can't be served: scoring weights have to be like",
            id="weights",
        ),
    ],
)
def test_state_of_a_pod_is_said(pod: dict[str, object], state: PodState, summary: str) -> None:
    view = explained("p", *NODES, pod)
    assert view.state is state
    assert summary in view.summary


def test_bound_pod_shows_its_card_and_no_table_of_nodes() -> None:
    view = explained("p", *NODES, pod_json("p", held("GPU-b", 100, 10), node="near"))
    (holder,) = view.held
    assert (holder.node, holder.index, holder.uuid, holder.memory_mib, holder.cores) == (
        "near",
        1,
        "GPU-b",
        100,
        10,
    )
    assert (view.node, view.nodes, view.waits_s) == ("near", (), None)


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=10), st.text(max_size=20))
def test_any_texts_give_an_answer(register: str, granted: str, gpu: str, said: str) -> None:
    node = node_json(
        "n1", {nvidia_names.NODE_REGISTER: register, nvidia_names.NODE_PAIR_SCORES: said}
    )
    pod = pending_json(
        "p",
        {nvidia_names.POD_ALLOCATED: granted, names.POD_NODE: "n1", names.POD_TIME: said},
        gpu=gpu,
    )
    found = read_saved(saved(node, NODES[1], pod), "file")
    listed = Listed(nodes=found.nodes, pods=found.pods)
    view = explain_pod(listed, found.pods[0], BASIS, NOW_S, SCHEDULER)
    assert view.summary


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({}, ""),
        ({names.POD_RESIZE: "{}"}, "asked; the extender has not decided yet"),
        (
            {names.POD_RESIZE_STATE: '{"id":"a-1","state":"refused","why":"no room"}'},
            "refused: no room",
        ),
        ({names.POD_RESIZE_STATE: '{"id":"a-1","state":"done"}'}, "done"),
        ({names.POD_RESIZE_STATE: "nonsense"}, ""),
        (
            {names.POD_RESIZE_APPROVED: '{"id":"a-1","uid":"uid-p","vendor":"NVIDIA","grants":{}}'},
            "approved; the node has not carried it out yet",
        ),
    ],
)
def test_bound_pod_tells_how_far_its_resize_is(notes: dict[str, str], words: str) -> None:
    pod = pod_json("p", held("GPU-a", 4096, 30) | notes, node="near")
    assert explained("p", *NODES, pod).resize == words


@pytest.mark.parametrize(
    ("state", "is_told"), [({"running": {}}, True), ({"terminated": {"exitCode": 0}}, False)]
)
def test_init_container_that_runs_again_where_others_got_its_share_is_a_problem(
    state: dict[str, object], is_told: bool
) -> None:
    asked = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    text = "GPU-c,NVIDIA,30000,0:;GPU-c,NVIDIA,1000,0:;"
    notes = {nvidia_names.POD_ALLOCATED: text, nvidia_names.POD_TO_ALLOCATE: ";;"}
    pod = pod_json("p", notes, node="far")
    pod["spec"] = {
        "nodeName": "far",
        "initContainers": [{"name": "prep", **asked}],
        "containers": [{"name": "main", **asked}],
    }
    pod["status"] = {
        "phase": "Running",
        "initContainerStatuses": [{"name": "prep", "state": state}],
    }
    view = explained("p", *NODES, HELD[1], pod_json("x", held("GPU-c", 39000), node="far"), pod)
    why = [item.why for item in view.problems]
    assert [text for text in why if "GPU-c has 69000 of 40960 MiB granted" in text] == why[:is_told]
    assert len(why) == is_told
    assert [(holder.container, holder.memory_mib) for holder in view.held] == [
        ("prep", 30000),
        ("main", 1000),
    ]
