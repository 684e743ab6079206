from __future__ import annotations

from dataclasses import replace

from tests.fakes.clock import FakeClock
from tests.fakes.live_kube import FakeCluster
from tests.unit.node.allocate.uses import a_pod, live_use, used


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


def test_newest_pods_patched_pod_never_shown_counts_longer_than_a_watch_is_silent() -> None:
    clock = FakeClock()
    live = live_use(FakeCluster(), clock)
    live.patched(a_pod(resource_version="7"))
    clock.advance(299)
    live.settle([])
    assert used(live) == [1000, 0]
    clock.advance(2)
    used(live)
    live.settle([])
    assert used(live) == [0, 0]
