"""What is held up: pods without a node, node locks, silent nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest

from hami_node.extender.state import slices
from hami_node.extender.waiting import MAX_PODS, UNSEEN_S, WaitingPods, extender_state
from hami_node.metrics.extender import ExtenderMetrics, ExtenderState
from hami_node.model import Pod
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire.times import format_rfc3339
from tests.fakes.clock import FakeClock
from tests.fakes.kept import kept_bytes
from tests.fakes.pods import Box
from tests.unit.extender.desk import Desk

CREATED_S = FakeClock().now() - 90


@pytest.fixture
def desk() -> Desk:
    return Desk("n1", "n2")


def found(desk: Desk) -> ExtenderState:
    return extender_state(desk.state, desk.waiting, desk.clock, lambda: desk.is_leading)()


def pod(desk: Desk, name: str, memory_mib: int, **metadata: Any) -> None:
    body = desk.add_pod(name, memory_mib=memory_mib)
    made = {"creationTimestamp": format_rfc3339(CREATED_S), **metadata}
    desk.kube.store.change(
        "pods", "default", name, lambda body: body | {"metadata": body["metadata"] | made}
    )
    assert body
    desk.sync()


def test_pods_that_fit_nowhere_wait_with_the_reason_of_most_nodes(desk: Desk) -> None:
    pod(desk, "large", 20_000)
    pod(desk, "larger", 30_000)
    for name in ("large", "larger", "large"):
        assert desk.choose(name) == ""
    now = found(desk)
    assert now.waiting == {"CardInsufficientMemory": 2}
    assert now.longest_wait_s == pytest.approx(90, abs=1)


def test_a_pod_that_nobody_can_ever_serve_waits_too(desk: Desk) -> None:
    desk.add_pod("odd", Box())
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "many"}
    desk.edit_pod("odd", spec={"containers": [{"name": "c", "resources": {"limits": limits}}]})
    desk.sync()
    assert desk.choose("odd") == ""
    assert found(desk).waiting == {"PodRefused": 1}


def test_a_pod_for_which_one_decision_was_too_short_waits_until_it_has_a_node(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod(desk, "slow", 5_000)
    with monkeypatch.context() as patch:
        patch.setattr(slices, "MOST_SLICES", 0)
        assert desk.choose("slow") == ""
        assert desk.choose("slow") == ""
    assert desk.results == ["unfinished"] * 2
    assert found(desk).waiting == {"Unfinished": 1}
    assert {note.reason for note in desk.notes} == {"FilteringFailed"}
    assert "goes on where this one was" in desk.notes[0].message
    assert desk.choose("slow")
    assert found(desk).waiting == {}


def test_no_longer_once_it_has_a_node_is_deleted_ends_or_is_another(desk: Desk) -> None:
    for name in ("served", "deleted", "ended", "stays"):
        pod(desk, name, 20_000)
        assert desk.choose(name) == ""
    desk.waiting.note(replace(desk.pod("stays"), uid="former"), "CardInsufficientMemory")
    assert found(desk).waiting == {"CardInsufficientMemory": 5}
    desk.edit_pod("served", spec={"containers": pod_of(1000)})
    assert desk.choose("served") != ""
    desk.delete_pod("deleted")
    desk.edit_pod("ended", status={"phase": "Failed"})
    desk.sync()
    desk.clock.advance(UNSEEN_S + 1)
    assert found(desk).waiting == {"CardInsufficientMemory": 1}
    desk.delete_pod("stays")
    desk.sync()
    now = found(desk)
    assert (now.waiting, now.longest_wait_s) == ({}, 0.0)


def pod_of(memory_mib: int) -> list[dict[str, Any]]:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
    return [{"name": "main", "resources": {"limits": limits}}]


def test_a_pod_that_the_watch_does_not_show_yet_counts_for_a_while(desk: Desk) -> None:
    desk.add_pod("new", memory_mib=20_000)
    assert desk.choose("new") == ""
    assert found(desk).waiting == {"CardInsufficientMemory": 1}
    desk.clock.advance(UNSEEN_S + 1)
    assert found(desk).waiting == {}


def test_a_replica_that_waits_shows_nothing_and_begins_anew(desk: Desk) -> None:
    pod(desk, "large", 20_000)
    assert desk.choose("large") == ""
    desk.is_leading = False
    assert found(desk) == ExtenderState(nodes=2)
    desk.is_leading = True
    assert found(desk).waiting == {}


def test_remembered_pods_are_bounded(desk: Desk) -> None:
    desk.add_pod("p")
    first = desk.pod("p")
    for number in range(MAX_PODS + 5):
        other = replace(first, uid=f"uid-{number}", name=f"p-{number}")
        desk.waiting.note(other, "CardInsufficientMemory")
    assert sum(found(desk).waiting.values()) == MAX_PODS


def test_locks_that_are_held_and_the_age_of_the_oldest(desk: Desk) -> None:
    now_s = desk.clock.now()
    desk.lock("n1", f"{format_rfc3339(now_s - 40)},default,p")
    desk.lock("n2", f"{format_rfc3339(now_s - 400)},default,q")
    desk.sync()
    now = found(desk)
    assert now.locked_nodes == 2
    assert now.oldest_lock_s == pytest.approx(400, abs=1)
    desk.lock("n2", "whatever")
    desk.sync()
    now = found(desk)
    assert now.locked_nodes == 2
    assert now.oldest_lock_s == pytest.approx(40, abs=1)


def test_silent_nodes(desk: Desk) -> None:
    desk.state.give_up("n1", NVIDIA, "it has not answered")
    assert found(desk).silent_nodes == 1
    desk.state.take_back("n1", NVIDIA)
    assert found(desk).silent_nodes == 0


def test_series() -> None:
    metrics = ExtenderMetrics()
    text = generate_latest(metrics.registry).decode()
    assert "waiting_pods{" not in text
    assert "hami_node_extender_longest_wait_seconds 0.0" in text
    waiting = {"CardInsufficientMemory": 2}
    metrics.read = lambda: ExtenderState(nodes=4, pods=5, waiting=waiting, locked_nodes=3)
    text = generate_latest(metrics.registry).decode()
    assert 'hami_node_extender_waiting_pods{reason="CardInsufficientMemory"} 2.0' in text
    for line in ("leading 0.0", "nodes 4.0", "pods 5.0", "locked_nodes 3.0"):
        assert f"hami_node_extender_{line}\n" in text


def test_a_large_pod_costs_no_more_than_its_name() -> None:
    waiting = WaitingPods(lambda _namespace, _name: None, FakeClock())
    for i in range(100):
        large = {"note": f"{i}" * 100_000}
        waiting.note(Pod(uid=f"u{i}", namespace="ns", name=f"p{i}", annotations=large), "why")
    assert waiting.now()[0] == {"why": 100}
    assert kept_bytes(waiting) < 100_000
