"""Watches against the simulated API server: resume, 410, bookmarks, outages, bad objects."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from hami_node.cluster.client import KubeClient
from hami_node.cluster.watching.object_cache import PODS
from hami_node.cluster.watching.watches import ResourceWatch, WatchTimes
from hami_node.model import Pod
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import FakeClock, RealClock
from tests.fakes.waiting import eventually
from tests.reliability import shows
from tests.unit.cluster.conftest import Connect, pod

Followed = tuple[ResourceWatch[Pod], list[tuple[str | None, str | None]]]
QUICK = WatchTimes(server_timeout_s=30.0, first_wait_s=0.02, longest_wait_s=0.1)


@pytest.fixture
def run_watch() -> Iterator[Callable[[ResourceWatch[Pod]], None]]:
    """Runs watches in threads; ends them with the test."""
    stop = threading.Event()
    running: list[tuple[ResourceWatch[Pod], threading.Thread]] = []

    def start(watch: ResourceWatch[Pod]) -> None:
        thread = threading.Thread(target=watch.run, args=(stop,), daemon=True)
        thread.start()
        running.append((watch, thread))

    yield start
    stop.set()
    for watch, thread in running:
        watch.interrupt()
        thread.join(10.0)
        assert not thread.is_alive()


@pytest.fixture
def interruptions(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """Counts the failures of watches: each is logged, all but the first of a row quietly."""
    caplog.set_level(logging.DEBUG, "hami_node.cluster.watching.watches")
    return lambda: sum(record.getMessage() == "watch_interrupted" for record in caplog.records)


@pytest.fixture
def pods_of_n1(
    kube: KubeClient, run_watch: Callable[[ResourceWatch[Pod]], None]
) -> ResourceWatch[Pod]:
    """A synced watch of the pods on n1."""
    watch = ResourceWatch(
        kube, PODS, clock=RealClock(), field_selector="spec.nodeName=n1", times=QUICK
    )
    run_watch(watch)
    eventually(watch.is_synced)
    return watch


@pytest.fixture
def followed(kube: KubeClient, run_watch: Callable[[ResourceWatch[Pod]], None]) -> Followed:
    """A synced watch of all pods, and the UIDs before and after each change that it reported."""
    seen: list[tuple[str | None, str | None]] = []
    watch = ResourceWatch(kube, PODS, clock=RealClock(), times=QUICK)
    watch.cache.follow(lambda old, new: seen.append((uid_of(old), uid_of(new))))
    run_watch(watch)
    eventually(watch.is_synced)
    return watch, seen


def names(watch: ResourceWatch[Pod]) -> list[str]:
    return [pod.name for pod in watch.cache.objects()]


def served(server: FaultyApiServer, verb: str) -> int:
    """How many lists or watches of pods the server began to answer."""
    found = server.requests(verb=verb, resource="pods")
    return sum(request.status == 200 for request in found)


def uid_of(pod: Pod | None) -> str | None:
    return None if pod is None else pod.uid


def follows(server: FaultyApiServer, watch: ResourceWatch[Pod], value: str) -> None:
    """Fail unless a change made now is seen."""
    server.annotate("pods", "p1", {"round": value}, "ns")

    def is_seen() -> bool:
        found = watch.cache.find("ns", "p1")
        return found is not None and found.annotations.get("round") == value

    eventually(is_seen)


def test_list_then_watch_sees_additions_changes_and_removals(
    server: FaultyApiServer, pods_of_n1: ResourceWatch[Pod]
) -> None:
    assert names(pods_of_n1) == ["p1"]
    server.create("pods", pod("a", "p0", "n1"))
    eventually(lambda: names(pods_of_n1) == ["p0", "p1"])
    follows(server, pods_of_n1, "1")
    server.delete("pods", "p0", "a")
    eventually(lambda: names(pods_of_n1) == ["p1"])
    assert len(server.requests(verb="list", resource="pods")) == 1


def test_selector_leaves_other_nodes_out_and_sees_a_pod_being_bound(
    server: FaultyApiServer, pods_of_n1: ResourceWatch[Pod]
) -> None:
    server.create("pods", pod("ns", "other", "n2"))
    server.create("pods", pod("ns", "free"))
    server.edit("pods", "free", lambda pod: pod["spec"].update(nodeName="n1"), "ns")
    eventually(lambda: names(pods_of_n1) == ["free", "p1"])


def test_lost_history_costs_one_new_list(
    server: FaultyApiServer, pods_of_n1: ResourceWatch[Pod]
) -> None:
    server.fail_next("watch", "pods", 500, times=2)  # so that the deletion falls between watches
    server.drop_watches()
    server.delete("pods", "p1", "ns")
    server.create("pods", pod("ns", "p2", "n1"))
    server.expire_watches()
    eventually(lambda: names(pods_of_n1) == ["p2"])
    assert len(server.requests(verb="list")) == 2


def test_bookmark_moves_the_version_on_past_other_objects_history(
    server: FaultyApiServer, pods_of_n1: ResourceWatch[Pod]
) -> None:
    """Without bookmarks a quiet watch would resume from a version that is long gone."""
    server.create("pods", pod("ns", "other", "n2"))
    newest = str(server.store.version)
    eventually(lambda: pods_of_n1._version == newest)
    server.store.oldest = server.store.version  # the history up to here is gone
    server.drop_watches()
    follows(server, pods_of_n1, "1")
    assert len(server.requests(verb="list")) == 1


@pytest.mark.parametrize("outcome", [429, 500, 503, "reset"])
def test_failing_lists_are_repeated_until_one_succeeds(
    server: FaultyApiServer,
    kube: KubeClient,
    run_watch: Callable[[ResourceWatch[Pod]], None],
    outcome: int | str,
    interruptions: Callable[[], int],
) -> None:
    server.fail_next("list", "pods", outcome, times=3)
    watch = ResourceWatch(kube, PODS, clock=RealClock(), times=QUICK)
    run_watch(watch)
    eventually(watch.is_synced)
    assert interruptions() == 3


def test_outage_keeps_the_objects_converges_afterwards_and_is_logged_once(
    server: FaultyApiServer,
    pods_of_n1: ResourceWatch[Pod],
    caplog: pytest.LogCaptureFixture,
    interruptions: Callable[[], int],
) -> None:
    server.go_down()
    eventually(lambda: interruptions() >= 3)
    assert names(pods_of_n1) == ["p1"]
    assert pods_of_n1.is_synced()
    server.create("pods", pod("ns", "p2", "n1"))
    server.start()
    eventually(lambda: names(pods_of_n1) == ["p1", "p2"])
    follows(server, pods_of_n1, "1")
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert logged.count("watch_interrupted") == 1
    assert logged.count("watch_recovered") == 1


def test_relist_does_not_sit_out_the_wait_after_a_failure(
    server: FaultyApiServer,
    kube: KubeClient,
    run_watch: Callable[[ResourceWatch[Pod]], None],
    interruptions: Callable[[], int],
) -> None:
    """A new leader waits for it, and an outage is what leaders change in."""
    times = WatchTimes(first_wait_s=600.0, longest_wait_s=600.0)
    watch = ResourceWatch(kube, PODS, clock=RealClock(), times=times)
    run_watch(watch)
    eventually(watch.is_synced)
    server.go_down()
    eventually(lambda: interruptions() == 1)
    server.start()
    watch.relist()
    eventually(watch.is_synced)


@shows(
    "N5",
    fault="watches fail ten times in a row, as in an outage of a minute",
    happens="each is resumed at the last version; nothing is listed",
)
@pytest.mark.parametrize("outcome", [500, 504, "reset"])
def test_failures_in_a_row_cost_no_list(
    server: FaultyApiServer, pods_of_n1: ResourceWatch[Pod], outcome: int | str
) -> None:
    server.fail_next("watch", "pods", outcome, times=10)
    server.drop_watches()
    follows(server, pods_of_n1, "1")
    assert len(server.requests(verb="list")) == 1


def queries(server: FaultyApiServer) -> list[dict[str, str]]:
    """What each list of pods asked for, without the selector."""
    found = server.requests(verb="list", resource="pods")
    return [
        {key: text for key, text in request.query.items() if key != "fieldSelector"}
        for request in found
    ]


@shows(
    "N5",
    fault="the extender's watch of the whole cluster breaks, and later its history is gone",
    happens="the first is resumed; only the second costs a list, in pages that keep memory small",
)
def test_watch_of_the_whole_cluster_lists_in_pages_and_only_after_410(
    server: FaultyApiServer, kube: KubeClient, run_watch: Callable[[ResourceWatch[Pod]], None]
) -> None:
    watch = ResourceWatch(kube, PODS, clock=RealClock(), from_cache=False, times=QUICK)
    run_watch(watch)
    eventually(lambda: served(server, "watch") == 1)
    server.fail_next("watch", "pods", "reset", times=10)
    server.drop_watches()
    follows(server, watch, "1")
    assert queries(server) == [{"limit": "500"}]
    server.expire_watches()
    follows(server, watch, "2")
    eventually(lambda: queries(server) == [{"limit": "500"}] * 2)


@shows(
    "N5",
    fault="the API server has forgotten its history (410), for the watch and then for the list",
    happens="one list at the last version, answered from its cache; only then one from etcd",
)
def test_only_a_list_that_is_gone_is_followed_by_a_consistent_list(
    server: FaultyApiServer, pods_of_n1: ResourceWatch[Pod]
) -> None:
    eventually(lambda: served(server, "watch") == 1)
    known = str(pods_of_n1.version())
    server.fail_next("list", "pods", 410)
    server.expire_watches()
    eventually(lambda: served(server, "watch") == 2)
    assert queries(server) == [{"resourceVersion": "0"}, {"resourceVersion": known}, {}]


@shows(
    "N5",
    fault="the API server comes back from a backup, with versions below those that are known",
    happens="after five refused lists the daemon takes what the server has, and follows that",
)
def test_server_restored_from_a_backup_is_followed(
    server: FaultyApiServer, pods_of_n1: ResourceWatch[Pod]
) -> None:
    known = str(pods_of_n1.version())
    server.fail_next("watch", "pods", 410)
    server.restore_backup()
    follows(server, pods_of_n1, "1")
    refused = [{"resourceVersion": known}] * 5
    assert queries(server) == [{"resourceVersion": "0"}, *refused, {"resourceVersion": "0"}]


def test_silent_watches_of_a_server_with_another_history_end_in_a_list(
    server: FaultyApiServer,
    kube: KubeClient,
    run_watch: Callable[[ResourceWatch[Pod]], None],
) -> None:
    """It takes our version for one of the future, and sends nothing at all."""
    times = WatchTimes(server_timeout_s=1.0, first_wait_s=0.02, longest_wait_s=0.1)
    watch = ResourceWatch(kube, PODS, clock=RealClock(), times=times)
    run_watch(watch)
    eventually(lambda: served(server, "watch") == 1)
    server.restore_backup()
    follows(server, watch, "1")


def test_watch_that_outlives_its_time_is_given_up(
    server: FaultyApiServer,
    kube: KubeClient,
    run_watch: Callable[[ResourceWatch[Pod]], None],
    interruptions: Callable[[], int],
) -> None:
    server.fail_next("watch", "pods", "freeze")
    times = WatchTimes(server_timeout_s=1.0, grace_s=0.1, first_wait_s=0.02, longest_wait_s=0.1)
    watch = ResourceWatch(kube, PODS, clock=RealClock(), times=times)
    run_watch(watch)
    eventually(lambda: served(server, "watch") == 2)
    assert interruptions() == 1
    follows(server, watch, "1")
    assert served(server, "list") == 1


def test_quiet_watch_that_the_server_ends_is_no_failure(
    server: FaultyApiServer,
    kube: KubeClient,
    run_watch: Callable[[ResourceWatch[Pod]], None],
    interruptions: Callable[[], int],
) -> None:
    """A real API server sends neither events nor bookmarks for hours when nothing changes."""
    times = WatchTimes(server_timeout_s=1.0, first_wait_s=0.02, longest_wait_s=0.1)
    watch = ResourceWatch(kube, PODS, clock=RealClock(), times=times)
    run_watch(watch)
    eventually(lambda: served(server, "watch") == 3)
    assert (interruptions(), served(server, "list")) == (0, 1)


def test_watch_that_is_never_answered_is_given_up(
    server: FaultyApiServer,
    connect_to: Connect,
    run_watch: Callable[[ResourceWatch[Pod]], None],
    interruptions: Callable[[], int],
) -> None:
    server.fail_next("watch", "pods", "hang")
    watch = ResourceWatch(connect_to(read_s=0.2), PODS, clock=RealClock(), times=QUICK)
    run_watch(watch)
    eventually(lambda: served(server, "watch") == 1)
    assert interruptions() == 1
    follows(server, watch, "1")


def test_watch_may_be_silent_for_longer_than_an_answer_may_take(
    server: FaultyApiServer,
    connect_to: Connect,
    run_watch: Callable[[ResourceWatch[Pod]], None],
    interruptions: Callable[[], int],
) -> None:
    server.bookmark_interval_s = 3.0
    watch = ResourceWatch(connect_to(read_s=1.0), PODS, clock=RealClock(), times=QUICK)
    notified = threading.Event()
    run_watch(watch)
    eventually(lambda: served(server, "watch") == 1)
    watch.cache.subscribe(notified.set)
    assert not notified.wait(2.5)
    assert interruptions() == 0


def test_end_of_the_process_is_no_failure(
    server: FaultyApiServer,
    kube: KubeClient,
    caplog: pytest.LogCaptureFixture,
    interruptions: Callable[[], int],
) -> None:
    watch = ResourceWatch(kube, PODS, clock=RealClock(), times=QUICK)
    stop = threading.Event()
    thread = threading.Thread(target=watch.run, args=(stop,))
    thread.start()
    eventually(lambda: served(server, "watch") == 1)
    stop.set()
    watch.interrupt()
    thread.join(10.0)
    assert not thread.is_alive()
    assert interruptions() == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_undecodable_object_costs_that_object_only(
    server: FaultyApiServer, pods_of_n1: ResourceWatch[Pod], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hami_node")
    bad = pod("ns", "bad", "n1")
    bad["status"] = {"phase": 7}
    server.create("pods", bad)
    server.annotate("pods", "bad", {"again": "1"}, "ns")
    follows(server, pods_of_n1, "1")
    assert names(pods_of_n1) == ["p1"]
    logged = [record for record in caplog.records if record.getMessage() == "object_not_understood"]
    assert len(logged) == 1
    server.expire_watches()
    eventually(lambda: served(server, "list") == 2)
    follows(server, pods_of_n1, "2")
    assert names(pods_of_n1) == ["p1"]


def test_object_that_becomes_undecodable_keeps_its_last_state_until_deleted(
    server: FaultyApiServer, pods_of_n1: ResourceWatch[Pod], caplog: pytest.LogCaptureFixture
) -> None:
    server.edit("pods", "p1", lambda pod: pod.update(status={"phase": 7}), "ns")
    eventually(lambda: "object_not_understood" in caplog.messages)
    assert names(pods_of_n1) == ["p1"]
    server.expire_watches()
    eventually(lambda: served(server, "list") == 2)
    server.create("pods", pod("ns", "p2", "n1"))
    eventually(lambda: names(pods_of_n1) == ["p1", "p2"])
    server.delete("pods", "p1", "ns")
    eventually(lambda: names(pods_of_n1) == ["p2"])


def test_followers_are_told_each_change_in_order(
    server: FaultyApiServer, followed: Followed
) -> None:
    watch, seen = followed
    first = server.read("pods", "p1", "ns")["metadata"]["uid"]
    follows(server, watch, "1")
    server.delete("pods", "p1", "ns")
    second = server.create("pods", pod("ns", "p1", "n1"))["metadata"]["uid"]
    eventually(lambda: len(seen) == 4)
    assert seen == [(None, first), (first, first), (first, None), (None, second)]


def test_pod_made_anew_during_an_interruption_is_told_as_removal_and_addition(
    server: FaultyApiServer, followed: Followed
) -> None:
    _, seen = followed
    server.go_down()
    first = server.read("pods", "p1", "ns")["metadata"]["uid"]
    server.delete("pods", "p1", "ns")
    second = server.create("pods", pod("ns", "p1", "n1"))["metadata"]["uid"]
    server.expire_watches()
    server.start()
    eventually(lambda: len(seen) == 3)
    assert seen == [(None, first), (first, None), (None, second)]


def test_listener_that_fails_does_not_end_the_watch(
    server: FaultyApiServer,
    kube: KubeClient,
    run_watch: Callable[[ResourceWatch[Pod]], None],
    caplog: pytest.LogCaptureFixture,
    interruptions: Callable[[], int],
) -> None:
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise ZeroDivisionError

    watch = ResourceWatch(kube, PODS, clock=RealClock(), times=QUICK)
    watch.cache.subscribe(broken)
    run_watch(watch)
    eventually(watch.is_synced)
    follows(server, watch, "1")
    eventually(lambda: len(calls) == 2)
    assert interruptions() == 0
    assert "watch_listener_failed" in {record.getMessage() for record in caplog.records}


def test_no_request_while_nothing_happens(
    server: FaultyApiServer, kube: KubeClient, run_watch: Callable[[ResourceWatch[Pod]], None]
) -> None:
    clock = FakeClock()
    watch = ResourceWatch(kube, PODS, clock=clock, times=QUICK)
    run_watch(watch)
    eventually(lambda: server.requests(verb="watch"))
    for number in range(3):  # what happens elsewhere arrives as a bookmark
        clock.advance(60.0)
        server.create("nodes", {"metadata": {"name": f"other-{number}"}})
        eventually(lambda: watch.last_contact_age_s() == 0.0)
    assert [request.verb for request in server.requests()] == ["list", "watch"]
