"""Filter on nodes that don't serve what is sent there."""

from __future__ import annotations

import pytest

from hami_node.extender.state.cluster_state import ClusterState
from hami_node.simulate.store import Json
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.unit.extender.desk import Desk

UNAVAILABLE = (
    "Allocate failed due to rpc error: code = Unavailable desc = no driver, which is unexpected"
)


@pytest.fixture
def desk() -> Desk:
    return Desk("n0", "n1")


def owned(desk: Desk, name: str, owner: str = "") -> Json:
    """A pod that a controller made."""
    desk.add_pod(name)
    reference = [{"uid": owner or f"owner-{name}", "controller": True}]

    def change(body: Json) -> Json:
        body["metadata"]["ownerReferences"] = reference
        return body

    desk.kube.store.change("pods", "default", name, change)
    desk.sync()
    return desk.kube.store.read("pods", "default", name)


def sent(desk: Desk, name: str, *nodes: str, owner: str = "") -> str:
    """Filter and bind a new pod; its node."""
    node = desk.choose(owned(desk, name, owner), *nodes)
    if node:
        assert desk.bind(name, node) == ""
        desk.sync()
    return node


def refuse(desk: Desk, name: str, message: str = "") -> None:
    """The node's plugin refuses it, and then kubelet fails it."""
    desk.edit_pod(name, annotations={names.POD_BIND_PHASE: names.PHASE_FAILED})
    desk.sync()
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    desk.edit_pod(name, status=status)
    desk.sync()


def serve(desk: Desk, name: str) -> None:
    desk.edit_pod(name, annotations={names.POD_BIND_PHASE: names.PHASE_SUCCESS})
    desk.sync()


def test_a_broken_node_gets_one_pod_and_then_none(desk: Desk) -> None:
    broken = sent(desk, "first")
    refuse(desk, "first", UNAVAILABLE)
    assert sent(desk, "second") not in ("", broken)
    answer = desk.ask(owned(desk, "third"), broken)
    assert not answer["NodeNames"]
    why = answer["FailedAndUnresolvableNodes"][broken]
    assert why.startswith("NodeBackedOff: its device plugin did not answer")
    assert "until 20" in why
    assert "first" not in why, "another tenant's pod is nobody's business"
    assert f"NodeBackedOff({broken})" in desk.notes[-1].message


def test_after_the_wait_one_pod_tries_the_node(desk: Desk) -> None:
    assert sent(desk, "first", "n0") == "n0"
    refuse(desk, "first", UNAVAILABLE)
    desk.clock.advance(11)
    assert sent(desk, "trial", "n0") == "n0"
    assert desk.choose(owned(desk, "next"), "n0") == ""
    serve(desk, "trial")
    # as the clock stands still, the next one fits only beside what is there
    assert "NodeBackedOff" not in str(desk.ask("next", "n0"))


def test_a_pod_that_fails_again_and_again_keeps_only_its_like_away(desk: Desk) -> None:
    assert sent(desk, "bad-1", "n0", owner="bad") == "n0"
    refuse(desk, "bad-1")
    assert desk.choose(owned(desk, "bad-2", "bad"), "n0") == ""
    assert desk.choose(owned(desk, "good", "good"), "n0") == "n0"


def test_the_trial_is_free_again_once_its_pod_is_gone_or_fails_to_be_written(desk: Desk) -> None:
    assert sent(desk, "first", "n0") == "n0"
    refuse(desk, "first", UNAVAILABLE)
    desk.clock.advance(11)
    assert desk.choose(owned(desk, "trial"), "n0") == "n0"
    desk.delete_pod("trial")
    desk.sync()
    assert desk.choose(owned(desk, "next"), "n0") == "n0"


def test_a_bind_that_places_anew_respects_it_too() -> None:
    desk = Desk("n0", cards=2)
    assert sent(desk, "first", "n0") == "n0"
    assert desk.choose(owned(desk, "late"), "n0") == "n0"
    desk.sync()
    desk.state.begin_term("hami-scheduler")
    refuse(desk, "first", UNAVAILABLE)
    assert "NodeBackedOff" in desk.bind("late", "n0")


def test_a_new_leader_knows_about_the_same_from_what_it_lists(desk: Desk) -> None:
    assert sent(desk, "first", "n0") == "n0"
    refuse(desk, "first", UNAVAILABLE)
    desk.clock.advance(2)
    fresh = ClusterState(desk.state.rules, desk.clock)
    for node in desk.shown_nodes.values():
        fresh.node_changed(None, node)
    for pod in desk.shown_pods.values():
        fresh.pod_changed(None, pod)
    other = decode_pod(owned(desk, "other"))
    assert fresh.backed_off(other).keys() == desk.state.backed_off(other).keys() == {"n0"}
    desk.clock.advance(3600)
    late = ClusterState(desk.state.rules, desk.clock)
    for pod in desk.shown_pods.values():
        late.pod_changed(None, pod)
    assert not late.backed_off(other)


def test_pods_that_our_reservation_did_not_send_say_nothing(desk: Desk) -> None:
    """Anybody may create a pod with a node's name in it, whose Allocate then fails."""
    desk.add_pod("direct")
    desk.sync()
    desk.edit_pod(
        "direct",
        spec={"nodeName": "n0"},
        annotations={names.POD_BIND_PHASE: names.PHASE_FAILED, names.POD_NODE: "n0"},
        status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": UNAVAILABLE},
    )
    desk.sync()
    assert not desk.state.backed_off(decode_pod(owned(desk, "other")))


def test_a_node_that_is_gone_or_comes_back_is_tried(desk: Desk) -> None:
    assert sent(desk, "first", "n0") == "n0"
    refuse(desk, "first", UNAVAILABLE)
    assert desk.state.back_offs()["plugin-unavailable", "node"] == 1
    for amount in ("0", "10"):

        def change(body: Json, amount: str = amount) -> Json:
            body["status"]["allocatable"]["nvidia.com/gpu"] = amount
            return body

        desk.kube.store.change("nodes", "", "n0", change)
        desk.sync()
    assert desk.choose(owned(desk, "next"), "n0") == "n0"
