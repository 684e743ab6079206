"""A sweep of many pods lets decisions in between."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from hami_node.extender.state import cluster_state
from hami_node.extender.state.cluster_state import SWEPT_AT_ONCE
from hami_node.model import Pod
from tests.unit.extender.desk import Desk

MANY = 2 * SWEPT_AT_ONCE + 1


def many_pods() -> tuple[Desk, Pod, list[Pod]]:
    """A bound pod, and as many more as three lots have."""
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
    return desk, bound, pods


def test_pods_of_every_lot_that_are_gone_are_dropped_and_the_others_stay() -> None:
    desk, bound, pods = many_pods()
    left = [pods[i].uid for i in (0, SWEPT_AT_ONCE, MANY - 1)]

    desk.state.sweep({bound.uid, *left}, bound.version)

    assert {uid for pod in pods if desk.state.latest(uid := pod.uid) is not None} == set(left)


@pytest.mark.parametrize("is_sweep", [True, False])
def test_others_get_the_lock_between_two_lots(
    monkeypatch: pytest.MonkeyPatch, *, is_sweep: bool
) -> None:
    desk, bound, pods = many_pods()
    answered = []

    def ask() -> None:
        asking = threading.Thread(target=lambda: answered.append(desk.state.latest(bound.uid)))
        asking.start()
        asking.join(20)
        assert not asking.is_alive(), "the lock is held"

    monkeypatch.setattr(cluster_state, "pause", ask)
    if is_sweep:
        desk.state.sweep({bound.uid, *(pod.uid for pod in pods)}, bound.version)
    else:
        assert desk.state.leftovers() == ()
    assert [pod.uid for pod in answered if pod] == [bound.uid] * 2
