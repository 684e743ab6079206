from __future__ import annotations

from typing import Any

import pytest

from hami_node.inspection.story import MAX_EVENTS, story_of
from hami_node.wire.times import format_rfc3339

NOW_S = 1_700_000_000.0
POD: dict[str, Any] = {
    "metadata": {"namespace": "ml", "name": "big", "uid": "u1"},
    "status": {
        "conditions": [
            {"type": "Initialized", "status": "True"},
            {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"},
        ]
    },
}


def event(ago_s: float = 60, **changed: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "namespace": "ml", "name": "big", "uid": "u1"}
    plain = {
        "involvedObject": about,
        "reason": "FailedScheduling",
        "message": "no room",
        "type": "Warning",
        "source": {"component": "hami-node"},
        "lastTimestamp": format_rfc3339(NOW_S - ago_s),
    }
    return plain | changed


def test_schedulers_words_are_those_of_the_condition() -> None:
    assert story_of(POD, (), NOW_S).scheduler_said == "0/3 nodes are available"


def test_words_of_a_bound_pod_are_not_repeated() -> None:
    bound = {**POD, "status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}
    assert story_of(bound, (), NOW_S).scheduler_said == ""


def test_events_of_both_kinds_are_read() -> None:
    new = event(
        lastTimestamp=None,
        eventTime=format_rfc3339(NOW_S - 500),
        source=None,
        reportingComponent="default-scheduler",
        series={"count": 12, "lastObservedTime": format_rfc3339(NOW_S - 30)},
    )
    found = story_of(POD, [new, event(count=3)], NOW_S).events
    assert [(item.age_s, item.count, item.source) for item in found] == [
        (60, 3, "hami-node"),
        (30, 12, "default-scheduler"),
    ]


def test_newest_events_are_kept_oldest_first() -> None:
    found = story_of(POD, [event(ago) for ago in range(100)], NOW_S).events
    assert [item.age_s for item in found] == list(reversed(range(MAX_EVENTS)))


@pytest.mark.parametrize(
    "about",
    [
        {"kind": "Node", "namespace": "ml", "name": "big"},
        {"kind": "Pod", "namespace": "other", "name": "big"},
        {"kind": "Pod", "namespace": "ml", "name": "big", "uid": "of-a-pod-before"},
        None,
    ],
)
def test_events_about_others_are_left_out(about: dict[str, str] | None) -> None:
    assert story_of(POD, [event(involvedObject=about)], NOW_S).events == ()


@pytest.mark.parametrize(
    "bad", [{}, {"involvedObject": 7}, {"reason": []}, event(count="many"), event(series=[1])]
)
def test_events_that_cannot_be_read_are_left_out(bad: dict[str, Any]) -> None:
    assert len(story_of(POD, [bad, event()], NOW_S).events) == 1


def test_story_of_nothing_is_empty() -> None:
    pods: tuple[dict[str, Any], ...] = (
        {},
        {"status": {"conditions": "none"}},
        {"metadata": []},
    )
    for pod in pods:
        assert story_of(pod, (), NOW_S).scheduler_said == ""


def test_long_words_are_cut() -> None:
    (found,) = story_of(POD, [event(message="m" * 9999, reason="r" * 999)], NOW_S).events
    assert (len(found.message), len(found.reason)) == (1000, 100)
