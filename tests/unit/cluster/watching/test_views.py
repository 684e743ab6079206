"""`ports.Watched` over two watches."""

from __future__ import annotations

import threading

from hami_node.cluster.client import KubeClient
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.cluster.watching.watches import WatchTimes
from hami_node.ports import Watched
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import FakeClock, RealClock
from tests.fakes.waiting import eventually
from tests.unit.cluster.conftest import pod

QUICK = WatchTimes(first_wait_s=0.02, longest_wait_s=0.1)


def test_view_of_a_node_holds_that_node_and_its_pods(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    server.create("nodes", {"metadata": {"name": "n2"}})
    server.create("pods", pod("ns", "other", "n2"))
    view = WatchedCluster.of_node(kube, "n1", RealClock(), QUICK)
    watched: Watched = view
    assert (watched.node(), watched.pods(), watched.is_synced()) == (None, (), False)
    assert view.last_contact_age_s() is None
    woken = threading.Event()
    view.subscribe(woken.set)
    stop = threading.Event()
    view.start(stop)
    eventually(watched.is_synced)
    node = watched.node()
    assert node is not None
    assert node.name == "n1"
    assert [pod.name for pod in watched.pods()] == ["p1"]
    found = watched.pod("ns", "p1")
    assert found is not None
    assert found.node_name == "n1"
    assert watched.pod("ns", "other") is None
    assert woken.is_set()
    woken.clear()
    server.annotate("nodes", "n1", {"new": "1"})
    assert woken.wait(10.0)
    stop.set()
    view.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch-")]


def test_view_of_the_cluster_holds_everything_in_order(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    server.create("nodes", {"metadata": {"name": "a"}})
    server.create("pods", pod("b", "x", "n2"))
    server.create("pods", pod("a", "y", "n2"))
    view = WatchedCluster.of_cluster(kube, RealClock(), QUICK)
    stop = threading.Event()
    view.start(stop)
    eventually(view.is_synced)
    assert [node.name for node in view.nodes()] == ["a", "n1"]
    assert [pod.key for pod in view.pods()] == ["a/y", "b/x", "ns/p1"]
    assert view.node() is None
    stop.set()
    view.close()


def test_contact_age_is_that_of_the_quieter_watch(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    server.bookmark_interval_s = 60.0
    clock = FakeClock()
    view = WatchedCluster.of_node(kube, "n1", clock, QUICK)
    stop = threading.Event()
    view.start(stop)
    eventually(lambda: len(server.requests(verb="watch")) == 2)
    server.annotate("nodes", "n1", {"first": "1"})
    server.annotate("pods", "p1", {"first": "1"}, "ns")
    seen = (view.node_watch.cache, view.pod_watch.cache)
    eventually(lambda: all("first" in cache.objects()[0].annotations for cache in seen))
    clock.advance(30.0)
    server.annotate("nodes", "n1", {"new": "1"})
    eventually(lambda: view.node_watch.last_contact_age_s() == 0.0)
    assert view.last_contact_age_s() == 30.0
    stop.set()
    view.close()
