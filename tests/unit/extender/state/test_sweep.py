"""A sweep of many pods lets decisions in between."""

from __future__ import annotations

from dataclasses import replace

from hami_node.extender.state.cluster_state import SWEPT_AT_ONCE
from tests.unit.extender.desk import Desk

MANY = 2 * SWEPT_AT_ONCE + 1


def test_pods_of_every_lot_that_are_gone_are_dropped_and_the_others_stay() -> None:
    desk = Desk("n1", is_patched=True)
    desk.add_pod("a")
    desk.sync()
    desk.choose("a")
    assert desk.bind("a", "n1") == ""
    bound = desk.pod("a")
    pods = [
        replace(bound, uid=f"uid-{i}", name=f"p{i}", node_name=f"other-{i}") for i in range(MANY)
    ]
    for pod in pods:
        desk.state.pod_changed(None, pod)
    left = [pods[i].uid for i in (0, SWEPT_AT_ONCE, MANY - 1)]

    desk.state.sweep({bound.uid, *left}, bound.version)

    assert {uid for pod in pods if desk.state.latest(uid := pod.uid) is not None} == set(left)
