from __future__ import annotations

from collections.abc import Callable

import pytest

from hami_node.errors import Conflict, Forbidden, KubeError, NotFound, NotLeading
from hami_node.extender.binding.bind_lock import QUIET_S
from hami_node.extender.filter import FAILED as FILTER_FAILED
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.lock import encode_lock
from tests.fakes.pods import Box
from tests.reliability import shows
from tests.unit.extender.desk import SCHEDULER, Desk

LOST = KubeError("no answer")
BROKEN = KubeError("broken", 500)


@pytest.fixture
def desk() -> Desk:
    """n1 has identity, n2 needs the lock; `a` is reserved on n1, `b` on n2."""
    desk = Desk("n1", is_patched=True)
    desk.add_node("n2", has_identity=False)
    for name, node in (("a", "n1"), ("b", "n2")):
        desk.add_pod(name)
        desk.sync()
        assert desk.choose(name, node) == node
    desk.sync()
    desk.kube.calls.clear()
    return desk


def assert_undone(desk: Desk, name: str) -> None:
    assert name not in desk.held()
    assert nvidia_names.POD_ALLOCATED not in desk.notes_of(name)
    assert names.POD_BIND_PHASE not in desk.notes_of(name)
    assert desk.pod(name).node_name == ""
    assert desk.lock("n2") == ""


def test_pod_is_bound_and_daemon_told(desk: Desk) -> None:
    assert desk.bind("a", "n1") == ""
    assert desk.pod("a").node_name == "n1"
    annotations = desk.notes_of("a")
    assert annotations[names.POD_BIND_PHASE] == names.PHASE_ALLOCATING
    assert annotations[names.POD_BIND_TIME] == str(int(desk.clock.now()))
    assert desk.kube.calls == ["bind_pod"]


def test_identity_node_gets_no_lock(desk: Desk) -> None:
    desk.bind("a", "n1")
    assert desk.lock("n1") == ""


def test_other_node_is_locked_for_the_pod(desk: Desk) -> None:
    assert desk.bind("b", "n2") == ""
    assert desk.lock("n2").endswith(",default,b")


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize(
    "error",
    [
        pytest.param(BROKEN, id="it fails"),
        pytest.param(LOST, id="it did not arrive"),
        pytest.param(Conflict("no", 409), id="it is refused"),
        pytest.param(Forbidden("no", 403), id="it is forbidden"),
    ],
)
def test_binding_that_fails_is_undone(desk: Desk, name: str, error: KubeError) -> None:
    desk.kube.fail("bind_pod", error)
    assert desk.bind(name, {"a": "n1", "b": "n2"}[name]) != ""
    assert_undone(desk, name)


def test_lock_whose_answer_was_lost_is_freed(desk: Desk) -> None:
    desk.kube.fail("json_patch_node", LOST, is_served=True)
    assert "no answer" in desk.bind("b", "n2")
    assert_undone(desk, "b")


def test_binding_whose_answer_was_lost_is_a_binding(desk: Desk) -> None:
    desk.kube.fail("bind_pod", LOST, is_served=True)
    assert desk.bind("b", "n2") == ""
    assert desk.held()["b"] == 6000
    assert desk.lock("n2").endswith(",default,b")


def test_binding_that_nobody_can_tell_keeps_everything(desk: Desk) -> None:
    desk.kube.fail("bind_pod", LOST, is_served=True)
    desk.kube.fail("read_pod", LOST)
    assert "is unknown" in desk.bind("b", "n2")
    assert desk.held()["b"] == 6000
    assert desk.notes_of("b")[nvidia_names.POD_ALLOCATED]
    assert desk.lock("n2").endswith(",default,b")


@shows(
    "E2",
    fault="a binding is not answered, and the reservation can't be taken back either",
    happens="its cards stay taken until the pod is written: the binding may still arrive",
)
def test_cards_of_a_binding_that_may_still_arrive_stay_taken(desk: Desk) -> None:
    desk.kube.fail("bind_pod", LOST)
    desk.kube.fail("json_patch_pod", BROKEN)
    sent = desk.pod("a")
    assert "no answer" in desk.bind("a", "n1")
    desk.add_pod("c")
    assert desk.choose("c", "n1") == ""
    assert [pod.name for pod in desk.state.leftovers()] == ["a"]
    desk.kube.bind_pod(sent, "n1", {})  # it arrives
    desk.sync()
    assert desk.held()["a"] == 6000
    assert desk.choose("c", "n1") == ""


def not_undone(desk: Desk) -> None:
    desk.kube.fail("bind_pod", LOST)
    desk.kube.fail("json_patch_pod", BROKEN)
    desk.bind("a", "n1")


