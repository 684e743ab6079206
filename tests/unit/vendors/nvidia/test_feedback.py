"""Who waits, and whose core limit counts, pass by pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.model import Uuid
from hami_node.vendors.nvidia.regions.feedback import WAIT, Feedback, Tenant, new_feedback, released

A, B = Uuid("GPU-a"), Uuid("GPU-b")
NOW_S: Final = 1_000_000.0
STARTED: Final = Feedback(recent_kernel=2, utilization_switch=1)


def tenant(
    key: str, *cards: Uuid, priority: int = 1, ago_s: float | None = 0, feedback: Feedback = STARTED
) -> Tenant:
    """A container that launched something `ago_s` seconds ago; None: never."""
    last_s = 0 if ago_s is None else int(NOW_S - ago_s)
    return Tenant(
        key=key,
        cards=frozenset(cards or (A,)),
        priority=priority,
        feedback=feedback,
        last_launch_s=last_s,
    )


def old(key: str, mark: int, *, priority: int = 1, switch: int = 1) -> Tenant:
    """A container whose layout has no time of the last launch."""
    return Tenant(
        key=key,
        cards=frozenset({A}),
        priority=priority,
        feedback=Feedback(recent_kernel=mark, utilization_switch=switch),
        last_launch_s=None,
    )


def told(*tenants: Tenant) -> dict[str, Feedback]:
    """The feedback of each container after a pass."""
    changed = new_feedback(tenants, NOW_S)
    return {item.key: changed.get(item.key, item.feedback) for item in tenants}


def test_alone_on_its_card_a_core_limit_does_not_count() -> None:
    assert told(tenant("a"))["a"].utilization_switch == 0


def test_two_active_containers_of_one_priority_keep_their_core_limits() -> None:
    found = told(tenant("a"), tenant("b"))
    assert {feedback.utilization_switch for feedback in found.values()} == {1}
    assert all(feedback.recent_kernel >= 0 for feedback in found.values())


def test_neighbours_on_other_cards_are_none() -> None:
    found = told(tenant("a", A), tenant("b", B))
    assert {feedback.utilization_switch for feedback in found.values()} == {0}


def test_of_several_cards_a_contended_one_suffices() -> None:
    found = told(tenant("a", A, B), tenant("b", B))
    assert {feedback.utilization_switch for feedback in found.values()} == {1}


def test_a_lower_priority_waits_while_a_higher_one_is_active() -> None:
    found = told(tenant("high", priority=0), tenant("low", priority=1))
    assert found["low"] == Feedback(recent_kernel=WAIT, utilization_switch=1)
    assert found["high"] == Feedback(recent_kernel=2, utilization_switch=0)


def test_container_whose_cards_are_not_known_any_more_is_released() -> None:
    waiting = Feedback(recent_kernel=WAIT, utilization_switch=1)
    lost = replace(tenant("lost", feedback=waiting), cards=frozenset())
    found = told(tenant("high", priority=0), lost)
    assert found["lost"] == Feedback(recent_kernel=0, utilization_switch=1)


@pytest.mark.parametrize(("ago_s", "waits"), [(0, True), (10, True), (11, False), (None, False)])
def test_activity_lasts_ten_seconds(ago_s: float | None, waits: bool) -> None:
    found = told(tenant("high", priority=0, ago_s=ago_s), tenant("low", priority=1))
    assert (found["low"].recent_kernel == WAIT) is waits


def test_who_waits_goes_on_when_the_higher_priority_is_idle_or_gone() -> None:
    waiting = tenant("low", feedback=Feedback(recent_kernel=WAIT, utilization_switch=1))
    assert told(tenant("high", priority=0, ago_s=60), waiting)["low"].recent_kernel == 0
    assert told(waiting)["low"].recent_kernel == 0


def test_a_container_that_marks_no_launches_while_its_switch_is_off_still_counts() -> None:
    """Limiters from 2.8.1 on: without the time, the second tenant would never be noticed."""
    alone = Feedback(recent_kernel=0, utilization_switch=0)
    found = told(tenant("a", feedback=alone), tenant("b"))
    assert {feedback.utilization_switch for feedback in found.values()} == {1}


def test_old_layouts_count_by_their_marks() -> None:
    found = told(old("a", 2), old("b", 2))
    assert found == dict.fromkeys("ab", Feedback(recent_kernel=1, utilization_switch=1))
    found = told(old("a", 1), old("b", 2))
    assert found["a"] == Feedback(recent_kernel=0, utilization_switch=0)
    assert found["b"] == Feedback(recent_kernel=1, utilization_switch=0)


def test_a_time_in_the_future_is_no_launch() -> None:
    liar = replace(tenant("liar", priority=0), last_launch_s=2**63)
    assert told(liar, tenant("low"))["low"].recent_kernel >= 0


def test_nothing_is_written_where_nothing_changes() -> None:
    calm = tenant("a", feedback=Feedback(recent_kernel=2, utilization_switch=0))
    assert new_feedback([calm], NOW_S) == {}


def test_as_the_daemon_leaves_it_nobody_waits_and_limits_count() -> None:
    waiting = Feedback(recent_kernel=WAIT, utilization_switch=0)
    assert released(waiting) == Feedback(recent_kernel=0, utilization_switch=1)
    assert released(STARTED) == STARTED


@given(
    st.lists(
        st.builds(
            Tenant,
            key=st.uuids().map(str),
            cards=st.frozensets(st.sampled_from([A, B]), min_size=1),
            priority=st.integers(-(2**31), 2**31),
            feedback=st.builds(
                Feedback,
                recent_kernel=st.integers(-(2**31), 2**31 - 1),
                utilization_switch=st.integers(-(2**31), 2**31 - 1),
            ),
            last_launch_s=st.none() | st.integers(0, 2**64 - 1) | st.just(int(NOW_S)),
        ),
        max_size=6,
        unique_by=lambda item: item.key,
    )
)
def test_whatever_regions_hold_nobody_waits_for_nobody(tenants: list[Tenant]) -> None:
    found = told(*tenants)
    for item in tenants:
        feedback = found[item.key]
        assert feedback.utilization_switch in (0, 1)
        if feedback.recent_kernel < 0:
            assert feedback == Feedback(recent_kernel=WAIT, utilization_switch=1)
            assert any(
                other.priority < item.priority and other.cards & item.cards for other in tenants
            )
