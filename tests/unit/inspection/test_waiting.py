from __future__ import annotations

import pytest

from hami_node.inspection.views import WaitingView
from hami_node.inspection.waiting import totals_of, waiting_in
from tests.fakes.saved_cluster import (
    NOW_S,
    card_json,
    card_node_json,
    node_json,
    pending_json,
    pod_json,
)
from tests.unit.inspection.views import SCHEDULER, held, listed, picture

NODE = card_node_json("n1", card_json("GPU-a"), card_json("GPU-b", 1))
FULL = [
    pod_json("h1", held("GPU-a", 30000), node="n1"),
    pod_json("h2", held("GPU-b", 20000), node="n1"),
]


def waiting(*items: dict[str, object]) -> tuple[WaitingView, ...]:
    return waiting_in(picture(*items), listed(*items).pods, NOW_S, SCHEDULER)


def test_pod_that_fits_nowhere_says_why_and_since_when() -> None:
    (view,) = waiting(NODE, *FULL, pending_json("big", gpu=1, gpumem=30000))
    assert (view.namespace, view.pod, view.asks) == ("default", "big", "1 x 30000 MiB")
    assert (view.waits_s, view.reserved_on) == (3600, "")
    assert view.why == (
        "no available node, 1 nodes do not meet: 1 nodes CardInsufficientMemory(n1); "
        "nearest: 20960 MiB free on GPU-b of n1, 30000 MiB requested"
    )


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        pytest.param(pending_json("p", gpu=1, gpumem=1000), "its cards are free on n1", id="fits"),
        pytest.param(
            pending_json("p", held("GPU-a", 1, on="n1", at_s=int(NOW_S) - 1499), gpu=1),
            "reserved, and not yet bound",
            id="reserved",
        ),
        pytest.param(
            pending_json("p", held("GPU-a", 1, on="n1", at_s=int(NOW_S) - 1501), gpu=1, gpumem=1),
            "its cards are free on n1",
            id="reservation_expired",
        ),
    ],
)
def test_reason_of_a_waiting_pod_is_said(pod: dict[str, object], why: str) -> None:
    (view,) = waiting(NODE, *FULL, pod)
    assert why in view.why
    assert (view.reserved_on == "n1") is (why == "reserved, and not yet bound")


def test_pod_of_another_scheduler_is_told_so_first() -> None:
    pod = pending_json("p", gpu=1, gpumem=1)
    pod["spec"]["schedulerName"] = "default-scheduler"  # type: ignore[index]  # JSON
    (view,) = waiting(NODE, pod)
    assert view.why.startswith(
        "its schedulerName is default-scheduler, the extender serves hami-scheduler; its cards"
    )


def test_cluster_without_cards_says_so() -> None:
    (view,) = waiting(node_json("cpu", {}), pending_json("p"))
    assert view.why == "no node has published cards"


def test_only_pods_that_want_cards_and_have_no_node_wait() -> None:
    plain = pod_json("plain", {}, node="", phase="Pending", counts={"main": 0})
    leaving = pending_json("leaving")
    leaving["metadata"]["deletionTimestamp"] = "2023-11-14T22:13:00Z"  # type: ignore[index]  # JSON
    over = pod_json("over", {}, node="", phase="Failed")
    assert waiting(NODE, *FULL, plain, leaving, over) == ()


def test_longest_waiting_pod_comes_first_and_unknown_ages_last() -> None:
    young, ageless = pending_json("young"), pending_json("ageless")
    young["metadata"]["creationTimestamp"] = "2023-11-14T22:13:00Z"  # type: ignore[index]  # JSON
    ageless["metadata"]["creationTimestamp"] = "soon"  # type: ignore[index]  # JSON
    found = waiting(NODE, ageless, young, pending_json("old"))
    assert [(view.pod, view.waits_s) for view in found] == [
        ("old", 3600),
        ("young", 20),
        ("ageless", None),
    ]


def test_totals_count_what_the_next_pod_may_get() -> None:
    sick = card_json("GPU-s", 2, health=False)
    full = card_json("GPU-f", 3, count=1)
    node = card_node_json("n1", card_json("GPU-a"), sick, full)
    gone = card_node_json("n2", card_json("GPU-g"), unschedulable=True)
    pods = [
        pod_json("h1", held("GPU-a", 30000), node="n1"),
        pod_json("h2", held("GPU-f", 100), node="n1"),
    ]
    totals = totals_of(picture(node, gone, node_json("cpu", {}), *pods))
    assert (totals.nodes, totals.cards, totals.open_cards) == (1, 3, 1)
    assert (totals.slots, totals.slots_free) == (21, 9)
    assert (totals.memory_mib, totals.memory_free_mib) == (3 * 40960, 10960)
    assert (totals.largest_mib, totals.largest_node, totals.largest_index) == (10960, "n1", 0)
