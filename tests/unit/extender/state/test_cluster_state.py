from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.errors import Conflict, KubeError
from hami_node.extender.sweeper import CLEARING_S
from hami_node.model import ContainerKind, Uuid
from hami_node.simulate.store import Json
from hami_node.vendors.holding import UNBOUND_S
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.reliability import shows
from tests.unit.extender.desk import Desk


@pytest.fixture
def desk() -> Desk:
    """One node with one card of 10,000 MiB; `a` wants 6,000 of them."""
    desk = Desk("n1", is_patched=True)
    desk.add_pod("a")
    desk.sync()
    return desk


def test_reservation_survives_watch_event_from_before(desk: Desk) -> None:
    old = desk.pod("a")
    desk.choose("a")
    desk.state.pod_changed(None, old)
    assert desk.held() == {"a": 6000}


def test_time_that_somebody_writes_on_an_unbound_pod_frees_nothing(desk: Desk) -> None:
    desk.choose("a")
    desk.edit_pod("a", annotations={names.POD_TIME: str(int(desk.clock.now() - UNBOUND_S) - 1)})
    desk.sync()
    desk.sweep()
    assert desk.held() == {"a": 6000}


def test_bound_reservation_never_expires(desk: Desk) -> None:
    desk.choose("a")
    assert desk.bind("a", "n1") == ""
    desk.clock.advance(100_000.0)
    desk.sweep()
    desk.sync()
    desk.sweep()
    assert desk.held() == {"a": 6000}


def test_expired_reservation_is_a_leftover_until_it_is_cleared(desk: Desk) -> None:
    desk.choose("a")
    desk.clock.advance(UNBOUND_S + 1.0)
    desk.sweep()
    assert [pod.name for pod in desk.state.leftovers()] == ["a"]
    desk.state.learned(desk.writer.clear(desk.state.leftovers()[0], desk.fence()))
    assert desk.state.leftovers() == ()
    assert nvidia_names.POD_ALLOCATED not in desk.notes_of("a")


def test_pod_stays_bound_when_the_watch_shows_what_stood_before(desk: Desk) -> None:
    desk.choose("a")
    reserved = desk.pod("a")
    desk.state.bound(reserved.uid, "n1", {})
    desk.state.pod_changed(None, reserved)
    latest = desk.state.latest(reserved.uid)
    assert latest is not None
    assert latest.node_name == "n1"
    assert desk.held() == {"a": 6000}


def test_reservation_outlasts_its_time_while_it_is_being_bound(desk: Desk) -> None:
    desk.choose("a")
    with desk.state.binding(desk.pod("a")):
        desk.clock.advance(1000.0)
        desk.sweep()
        assert desk.held() == {"a": 6000}


def test_pod_that_came_and_went_unseen_is_dropped(desk: Desk) -> None:
    desk.add_pod("b", memory_mib=1000)
    assert desk.choose("b") == "n1"
    desk.delete_pod("b")
    desk.sweep()
    assert desk.held() == {}
    assert desk.state.latest("uid-b") is None


def test_pod_that_the_watch_has_still_to_show_is_kept(desk: Desk) -> None:
    version = desk.kube.store.version
    desk.add_pod("b", memory_mib=1000)
    desk.choose("b")
    desk.state.sweep(["uid-a"], version)
    assert desk.held() == {"b": 1000}


def test_pod_that_is_deleted_unbound_holds_nothing(desk: Desk) -> None:
    desk.choose("a")
    desk.begin_deletion("a")
    desk.sync()
    assert desk.held() == {}


@shows(
    "E2",
    fault="a binding's outcome is unknown, and kube-scheduler does not come back to the pod",
    happens="the next sweep finds out: the pod is bound, or loses its reservation and its cards; a "
    "binding that arrives later is refused",
)
def test_doubt_that_no_filter_ends_is_ended_by_the_sweeper(desk: Desk) -> None:
    desk.choose("a")
    sent = desk.pod("a")
    desk.kube.fail("bind_pod", KubeError("lost"))
    desk.kube.fail("read_pod", KubeError("down"))
    assert "is unknown" in desk.bind("a", "n1")
    desk.clear_leftovers()
    assert desk.held() == {}
    assert not desk.state.may_arrive("uid-a")
    with pytest.raises(Conflict):
        desk.kube.bind_pod(sent, "n1", {})


