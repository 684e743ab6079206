"""A pod that kube-scheduler gives up after the filter holds no cards; every other one does."""

from __future__ import annotations

import pytest

from hami_node.extender.state.pod_book import SETTLING_S
from hami_node.extender.sweeper import Releaser
from hami_node.vendors.nvidia import names as nvidia_names
from tests.unit.extender.desk import Desk


def given_up(
    desk: Desk,
    name: str,
    why: str = "no volume",
    *,
    reason: str = "Unschedulable",
    since: str = "1",
) -> None:
    """What kube-scheduler writes."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": why,
        "lastTransitionTime": since,
    }
    desk.edit_pod(name, status={"conditions": [condition]})


def look(desk: Desk, seconds: float = SETTLING_S) -> None:
    desk.clock.advance(seconds)
    Releaser(desk.state, desk.writer, desk.clock, desk.fence).look()


@pytest.fixture
def desk() -> Desk:
    desk = Desk("n1")
    desk.add_pod("a")
    desk.sync()
    return desk


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulerError"])
def test_pod_that_fails_after_the_filter_gives_its_cards_back(desk: Desk, reason: str) -> None:
    desk.choose("a")
    given_up(desk, "a", reason=reason)
    desk.sync()
    look(desk)
    assert desk.held() == {}
    assert nvidia_names.POD_ALLOCATED not in desk.notes_of("a")
    desk.add_pod("b")
    assert desk.choose("b") == "n1"


def test_condition_of_the_attempt_before_releases_nothing(desk: Desk) -> None:
    given_up(desk, "a")
    desk.sync()
    desk.choose("a")
    desk.edit_pod("a", annotations={"x": "y"})
    desk.sync()
    look(desk, 60.0)
    assert desk.held() == {"a": 6000}


def test_condition_that_the_caller_knew_and_the_watch_shows_late_releases_nothing(
    desk: Desk,
) -> None:
    given_up(desk, "a")
    desk.choose("a")
    desk.sync()
    look(desk)
    assert desk.held() == {"a": 6000}


@pytest.mark.parametrize(
    "fields",
    [{"status": "True"}, {"reason": "SchedulingGated"}, {"type": "Ready"}, {"reason": None}, {}],
)
def test_other_conditions_release_nothing(desk: Desk, fields: dict[str, str | None]) -> None:
    desk.choose("a")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"} | fields
    desk.edit_pod("a", status={"conditions": [condition] if fields else []})
    desk.sync()
    look(desk)
    assert desk.held() == {"a": 6000}


def test_new_message_after_the_reservation_is_a_failure(desk: Desk) -> None:
    given_up(desk, "a", "no card")
    desk.sync()
    desk.choose("a")
    given_up(desk, "a", "no volume")
    desk.sync()
    look(desk)
    assert desk.held() == {}


def test_pod_that_is_being_bound_keeps_its_cards(desk: Desk) -> None:
    desk.choose("a")
    given_up(desk, "a")
    desk.sync()
    with desk.state.binding(desk.pod("a")):
        look(desk)
        assert desk.held() == {"a": 6000}


def test_bound_pod_keeps_its_cards(desk: Desk) -> None:
    desk.choose("a")
    given_up(desk, "a")
    desk.sync()
    assert desk.bind("a", "n1") == ""
    look(desk)
    assert desk.held() == {"a": 6000}
    assert nvidia_names.POD_ALLOCATED in desk.notes_of("a")


def test_pod_that_is_filtered_again_meanwhile_keeps_the_new_cards(desk: Desk) -> None:
    desk.choose("a")
    given_up(desk, "a")
    desk.sync()
    desk.choose("a")
    look(desk)
    assert desk.held() == {"a": 6000}


def test_replica_that_lost_the_lead_writes_no_pod() -> None:
    desk = Desk("n1", is_patched=True)
    desk.add_pod("a")
    desk.sync()
    desk.choose("a")
    given_up(desk, "a")
    desk.sync()
    desk.lose_lead()
    look(desk)
    assert nvidia_names.POD_ALLOCATED in desk.notes_of("a")
