"""Nodes that are left alone: whom a failure closes them to, for how long, and what ends that."""

from __future__ import annotations

from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_node.engine.back_off import (
    FIRST_S,
    FORGET_S,
    LONGEST_S,
    MAX_OWNERS,
    PROLIFIC,
    TRIAL_S,
    WINDOW_S,
    BackOff,
    Breadth,
    Failure,
    Whose,
    wait_s,
)

NOW = 1_000_000.0


class Word(StrEnum):
    ODD = "odd"


ANA, BEN = Whose(namespace="a", owner="x"), Whose(namespace="b", owner="y")
ANA_TOO = Whose(namespace="a", owner="z")


class Story:
    """A book and its time."""

    def __init__(self) -> None:
        self.book, self.now_s, self.pods = BackOff(), NOW, 0

    def fails(
        self, whose: Whose, node: str = "n", *, is_the_nodes: bool = False, sent_s: float = -1.0
    ) -> None:
        self.pods += 1
        failure = Failure(
            node=node,
            whose=whose,
            uid=f"uid-{self.pods}",
            fault=Word.ODD,
            is_the_nodes=is_the_nodes,
            sent_s=self.now_s if sent_s < 0 else sent_s,
            failed_s=self.now_s,
        )
        self.book.failed(failure, self.now_s)

    def serves(self, whose: Whose, node: str = "n") -> None:
        self.book.served(node, whose, self.now_s, self.now_s)

    def closed(self, whose: Whose, uid: str = "other") -> set[str]:
        return set(self.book.closed_to(whose, uid, self.now_s))

    def waits(self, whose: Whose) -> float:
        hold = self.book.closed_to(whose, "other", self.now_s)["n"]
        return hold.until_s - self.now_s


@pytest.fixture
def story() -> Story:
    return Story()


def test_one_owners_failure_closes_the_node_to_that_owner_alone(story: Story) -> None:
    story.fails(ANA)
    assert story.closed(ANA) == {"n"}
    assert not story.closed(ANA_TOO)
    assert not story.closed(BEN)
    story.now_s += FIRST_S
    assert not story.closed(ANA)


def test_two_owners_close_it_to_their_namespace_two_namespaces_to_all(story: Story) -> None:
    other = Whose(namespace="a", owner="third")
    story.fails(ANA)
    story.fails(ANA_TOO)
    assert story.closed(other) == {"n"}
    assert not story.closed(BEN)
    story.fails(BEN)
    assert story.closed(Whose(namespace="c", owner="w")) == {"n"}


def test_the_nodes_own_fault_closes_it_to_all_at_once(story: Story) -> None:
    story.fails(ANA, is_the_nodes=True)
    assert story.closed(BEN) == {"n"}
    assert [hold.breadth for hold in story.book.holds()] == [Breadth.NODE]


def test_waits_double_with_every_wave_up_to_the_longest(story: Story) -> None:
    found = []
    for _ in range(8):
        story.fails(ANA)
        found.append(story.waits(ANA))
        story.now_s += found[-1]
    assert found == [10, 20, 40, 80, 160, 300, 300, 300]


def test_pods_sent_together_are_one_wave(story: Story) -> None:
    sent_s = story.now_s
    for _ in range(50):
        story.fails(ANA, is_the_nodes=True, sent_s=sent_s)
        story.now_s += 0.01
    assert story.waits(BEN) <= FIRST_S


def test_a_pod_that_is_seen_twice_counts_once(story: Story) -> None:
    story.fails(ANA)
    story.now_s += FIRST_S
    story.pods = 0
    story.fails(ANA)
    assert not story.closed(ANA)


def test_after_the_wait_one_pod_tries_and_the_others_go_on_waiting(story: Story) -> None:
    story.fails(ANA, is_the_nodes=True)
    story.now_s += FIRST_S
    assert not story.closed(BEN, "first")
    story.book.sent("n", BEN, "first", story.now_s)
    assert not story.closed(BEN, "first")
    assert story.closed(BEN, "second") == {"n"}
    assert story.closed(ANA, "third") == {"n"}
    story.serves(BEN)
    assert not story.closed(ANA, "third")
    assert not list(story.book.holds())


@pytest.mark.parametrize("how", ["gone", "elsewhere", "never heard of"])
def test_a_pod_that_never_tries_makes_room_for_the_next(story: Story, how: str) -> None:
    story.fails(ANA, is_the_nodes=True)
    story.now_s += FIRST_S
    story.book.sent("n", BEN, "first", story.now_s)
    if how == "gone":
        story.book.ended("first")
    elif how == "elsewhere":
        story.book.ended("first")
        story.book.sent("m", BEN, "first", story.now_s)
    else:
        story.now_s += TRIAL_S
    assert not story.closed(BEN, "second")