def test_doubt_about_a_pod_that_was_bound_is_ended_by_the_sweeper(desk: Desk) -> None:
    desk.choose("a")
    desk.kube.fail("bind_pod", KubeError("lost"), is_served=True)
    desk.kube.fail("read_pod", KubeError("down"))
    assert "is unknown" in desk.bind("a", "n1")
    desk.clear_leftovers()
    assert desk.held() == {"a": 6000}
    assert not desk.state.may_arrive("uid-a")
    assert desk.pod("a").annotations[names.POD_NODE] == "n1"


def test_reservation_that_somebody_removed_frees_its_cards(desk: Desk) -> None:
    desk.choose("a")
    desk.kube.store.change("pods", "default", "a", _without_annotations)
    desk.sync()
    assert desk.held() == {}


def _without_annotations(body: Json) -> Json:
    return body | {"metadata": body["metadata"] | {"annotations": {}}}


@pytest.mark.parametrize("then", ["Succeeded", "unbound"])
def test_watch_that_goes_back_is_believed(desk: Desk, then: str) -> None:
    # the cluster was restored from a backup: its versions begin again long before
    desk.choose("a")
    desk.bind("a", "n1")
    desk.sync()
    bound = desk.pod("a")
    restored = replace(bound, resource_version="12", phase=then)
    if then == "unbound":
        restored = replace(restored, node_name="", annotations={}, phase="Pending")
    desk.state.pod_changed(bound, restored)
    assert desk.held() == {}
    assert desk.state.latest("uid-a") in (None, restored)
    desk.state.pod_changed(restored, replace(bound, resource_version="13"))
    assert desk.held() == {"a": 6000}


def test_node_that_vanishes_offers_nothing_and_keeps_its_pods_grants(desk: Desk) -> None:
    desk.choose("a")
    desk.bind("a", "n1")
    desk.kube.store.delete("nodes", "", "n1")
    desk.sync()
    assert desk.state.usage()["n1"] == {}
    desk.add_node("n1")
    desk.sync()
    assert desk.state.usage()["n1"][Uuid("GPU-n1-0")].memory_used_mib == 6000


@shows(
    "E14",
    fault="kubelet runs init containers again, with a new sandbox or after a reboot, and asks "
    "nobody",
    happens="what they hold is kept for them as long as their pod lives: no other pod got it",
)
def test_init_containers_keep_their_room_for_the_pods_life(desk: Desk) -> None:
    desk.add_pod(
        "i",
        Box(name="init", memory_mib=8000, kind=ContainerKind.INIT),
        Box(name="main", memory_mib=1000),
    )
    assert desk.choose("i") == "n1"
    assert desk.bind("i", "n1") == ""
    desk.sync()
    assert desk.held() == {"i": 8000}
    ended = [{"name": "init", "state": {"terminated": {"exitCode": 0}}}]
    desk.edit_pod("i", status={"initContainerStatuses": ended})
    desk.sync()
    assert desk.held() == {"i": 8000}
    desk.add_pod("late", memory_mib=3000)
    assert desk.choose("late", "n1") == ""


# -- what the sweeper writes -----------------------------------------------------------------------
def carriers(desk: Desk) -> list[str]:
    """Pods that carry a reservation."""
    return [
        pod.name for pod in desk.kube.list_pods() if nvidia_names.POD_ALLOCATED in pod.annotations
    ]


def expired(desk: Desk) -> None:
    """`a` and `b` carry reservations that no longer count."""
    desk.add_pod("b", memory_mib=1000)
    assert (desk.choose("a"), desk.choose("b")) == ("n1", "n1")
    desk.clock.advance(UNBOUND_S + 1.0)
    desk.sync()
    desk.sweep()


def test_leftover_of_another_scheduler_stays_on_its_pod(desk: Desk) -> None:
    # its own scheduler still means to bind it, and its plugin needs to find the grant then
    desk.edit_pod("a", spec={"schedulerName": "their-scheduler"})
    expired(desk)
    desk.clear_leftovers()
    assert carriers(desk) == ["a"]


def test_pod_that_cant_be_written_keeps_no_other_from_being_cleared(desk: Desk) -> None:
    expired(desk)
    desk.kube.fail("json_patch_pod", KubeError("no", 500))
    desk.clear_leftovers()
    assert len(carriers(desk)) == 1
    desk.clear_leftovers()
    assert carriers(desk) == []


def test_slow_api_server_ends_the_clearing_until_the_next_sweep(desk: Desk) -> None:
    # the sweeper has nodes and time limits to look after as well
    expired(desk)
    desk.kube.before["json_patch_pod"] = lambda: desk.clock.advance(CLEARING_S + 1.0)
    desk.clear_leftovers()
    assert len(carriers(desk)) == 1
    desk.clear_leftovers()
    assert carriers(desk) == []
