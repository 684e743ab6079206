"""The keeper of our own node's lock."""

from __future__ import annotations

import threading

import pytest

from hami_node.cluster.client import KubeClient
from hami_node.cluster.lock_keeper import GRACE_S, LockKeeper
from hami_node.cluster.node_lock import NodeLock
from hami_node.model import Node, Pod
from hami_node.simulate.apiserver import ApiServer
from hami_node.wire.lock import encode_lock
from hami_node.wire.names import NODE_LOCK, POD_BIND_PHASE
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import eventually
from tests.unit.cluster.conftest import pod

NOW_S = 1_800_000_000.0


class WatchedServer:
    """`ports.Watched` that is always up to date, without requests."""

    def __init__(self, server: ApiServer, kube: KubeClient) -> None:
        self._server, self._kube = server, kube
        self.shows_pods = True

    def pods(self) -> tuple[Pod, ...]:
        return self._kube.list_pods("n1") if self.shows_pods else ()

    def pod(self, namespace: str, name: str) -> Pod | None:
        found = [one for one in self.pods() if (one.namespace, one.name) == (namespace, name)]
        return found[0] if found else None

    def node(self) -> Node | None:
        return self._kube.read_node("n1")

    def is_synced(self) -> bool:
        return True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_S)


@pytest.fixture
def watched(server: ApiServer, kube: KubeClient) -> WatchedServer:
    return WatchedServer(server, kube)


@pytest.fixture
def keeper(kube: KubeClient, watched: WatchedServer, clock: FakeClock) -> LockKeeper:
    return LockKeeper("n1", kube, watched, clock, NodeLock(kube, clock))


def lock_for(server: ApiServer, name: str, age_s: float = 0.0) -> None:
    server.annotate("nodes", "n1", {NODE_LOCK: encode_lock(NOW_S - age_s, "ns", name)})


def is_locked(server: ApiServer) -> bool:
    return NODE_LOCK in server.read("nodes", "n1")["metadata"]["annotations"]


def test_release_frees_only_the_own_lock(server: ApiServer, keeper: LockKeeper) -> None:
    lock_for(server, "p1")
    assert not keeper.release(Pod(uid="u", namespace="ns", name="p"))
    assert keeper.release(Pod(uid="u", namespace="ns", name="p1"))
    assert not is_locked(server)


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        (encode_lock(NOW_S, "ns", "p1"), "ns/p1"),
        (encode_lock(NOW_S - 301, "ns", "p1"), ""),
        ("2027-01-15T08:00:00Z", ""),
        ("nonsense", ""),
        (None, ""),
    ],
    ids=["held", "expired", "ownerless", "malformed", "free"],
)
def test_owner_names_the_pod_of_a_valid_lock(
    server: ApiServer, keeper: LockKeeper, text: str | None, owner: str
) -> None:
    server.annotate("nodes", "n1", {NODE_LOCK: text})
    assert keeper.owner() == owner


def test_check_clears_an_old_lock_at_once(server: ApiServer, keeper: LockKeeper) -> None:
    lock_for(server, "p1", age_s=86_400.0)
    assert keeper.check()
    assert not is_locked(server)
    assert keeper.cleared_count == 1


@pytest.mark.parametrize("phase", ["success", "failed"])
def test_check_clears_the_lock_of_a_served_pod_after_a_grace(
    server: ApiServer, keeper: LockKeeper, clock: FakeClock, phase: str
) -> None:
    server.annotate("pods", "p1", {POD_BIND_PHASE: phase}, "ns")
    lock_for(server, "p1")
    assert not keeper.check()
    clock.advance(GRACE_S)
    assert keeper.check()
    assert not is_locked(server)


def test_check_keeps_the_lock_of_a_pod_that_waits(
    server: ApiServer, keeper: LockKeeper, clock: FakeClock
) -> None:
    server.annotate("pods", "p1", {POD_BIND_PHASE: "allocating"}, "ns")
    lock_for(server, "p1")
    keeper.check()
    clock.advance(GRACE_S)
    assert not keeper.check()
    assert is_locked(server)


def test_check_keeps_the_lock_of_a_pod_that_is_not_yet_bound(
    server: ApiServer, keeper: LockKeeper, clock: FakeClock
) -> None:
    """The scheduler takes the lock before it binds: such a pod is not in the node's watch."""
    server.create("pods", pod("ns", "free"))
    lock_for(server, "free")
    keeper.check()
    clock.advance(GRACE_S)
    assert not keeper.check()


@pytest.mark.parametrize("fate", ["deleted", "over", "elsewhere"])
def test_check_clears_the_lock_of_a_pod_that_will_never_come(
    server: ApiServer, keeper: LockKeeper, clock: FakeClock, fate: str
) -> None:
    if fate == "deleted":
        server.delete("pods", "p1", "ns")
    if fate == "over":
        server.edit("pods", "p1", lambda one: one.update(status={"phase": "Failed"}), "ns")
    if fate == "elsewhere":
        server.edit("pods", "p1", lambda one: one["spec"].update(nodeName="n2"), "ns")
    lock_for(server, "p1")
    keeper.check()
    clock.advance(GRACE_S)
    assert keeper.check()
    assert not is_locked(server)


def test_check_keeps_the_lock_when_the_pod_cannot_be_read(
    server: ApiServer, keeper: LockKeeper, clock: FakeClock, watched: WatchedServer
) -> None:
    watched.shows_pods = False
    lock_for(server, "p1")
    keeper.check()
    clock.advance(GRACE_S)
    server.fail_next("get", "pods", 500)
    stop = threading.Event()
    thread = threading.Thread(target=keeper.run, args=(stop,))
    thread.start()
    eventually(lambda: server.requests(verb="get", resource="pods"))
    stop.set()
    thread.join(10.0)
    assert not thread.is_alive()
    assert is_locked(server)


def test_grace_starts_anew_with_the_next_lock(
    server: ApiServer, keeper: LockKeeper, clock: FakeClock
) -> None:
    server.annotate("pods", "p1", {POD_BIND_PHASE: "failed"}, "ns")
    lock_for(server, "p1", age_s=20.0)
    keeper.check()
    lock_for(server, "p1", age_s=10.0)
    clock.advance(GRACE_S)
    assert not keeper.check()