def not_found_out(desk: Desk) -> None:
    desk.kube.fail("bind_pod", LOST)
    desk.kube.fail("read_pod", LOST)
    desk.bind("a", "n1")


def of_an_earlier_term(desk: Desk) -> None:
    desk.state.begin_term(SCHEDULER)


def ask_again(desk: Desk) -> None:
    desk.ask("a")


def bind_again(desk: Desk) -> None:
    desk.bind("a", "n1")


@shows(
    "E2",
    fault="a binding may still arrive, and its pod can't be written when it is decided about again",
    happens="nothing is decided: its cards stay taken until the pod is bound, deleted or written",
)
@pytest.mark.parametrize("again", [ask_again, bind_again])
@pytest.mark.parametrize("leave", [not_undone, not_found_out, of_an_earlier_term])
def test_pod_that_can_t_be_written_keeps_the_cards_of_a_binding_that_may_still_arrive(
    desk: Desk, leave: Callable[[Desk], None], again: Callable[[Desk], None]
) -> None:
    sent = desk.pod("a")
    leave(desk)
    desk.kube.fail("json_patch_pod", BROKEN)
    desk.kube.fail("patch_pod_exactly", BROKEN)
    again(desk)
    assert desk.held()["a"] == 6000
    desk.kube.bind_pod(sent, "n1", {})  # it arrives
    desk.sync()
    assert desk.held() == {"a": 6000, "b": 6000}


def test_second_bind_to_the_same_node_succeeds(desk: Desk) -> None:
    assert desk.bind("a", "n1") == ""
    desk.kube.calls.clear()
    assert desk.bind("a", "n1") == ""
    assert "bind_pod" not in desk.kube.calls


def test_second_bind_does_not_call_a_served_pod_back(desk: Desk) -> None:
    desk.bind("b", "n2")
    desk.edit_pod("b", annotations={names.POD_BIND_PHASE: names.PHASE_SUCCESS})
    desk.kube.merge_patch_node("n2", {names.NODE_LOCK: None})
    assert desk.bind("b", "n2") == ""
    assert desk.notes_of("b")[names.POD_BIND_PHASE] == names.PHASE_SUCCESS
    assert desk.lock("n2") == ""


def test_bind_to_another_node_than_bound_is_refused(desk: Desk) -> None:
    desk.bind("a", "n1")
    assert "bound to node n1" in desk.bind("a", "n2")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        pytest.param("n2", "reservation is on node n1", id="another node"),
        pytest.param("nowhere", "does not exist", id="unknown node"),
    ],
)
def test_bind_elsewhere_is_refused_and_frees_the_room(desk: Desk, node: str, why: str) -> None:
    assert why in desk.bind("a", node)
    assert_undone(desk, "a")


def test_bind_without_reservation_places_the_pod_or_is_refused(desk: Desk) -> None:
    desk.add_pod("c")
    desk.add_pod("d", memory_mib=1000)
    desk.sync()
    assert "can't make one there now" in desk.bind("c", "n1")
    assert desk.pod("c").node_name == ""
    assert desk.bind("d", "n1") == ""
    assert desk.held()["d"] == 1000


def test_bind_of_another_uid_is_refused(desk: Desk) -> None:
    assert "replaced by another pod" in desk.bind("a", "n1", uid="older")
    assert desk.held()["a"] == 6000


def test_bind_of_a_deleted_pod_is_refused(desk: Desk) -> None:
    desk.delete_pod("a")
    desk.sync()
    assert "not found" in desk.bind("a", "n1")
    assert "a" not in desk.held()


def test_bind_on_a_card_that_is_over_committed_is_refused(desk: Desk) -> None:
    foreign = {
        names.POD_NODE: "n1",
        names.POD_TIME: str(int(desk.clock.now())),
        nvidia_names.POD_ALLOCATED: "GPU-n1-0,NVIDIA,6000,0:;",
    }
    desk.add_pod("foreign", annotations=foreign)
    desk.edit_pod("foreign", spec={"nodeName": "n1"})
    desk.sync()
    assert "no longer fits: GPU-n1-0" in desk.bind("a", "n1")
    assert_undone(desk, "a")


def test_bind_uses_the_newest_reservation_where_the_watch_lags(desk: Desk) -> None:
    desk.clock.advance(5.0)
    assert desk.choose("a", "n1") == "n1"
    assert desk.bind("a", "n1") == ""
    assert desk.pod("a").node_name == "n1"


def test_bind_stops_where_another_scheduler_was_quicker(desk: Desk) -> None:
    desk.edit_pod("b", spec={"nodeName": "n1"})
    assert "is now bound to node n1" in desk.bind("b", "n2")
    assert desk.lock("n2") == ""
    assert nvidia_names.POD_ALLOCATED in desk.notes_of("b")


