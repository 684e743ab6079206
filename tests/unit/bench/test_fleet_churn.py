"""The pure parts of the soak: what comes when, and how state and pods are compared."""

from __future__ import annotations

from typing import Any

from hami_node.vendors.nvidia import names as nvidia_names
from tests.bench.fleet.churn import (
    Act,
    Fate,
    churn,
    differences,
    held_use,
    left_behind,
    shown_use,
)
from tests.bench.fleet.soak import verdict


def pod(node: str, text: str, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "annotations": {nvidia_names.POD_ALLOCATED: text}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase},
    }


def test_every_pod_is_created_and_deleted_in_order_and_every_fate_is_met() -> None:
    pods = list(churn(rate=20, for_s=60))
    assert len(pods) == 1200
    for steps in pods:
        assert (steps[0].act, steps[-1].act) == (Act.CREATE, Act.DELETE)
        assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
        assert len({(step.name, step.fate) for step in steps}) == 1
    assert {steps[0].fate for steps in pods} == set(Fate)
    assert [steps[0].at_s for steps in pods] == sorted(steps[0].at_s for steps in pods)


def test_use_by_metrics_and_by_pods_is_the_same_where_state_is_right() -> None:
    labels = '{node="n",uuid="GPU-1"}'
    page = (
        f"hami_node_extender_card_slots_used{labels} 2\n"
        f"hami_node_extender_card_memory_granted_bytes{labels} {3000 * 2**20}\n"
        f"hami_node_extender_card_slots{labels} 10\n"
        'hami_node_extender_card_slots_used{node="n",uuid="GPU-2"} 0\n'
    )
    pods = [
        pod("n", "GPU-1,NVIDIA,1000,5:;"),
        pod("n", "GPU-1,NVIDIA,2000,5:;"),
        pod("n", "GPU-1,NVIDIA,9999,5:;", phase="Failed"),
        pod("", "GPU-1,NVIDIA,9999,5:;"),
    ]
    assert differences(shown_use(page), held_use(pods)) == []
    assert differences(shown_use(page), held_use(pods[:1])) == [
        "GPU-1: memory 3000 in the extender, 1000 by the pods",
        "GPU-1: slots 2 in the extender, 1 by the pods",
    ]


def test_reservation_of_a_pod_that_is_not_placed_is_left_behind() -> None:
    assert left_behind([pod("n", "x"), pod("", "")]) == [f"p: {nvidia_names.POD_ALLOCATED}"]
    assert left_behind([{"metadata": {"name": "p"}, "spec": {}, "status": {}}]) == []


def test_growth_before_the_warm_up_is_over_is_allowed_and_after_it_is_not() -> None:
    early = [(10.0 * i, 50.0 + min(i, 60)) for i in range(360)]
    late = [(10.0 * i, 50.0 + i / 10) for i in range(360)]
    assert verdict(early, 600, [], [])[2] == []
    growth, slope, failed = verdict(late, 600, [], [])
    assert growth > 5
    assert round(slope) == 36
    assert len(failed) == 1
    assert verdict(early, 600, ["wrong"], ["refused"])[2] == ["state: wrong", "error: refused"]
