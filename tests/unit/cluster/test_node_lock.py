"""The node lock: whose it is, when it ends, and that nobody else's is ever touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hami_node.cluster.client import KubeClient
from hami_node.cluster.node_lock import NodeLock
from hami_node.errors import Conflict, KubeError, LockHeld
from hami_node.model import Node
from hami_node.wire.lock import encode_lock
from hami_node.wire.names import NODE_LOCK
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import FakeClock

NOW_S = 1_800_000_000.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_S)


@pytest.fixture
def lock(kube: KubeClient, clock: FakeClock) -> NodeLock:
    return NodeLock(kube, clock)


def put(server: FaultyApiServer, text: str | None) -> None:
    server.annotate("nodes", "n1", {NODE_LOCK: text})


def standing(server: FaultyApiServer) -> str | None:
    text: str | None = server.read("nodes", "n1")["metadata"]["annotations"].get(NODE_LOCK)
    return text


def nobody(_namespace: str, _name: str) -> bool:
    return False


def everybody(_namespace: str, _name: str) -> bool:
    return True


# -- release ---------------------------------------------------------------------------------------


def test_release_own_lock_removes_it_and_nothing_else(
    server: FaultyApiServer, lock: NodeLock
) -> None:
    put(server, encode_lock(NOW_S, "ns", "abc"))
    assert lock.release("n1", "ns", "abc")
    assert server.read("nodes", "n1")["metadata"]["annotations"] == {"theirs": "x"}


FOREIGN = {
    "a longer name": encode_lock(NOW_S, "ns", "abc-123"),
    "a shorter name": encode_lock(NOW_S, "ns", "ab"),
    "another namespace": encode_lock(NOW_S, "ns2", "abc"),
    "an ownerless time": "2027-01-15T08:00:00Z",
    "two parts": "2027-01-15T08:00:00Z,abc",
    "four parts": "2027-01-15T08:00:00Z,ns,abc,uid",
    "an owner without a time": ",ns,abc",
    "nonsense": "ns,abc",
    "empty": "",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_release_leaves_a_foreign_lock(server: FaultyApiServer, lock: NodeLock, text: str) -> None:
    put(server, text)
    assert not lock.release("n1", "ns", "abc")
    assert standing(server) == text
    assert server.requests(verb="patch") == ()


def test_release_without_a_lock_is_fine(server: FaultyApiServer, lock: NodeLock) -> None:
    assert not lock.release("n1", "ns", "abc")
    assert server.requests(verb="patch") == ()


def test_release_of_a_lock_that_the_watch_shows_costs_one_request(
    server: FaultyApiServer, kube: KubeClient, lock: NodeLock
) -> None:
    put(server, encode_lock(NOW_S, "ns", "abc"))
    seen = kube.read_node("n1")
    server.forget_requests()
    assert lock.release("n1", "ns", "abc", seen=seen)
    assert [request.verb for request in server.requests()] == ["patch"]


def test_release_reads_the_node_when_the_watch_is_late(
    server: FaultyApiServer, kube: KubeClient, lock: NodeLock
) -> None:
    seen = kube.read_node("n1")
    put(server, encode_lock(NOW_S, "ns", "abc"))
    assert lock.release("n1", "ns", "abc", seen=seen)
    assert standing(server) is None


def test_release_does_not_remove_a_lock_that_changed_hands(
    server: FaultyApiServer, kube: KubeClient, lock: NodeLock
) -> None:
    put(server, encode_lock(NOW_S, "ns", "abc"))
    seen = kube.read_node("n1")
    other = encode_lock(NOW_S, "ns", "next")
    put(server, other)
    assert not lock.release("n1", "ns", "abc", seen=seen)
    assert standing(server) == other


def test_release_removes_its_own_lock_that_was_written_anew(
    server: FaultyApiServer, kube: KubeClient, lock: NodeLock
) -> None:
    put(server, encode_lock(NOW_S, "ns", "abc"))
    seen = kube.read_node("n1")
    put(server, encode_lock(NOW_S + 5, "ns", "abc"))
    assert lock.release("n1", "ns", "abc", seen=seen)
    assert standing(server) is None


def test_release_whose_answer_was_lost_ends_well(server: FaultyApiServer, kube: KubeClient) -> None:
    put(server, encode_lock(NOW_S, "ns", "abc"))
    server.fail_next("patch", "nodes", "reset-after")
    lock = NodeLock(kube.with_retries(3), FakeClock(NOW_S))
    assert not lock.release("n1", "ns", "abc")  # it was us, but nobody can tell
    assert standing(server) is None


@pytest.mark.parametrize("status", [403, 429, 500])
def test_release_tells_failures_of_the_server(
    server: FaultyApiServer, lock: NodeLock, status: int
) -> None:
    put(server, encode_lock(NOW_S, "ns", "abc"))
    server.fail_next("patch", "nodes", status)
    with pytest.raises(KubeError, match=str(status)):
        lock.release("n1", "ns", "abc")


def test_release_gives_up_when_the_node_never_rests(
    server: FaultyApiServer, lock: NodeLock
) -> None:
    put(server, encode_lock(NOW_S, "ns", "abc"))
    server.fail_next("patch", "nodes", 409, times=99)
    with pytest.raises(Conflict, match="faster than it can be released"):
        lock.release("n1", "ns", "abc")


# -- acquire ---------------------------------------------------------------------------------------


def test_acquire_a_free_lock_writes_time_and_pod(server: FaultyApiServer, lock: NodeLock) -> None:
    text = lock.acquire("n1", "ns", "abc", nobody)
    assert text == standing(server) == "2027-01-15T08:00:00Z,ns,abc"


def test_acquire_own_lock_keeps_it_without_a_write_until_it_expires(
    server: FaultyApiServer, lock: NodeLock, clock: FakeClock
) -> None:
    first = encode_lock(NOW_S - 10, "ns", "abc")
    put(server, first)
    assert lock.acquire("n1", "ns", "abc", nobody) == first
    assert server.requests(verb="patch") == ()
    clock.advance(291.0)
    assert lock.acquire("n1", "ns", "abc", nobody) == encode_lock(NOW_S + 291, "ns", "abc")


def test_acquire_a_held_lock_raises_and_names_the_holder(
    server: FaultyApiServer, lock: NodeLock
) -> None:
    put(server, encode_lock(NOW_S - 299, "ns", "other"))
    with pytest.raises(LockHeld, match="n1 is locked by pod ns/other"):
        lock.acquire("n1", "ns", "abc", nobody)
    assert standing(server) == encode_lock(NOW_S - 299, "ns", "other")


@pytest.mark.parametrize(
    ("age_s", "is_gone"),
    [(301.0, nobody), (0.0, everybody)],
    ids=["expired", "its pod is gone"],
)
def test_acquire_takes_over(
    server: FaultyApiServer, lock: NodeLock, age_s: float, is_gone: Callable[[str, str], bool]
) -> None:
    put(server, encode_lock(NOW_S - age_s, "ns", "other"))
    assert lock.acquire("n1", "ns", "abc", is_gone) == encode_lock(NOW_S, "ns", "abc")
    assert standing(server) == encode_lock(NOW_S, "ns", "abc")


@pytest.mark.parametrize("text", ["nonsense", "a,b,c,d", "2027-13-45T99:00:00Z", ""])
def test_malformed_lock_is_foreign_until_it_has_been_seen_for_five_minutes(
    server: FaultyApiServer, lock: NodeLock, clock: FakeClock, text: str
) -> None:
    put(server, text)
    for _ in range(2):
        with pytest.raises(LockHeld):
            lock.acquire("n1", "ns", "abc", everybody)  # it names no pod that could be gone
        clock.advance(150.0)
    clock.advance(1.0)
    assert lock.acquire("n1", "ns", "abc", nobody).endswith(",ns,abc")


def test_ownerless_lock_is_foreign_until_its_own_time_is_over(
    server: FaultyApiServer, lock: NodeLock, clock: FakeClock
) -> None:
    put(server, "2027-01-15T08:00:00Z")
    with pytest.raises(LockHeld):
        lock.acquire("n1", "ns", "abc", everybody)
    clock.advance(301.0)
    assert lock.acquire("n1", "ns", "abc", nobody).endswith(",ns,abc")


def test_lock_from_the_future_ends_five_minutes_after_it_was_seen(
    server: FaultyApiServer, lock: NodeLock, clock: FakeClock
) -> None:
    put(server, encode_lock(NOW_S + 86_400, "ns", "other"))
    with pytest.raises(LockHeld):
        lock.acquire("n1", "ns", "abc", nobody)
    clock.advance(301.0)
    assert lock.acquire("n1", "ns", "abc", nobody).endswith(",ns,abc")


def test_first_sight_counts_anew_for_a_new_text(kube: KubeClient, clock: FakeClock) -> None:
    lock = NodeLock(kube, clock)
    assert lock.read(Node(name="n1", annotations={NODE_LOCK: "one"})) is not None
    clock.advance(301.0)
    held = lock.read(Node(name="n1", annotations={NODE_LOCK: "two"}))
    assert held is not None
    assert not held.is_expired


def test_acquire_loses_against_a_faster_one(
    server: FaultyApiServer, kube: KubeClient, lock: NodeLock
) -> None:
    seen = kube.read_node("n1")  # free, as the watch has it
    put(server, encode_lock(NOW_S, "ns", "faster"))
    with pytest.raises(LockHeld, match="ns/faster"):
        lock.acquire("n1", "ns", "abc", nobody, seen=seen)
    assert standing(server) == encode_lock(NOW_S, "ns", "faster")


def test_acquire_does_not_believe_a_late_watch_that_the_lock_is_held(
    server: FaultyApiServer, kube: KubeClient, lock: NodeLock
) -> None:
    put(server, encode_lock(NOW_S, "ns", "done"))
    seen = kube.read_node("n1")
    put(server, None)
    assert lock.acquire("n1", "ns", "abc", nobody, seen=seen).endswith(",ns,abc")


def test_acquire_goes_on_when_kubelet_writes_the_node_in_between(
    server: FaultyApiServer, kube: KubeClient, lock: NodeLock
) -> None:
    seen = kube.read_node("n1")
    server.annotate("nodes", "n1", {"kubelet": "wrote"})
    assert lock.acquire("n1", "ns", "abc", nobody, seen=seen).endswith(",ns,abc")


# -- clear -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_gone", "is_cleared"),
    [
        (encode_lock(NOW_S, "ns", "abc"), nobody, False),
        (encode_lock(NOW_S, "ns", "abc"), everybody, True),
        (encode_lock(NOW_S - 301, "ns", "abc"), nobody, True),
        ("2024-05-13T13:04:17Z", nobody, True),
        ("nonsense", everybody, False),
        (None, everybody, False),
    ],
    ids=["young", "pod gone", "expired", "ownerless and old", "malformed and new", "free"],
)
def test_clear_stale(
    server: FaultyApiServer,
    kube: KubeClient,
    lock: NodeLock,
    text: str | None,
    is_gone: Callable[[str, str], bool],
    is_cleared: bool,
) -> None:
    put(server, text)
    assert lock.clear_stale(kube.read_node("n1"), is_gone) is is_cleared
    assert standing(server) == (None if is_cleared else text)


def test_clear_stale_leaves_a_lock_that_was_taken_in_between(
    server: FaultyApiServer, kube: KubeClient, lock: NodeLock
) -> None:
    put(server, encode_lock(NOW_S - 301, "ns", "old"))
    node = kube.read_node("n1")
    put(server, encode_lock(NOW_S, "ns", "new"))
    assert not lock.clear_stale(node, nobody)
    assert standing(server) == encode_lock(NOW_S, "ns", "new")


@pytest.mark.parametrize("what", ["another lock", "its pod is back"])
def test_quiet_time_begins_anew(
    server: FaultyApiServer, kube: KubeClient, clock: FakeClock, what: str
) -> None:
    lock = NodeLock(kube, clock, quiet_s=6.0)
    put(server, encode_lock(NOW_S, "ns", "served"))
    with pytest.raises(LockHeld):
        lock.acquire("n1", "ns", "next", everybody)
    clock.advance(5.0)
    if what == "another lock":
        put(server, encode_lock(NOW_S + 5.0, "ns", "served"))
    else:
        with pytest.raises(LockHeld):
            lock.acquire("n1", "ns", "next", nobody)
    clock.advance(1.5)
    with pytest.raises(LockHeld):
        lock.acquire("n1", "ns", "next", everybody)