def test_binding_survives_a_write_that_has_nothing_to_do_with_it(desk: Desk) -> None:
    desk.kube.before["bind_pod"] = lambda: desk.edit_pod("b", annotations={"team": "x"})
    assert desk.bind("b", "n2") == ""
    assert desk.pod("b").node_name == "n2"
    assert desk.held()["b"] == 6000


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        pytest.param(
            {names.POD_TIME: "1", names.POD_NODE: "n1"},
            "carries another reservation",
            id="another decision",
        ),
        pytest.param({names.POD_BIND_PHASE: names.PHASE_FAILED}, "was given up", id="given up"),
    ],
)
def test_slow_binding_never_meets_another_reservation(
    desk: Desk, annotations: dict[str, str], why: str
) -> None:
    # as after a long pause of this replica, in which another replica took over
    desk.kube.before["bind_pod"] = lambda: desk.edit_pod("a", annotations=annotations)
    assert why in desk.bind("a", "n1")
    assert desk.pod("a").node_name == ""
    assert "a" not in desk.held()


def test_pod_without_cards_is_bound_as_it_is(desk: Desk) -> None:
    desk.add_pod("plain", Box(cards=0))
    desk.sync()
    assert desk.bind("plain", "n1") == ""
    assert names.POD_BIND_PHASE not in desk.notes_of("plain")


# -- the lock --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param({}, id="it is gone"),
        pytest.param({"phase": "Failed"}, id="it has ended"),
        pytest.param({"bind": names.PHASE_SUCCESS}, id="it is served"),
        pytest.param({"bind": names.PHASE_FAILED}, id="it was refused"),
        pytest.param({"node": "n1"}, id="it went to another node"),
        pytest.param({"node": ""}, id="it lost its reservation"),
    ],
)
def test_lock_whose_pod_needs_it_no_more_is_taken_over(desk: Desk, owner: dict[str, str]) -> None:
    if owner:
        notes = {
            names.POD_NODE: owner.get("node", "n2"),
            names.POD_BIND_PHASE: owner.get("bind", names.PHASE_ALLOCATING),
        }
        desk.add_pod("owner", annotations=notes)
        desk.edit_pod("owner", status={"phase": owner.get("phase", "Pending")})
    desk.lock("n2", encode_lock(desk.clock.now(), "default", "owner"))
    desk.sync()
    assert "is locked by pod default/owner" in desk.bind("b", "n2")
    desk.clock.advance(QUIET_S - 0.1)
    assert "is locked by pod default/owner" in desk.bind("b", "n2")
    desk.clock.advance(0.2)
    assert desk.bind("b", "n2") == ""
    assert desk.lock("n2").endswith(",default,b")


def test_held_lock_refuses_after_the_wait_and_stays(desk: Desk) -> None:
    held(desk)
    text = desk.lock("n2")
    assert "locked by pod default/owner" in desk.bind("b", "n2")
    assert desk.lock("n2") == text
    assert desk.results[-1] == "lock-held"
    assert "b" not in desk.held()


def test_held_lock_is_waited_for() -> None:
    desk = Desk(lock_wait_s=5.0)
    desk.add_node("n2", has_identity=False)
    desk.add_pod("b")
    desk.sync()
    desk.choose("b", "n2")
    held(desk)
    desk.sync()
    reads = []

    def freed() -> None:
        reads.append(1)
        desk.kube.merge_patch_node("n2", {names.NODE_LOCK: None})
        desk.sync()

    desk.kube.before["read_pod"] = lambda: desk.kube.before.update(read_node=freed)
    assert desk.bind("b", "n2") == ""
    assert reads == [1]


def test_lost_lead_leaves_lock_and_reservation_to_the_next_leader(desk: Desk) -> None:
    # by now they may be the next leader's own, who binds the same pod
    desk.kube.before["json_patch_node"] = desk.lose_lead
    with pytest.raises(NotLeading):
        desk.bind("b", "n2")
    assert desk.lock("n2").endswith(",default,b")
    assert desk.notes_of("b")[nvidia_names.POD_ALLOCATED]
    assert desk.pod("b").node_name == ""
    assert "b" not in desk.held()


def held(desk: Desk) -> None:
    """n2's lock belongs to a pod that waits to be served."""
    notes = {names.POD_NODE: "n2", names.POD_BIND_PHASE: names.PHASE_ALLOCATING}
    desk.add_pod("owner", annotations=notes)
    desk.lock("n2", encode_lock(desk.clock.now(), "default", "owner"))


