from __future__ import annotations

from hami_node.view.feed import KEPT, MAX_NAMES, Change, Feed


def told(feed: Feed, *names: str, waiting: bool = False) -> None:
    feed.publish(Change(nodes=frozenset(names), is_waiting_changed=waiting), {"n": len(names)})


def test_nothing_is_told_before_the_first_change() -> None:
    assert Feed().since("") is None


def test_new_listener_is_told_that_all_may_have_changed() -> None:
    feed = Feed()
    told(feed, "a")
    delta = feed.since("")
    assert delta is not None
    assert delta.change.nodes is None
    assert feed.since(delta.mark) is None


def test_listener_that_comes_back_gets_the_sum_of_what_it_missed() -> None:
    feed = Feed()
    told(feed, "a")
    first = feed.since("")
    assert first is not None
    told(feed, "b")
    told(feed, "c", waiting=True)
    delta = feed.since(first.mark)
    assert delta is not None
    assert delta.change == Change(nodes=frozenset({"b", "c"}), is_waiting_changed=True)
    assert delta.summary == {"n": 1}


def test_mark_of_another_run_or_of_long_ago_means_all() -> None:
    old, feed = Feed(), Feed()
    told(old, "x")
    told(feed, "a")
    mark, foreign = feed.since(""), old.since("")
    assert mark is not None
    assert foreign is not None
    for number in range(KEPT + 1):
        told(feed, f"n{number}")
    for text in (mark.mark, foreign.mark, "x.999999", mark.mark + "9", mark.mark + "x", "\u0662"):
        delta = feed.since(text)
        assert delta is not None
        assert delta.change.nodes is None


def test_many_names_are_not_named() -> None:
    feed = Feed()
    told(feed)
    first = feed.since("")
    assert first is not None
    told(feed, *(f"n{number}" for number in range(MAX_NAMES + 1)))
    delta = feed.since(first.mark)
    assert delta is not None
    assert delta.change.nodes is None


def test_listeners_are_limited_woken_and_let_go() -> None:
    feed, woken = Feed(most=1), list[int]()

    def wake() -> None:
        woken.append(1)

    assert feed.join(wake)
    assert not feed.join(lambda: None)
    told(feed)
    assert woken == [1]
    feed.leave(wake)
    told(feed)
    assert woken == [1]
    assert feed.join(wake)
    feed.close()
    assert len(woken) == 2
    assert not feed.join(wake)
