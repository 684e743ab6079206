"""Nodes that are backed off, as those see it who only read the cluster."""

from __future__ import annotations

from hami_node.engine.place import Rules
from hami_node.inspection.cluster import inspect
from hami_node.inspection.picture import Basis, Listed, picture_of
from hami_node.inspection.pod import PodView, Verdict, explain_pod
from hami_node.inspection.waiting import waiting_in
from hami_node.view.live_picture import LivePicture
from hami_node.wire import names
from tests.unit.extender.desk import Desk

UNAVAILABLE = (
    "Allocate failed due to rpc error: code = Unavailable desc = no driver, which is unexpected"
)


def broken(message: str = UNAVAILABLE) -> Desk:
    """Two nodes, one of which just failed a pod; another pod waits."""
    desk = Desk("n0", "n1")
    desk.add_pod("first")
    desk.sync()
    assert desk.choose("first", "n0") == "n0"
    assert desk.bind("first", "n0") == ""
    desk.edit_pod(
        "first",
        annotations={names.POD_BIND_PHASE: names.PHASE_FAILED},
        status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message},
    )
    desk.add_pod("waits")
    desk.sync()
    return desk


def basis(desk: Desk) -> Basis:
    return Basis(vendors=desk.state.rules.vendors, rules=Rules())


def listed(desk: Desk) -> Listed:
    return Listed(nodes=tuple(desk.shown_nodes.values()), pods=tuple(desk.shown_pods.values()))


def why(desk: Desk) -> PodView:
    given = listed(desk)
    return explain_pod(given, desk.pod("waits"), basis(desk), desk.clock.now(), "hami-scheduler")


def test_the_problem_names_node_cause_and_time() -> None:
    desk = broken()
    given = listed(desk)
    view = inspect(given.nodes, given.pods, desk.state.rules.vendors, desk.clock.now())
    assert [problem.where for problem in view.problems] == ["node n0"]
    assert "NodeBackedOff: its device plugin did not answer" in view.problems[0].why
    assert "pod default/first: Allocate failed" in view.problems[0].why
    assert len(view.problems[0].why) < 1000
    desk.clock.advance(400)
    later = inspect(given.nodes, given.pods, desk.state.rules.vendors, desk.clock.now())
    assert not later.problems


def test_a_waiting_pod_is_told_and_not_sent_there() -> None:
    desk = broken()
    verdicts = {node.node: node for node in why(desk).nodes}
    assert verdicts["n0"].verdict is Verdict.NOT_OFFERED
    assert "NodeBackedOff" in verdicts["n0"].why
    assert verdicts["n1"].verdict is Verdict.FITS


def test_the_explanation_agrees_with_the_extender() -> None:
    desk = broken()
    desk.kube.store.delete("nodes", "", "n1")
    desk.sync()
    answer = desk.ask("waits", "n0")["FailedAndUnresolvableNodes"]["n0"]
    assert answer == why(desk).nodes[0].why
    picture = picture_of(listed(desk), basis(desk), desk.clock.now())
    pods = [desk.pod("waits")]
    (waiting,) = waiting_in(picture, pods, desk.clock.now(), "hami-scheduler")
    assert "NodeBackedOff(n0)" in waiting.why


def test_the_live_picture_closes_the_same_nodes() -> None:
    desk = broken()
    live = LivePicture(basis(desk), desk.clock)
    for thing in (*desk.shown_nodes.values(), *desk.shown_pods.values()):
        live.note(None, thing)
    while live.refresh().left:
        pass
    with live.lock, live.picture() as picture:
        assert picture.closed_to(desk.pod("waits")).keys() == {"n0"}
        assert picture.closed_to(desk.pod("waits")) == desk.state.backed_off(desk.pod("waits"))


def test_whoever_failed_for_another_owner_is_not_told_about() -> None:
    desk = broken("Allocate failed due to rpc error: code = FailedPrecondition desc = no")
    assert {node.verdict for node in why(desk).nodes} == {Verdict.FITS}


def test_a_pod_that_waits_for_the_back_off_alone_is_told_so() -> None:
    desk = broken()
    desk.kube.store.delete("nodes", "", "n1")
    desk.sync()
    *_, last = why(desk).cures
    assert last == "or wait: when pods are sent to n0 again, it fits there"