def test_a_trial_that_fails_doubles_the_wait(story: Story) -> None:
    story.fails(ANA, is_the_nodes=True)
    story.now_s += FIRST_S
    story.book.sent("n", BEN, "uid-2", story.now_s)
    story.fails(BEN, is_the_nodes=True, sent_s=0.0)
    assert story.waits(ANA) == 2 * FIRST_S


def test_what_others_got_served_cuts_a_wait_short_only_once(story: Story) -> None:
    for _ in range(4):
        story.fails(ANA)
        story.now_s += wait_s(5)
    story.fails(ANA)
    story.now_s += 1
    story.serves(BEN)
    assert not story.closed(ANA)
    story.now_s += 1
    story.fails(ANA)
    story.now_s += 1
    story.serves(BEN)
    assert story.closed(ANA) == {"n"}, "its own doing: it waits"


def test_a_node_that_changed_is_tried_at_once_but_not_again_and_again(story: Story) -> None:
    story.fails(ANA, is_the_nodes=True)
    story.book.renewed("n", story.now_s)
    assert not story.closed(BEN)
    story.now_s += 1
    story.fails(ANA, is_the_nodes=True)
    story.book.renewed("n", story.now_s)
    assert story.waits(BEN) == 2 * FIRST_S


def test_another_node_of_that_name_begins_anew(story: Story) -> None:
    story.fails(ANA, is_the_nodes=True)
    story.book.forget("n")
    assert not story.closed(BEN)


def test_old_failures_do_not_count_nor_those_before_a_success(story: Story) -> None:
    old = Failure(
        node="n",
        whose=ANA,
        uid="old",
        fault=Word.ODD,
        is_the_nodes=True,
        sent_s=0.0,
        failed_s=story.now_s - WINDOW_S - 1,
    )
    story.book.failed(old, story.now_s)
    assert not list(story.book.holds())
    story.serves(BEN)
    story.fails(ANA)  # at the same second
    assert not list(story.book.holds())


def test_who_fails_everywhere_is_no_witness_against_any_node(story: Story) -> None:
    """A tenant with two namespaces, whose pods fail on purpose, node by node."""
    innocent = Whose(namespace="c", owner="w")
    worst = 0
    for number in range(200):
        story.fails(Whose(namespace="a", owner=f"o{number}"), f"n{number}")
        story.fails(Whose(namespace="b", owner=f"o{number}"), f"n{number}")
        worst = max(worst, len(story.closed(innocent)))
    assert worst <= PROLIFIC
    story.now_s += LONGEST_S
    assert not story.closed(innocent)


def test_a_clock_that_is_set_back_ends_waits(story: Story) -> None:
    story.fails(ANA, is_the_nodes=True)
    story.now_s -= 100_000
    assert not story.closed(BEN)


def test_nothing_is_kept_for_ever(story: Story) -> None:
    for number in range(500):
        story.fails(Whose(namespace="a", owner=f"o{number}"))
    assert len(list(story.book.holds())) <= MAX_OWNERS + 2
    story.serves(ANA, "m")
    story.now_s += LONGEST_S + FORGET_S + 1
    story.book.sweep(story.now_s)
    book = story.book
    assert not any((book._holds, book._on, book._to, book._served, book._failed_on))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fail", "node", "serve", "send", "end", "renew", "sweep"]),
        st.sampled_from([ANA, ANA_TOO, BEN]),
        st.sampled_from(["n", "m"]),
        st.floats(0, 400),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_no_node_is_closed_for_long_after_the_last_failure(
    steps: list[tuple[str, Whose, str, float]],
) -> None:
    story = Story()
    for kind, whose, node, later_s in steps:
        if kind in ("fail", "node"):
            story.fails(whose, node, is_the_nodes=kind == "node")
        elif kind == "serve":
            story.serves(whose, node)
            assert node not in story.closed(whose), "who was just served may come again"
        elif kind == "send" and node not in story.closed(whose, "tries"):
            story.book.ended("tries")
            story.book.sent(node, whose, "tries", story.now_s)
            assert node not in story.closed(whose, "tries")
        elif kind == "end":
            story.book.ended("tries")
        elif kind == "renew":
            story.book.renewed(node, story.now_s)
        else:
            story.book.sweep(story.now_s)
        story.now_s += later_s
    for hold in story.book.holds():
        assert hold.until_s <= hold.failed_s + LONGEST_S
    story.now_s += LONGEST_S
    assert not story.closed(ANA)
    assert not story.closed(BEN)
