from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.clock import FakeClock
from tests.fakes.live_kube import FakeCluster
from tests.unit.node.holdings.uses import a_pod, listed, live_use, used


def test_newest_pods_own_patch_counts_until_the_watch_shows_it() -> None:
    before = a_pod(is_served=False, resource_version="5")
    after = a_pod(resource_version="7")
    cluster = FakeCluster(before)
    live = live_use(cluster)
    live.patched(after)
    assert used(live) == [1000, 0]
    cluster.show(replace(before, resource_version="6"))
    assert used(live) == [1000, 0], "what the watch shows is older than our patch"
    cluster.show(replace(after, resource_version="8", phase="Failed"))
    assert used(live) == [0, 0], "and now it is newer"


def test_newest_pods_pod_of_a_restored_backup_is_as_the_watch_shows_it() -> None:
    before = a_pod(is_served=False, resource_version="1000")
    cluster = FakeCluster(before)
    live = live_use(cluster)
    live.patched(a_pod(resource_version="1001"))
    cluster.show(restored := replace(before, resource_version="11"))
    assert live.pods() == (restored,)


def test_newest_pods_patched_pod_that_the_watch_knew_goes_with_it() -> None:
    cluster = FakeCluster(a_pod(is_served=False, resource_version="5"))
    live = live_use(cluster)
    live.patched(a_pod(resource_version="7"))
    cluster.show()
    assert live.pods() == ()


@pytest.mark.parametrize("is_old_patched", [True, False])
def test_newest_pods_of_namesakes_only_the_newer_exists(is_old_patched: bool) -> None:
    old = a_pod(resource_version="7")
    new = replace(a_pod(resource_version="9"), uid="uid-new")
    shown, patched = (new, old) if is_old_patched else (old, new)
    live = live_use(FakeCluster(shown))
    live.patched(patched)
    assert [pod.uid for pod in live.pods()] == ["uid-new"]


def test_newest_pods_patched_pod_never_shown_is_held_until_the_api_server_says_it_is_gone() -> None:
    clock = FakeClock()
    live = live_use(FakeCluster(), clock)
    live.patched(a_pod(resource_version="7"))
    live.settle([listed("p", "x-1")])
    clock.advance(299)
    assert [pod.name for pod in live.pods()] == ["p"]
    clock.advance(2)
    live.settle([])
    assert live.pods() == ()
    assert used(live) == [1000, 0], "that the watch never showed it says nothing"
    (holder,) = live.missing()
    assert live.ended_as(holder, None)
    assert used(live) == [0, 0]


def test_newest_pods_pod_that_a_call_is_for_is_there_before_the_watch_shows_it() -> None:
    waits = a_pod(is_served=False, resource_version="5")
    cluster = FakeCluster()
    live = live_use(cluster)
    live.noticed(waits)
    assert live.pods() == (waits,)
    assert used(live) == [0, 0]
    failed = replace(waits, resource_version="6", phase="Failed")
    cluster.show(failed)
    live.noticed(waits)
    assert live.pods() == (failed,), "what the watch shows is newer"
    cluster.show()
    assert live.pods() == ()