def test_every_failure_is_told(desk: Desk) -> None:
    desk.kube.fail("bind_pod", NotFound("pods a not found", 404))
    desk.bind("a", "n1")
    assert (desk.notes[-1].reason, desk.notes[-1].is_warning) == ("BindingFailed", True)
    assert "not found" in desk.notes[-1].message
    assert FILTER_FAILED not in {note.reason for note in desk.notes}


@pytest.mark.parametrize(
    ("owner", "waits"),
    [
        pytest.param({}, True, id="still to be served"),
        pytest.param({"phase": "Running"}, False, id="it runs: whatever its annotations say"),
        pytest.param({"phase": "Failed"}, False, id="it has ended"),
        pytest.param({"node": "n1"}, False, id="on another node"),
        pytest.param({"bind": names.PHASE_SUCCESS}, False, id="served"),
        pytest.param({"age_s": 301.0}, False, id="bound too long ago"),
    ],
)
def test_bind_waits_for_the_pod_before_though_no_lock_stands(
    desk: Desk, owner: dict[str, str | float], waits: bool
) -> None:
    desk.add_pod("before", memory_mib=1000)
    desk.sync()
    node = str(owner.get("node", "n2"))
    assert desk.choose("before", node) == node
    assert desk.bind("before", node) == ""
    desk.kube.merge_patch_node("n2", {names.NODE_LOCK: None})  # late, by the plugin's retry
    notes = {names.POD_BIND_PHASE: owner.get("bind", names.PHASE_ALLOCATING)}
    desk.edit_pod("before", annotations=notes, status={"phase": owner.get("phase", "Pending")})
    desk.sync()
    desk.clock.advance(float(owner.get("age_s", 0.0)))
    assert desk.choose("b", "n2") == "n2"
    error = desk.bind("b", "n2")
    assert error == ("the plugin of node n2 has still to serve pod default/before" * waits)
    assert desk.pod("b").node_name == ("" if waits else "n2")


def test_pod_whose_binding_is_in_doubt_is_waited_for(desk: Desk) -> None:
    desk.kube.fail("bind_pod", LOST, is_served=True)
    desk.kube.fail("read_pod", LOST)
    assert "is unknown" in desk.bind("b", "n2")
    desk.kube.merge_patch_node("n2", {names.NODE_LOCK: None})
    desk.add_pod("c", memory_mib=1000)
    desk.sync()
    desk.choose("c", "n2")
    assert "has still to serve pod default/b" in desk.bind("c", "n2")


# -- the fence -------------------------------------------------------------------------------------


@shows(
    "E10",
    fault="the Lease is lost while a decision is under way",
    happens="it is not written any more",
)
def test_binding_is_not_repeated_after_the_lead_was_lost(desk: Desk) -> None:
    desk.kube.before["bind_pod"] = lambda: desk.edit_pod("a", annotations={"team": "x"})
    desk.kube.before["read_pod"] = desk.lose_lead
    with pytest.raises(NotLeading):
        desk.bind("a", "n1")
    assert desk.pod("a").node_name == ""
    assert "a" not in desk.held()


def test_reservation_is_not_written_after_the_lead_was_lost(desk: Desk) -> None:
    desk.add_pod("c", memory_mib=1000)
    old = desk.kube.store.read("pods", "default", "c")
    desk.edit_pod("c", annotations={"team": "x"})
    desk.sync()
    desk.kube.before["read_pod"] = desk.lose_lead
    with pytest.raises(NotLeading):
        desk.ask(old)
    assert nvidia_names.POD_ALLOCATED not in desk.notes_of("c")
    assert "c" not in desk.held()


@shows(
    "E10",
    fault="a leader's last binding is still under way when another replica leads",
    happens="its cards stay taken until the pod is written, so that they are given out once",
)
def test_reservations_of_an_earlier_term_are_void_and_keep_their_cards(desk: Desk) -> None:
    sent = desk.pod("a")
    desk.state.begin_term(SCHEDULER)
    assert {pod.name for pod in desk.state.leftovers()} == {"a", "b"}
    desk.add_pod("c")
    assert desk.choose("c", "n1") == ""
    desk.kube.bind_pod(sent, "n1", {})  # it arrives
    desk.sync()
    assert desk.held() == {"a": 6000, "b": 6000}
    desk.state.learned(desk.writer.clear(desk.state.leftovers()[0], desk.fence()))
    assert desk.held() == {"a": 6000}
    assert desk.choose("c", "n1") == ""
    assert desk.choose("c", "n2") == "n2"


def test_reservation_for_another_scheduler_is_not_kept_by_a_new_term(desk: Desk) -> None:
    desk.state.begin_term("volcano")
    assert desk.held() == {}
