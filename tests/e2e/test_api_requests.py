"""What the daemon costs the API server, counted in its audit log."""

from __future__ import annotations

import time

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e import cards
from tests.e2e.audit import Audit, Request
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import USER, Daemon
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually


def _for_pods(audit: Audit) -> list[Request]:
    """The daemon's requests without Events and without the regular report."""
    return [r for r in audit.requests(USER) if not r.what.startswith("events")]


@pytest.fixture
def audit(cluster: Cluster, pods: Pods) -> Audit:
    """From a moment on at which the daemon has asked for nothing for 8 seconds."""
    assert pods

    def quiet() -> Audit | None:
        one = Audit(cluster.root / "log/audit.jsonl")
        time.sleep(8)  # the links of cards are reported with the second scan, after 5 s
        return one if not one.requests(USER) else None

    return eventually("the daemon is at rest", quiet) or pytest.fail("never at rest")


def test_pod_with_lock_costs_two_requests(
    daemon: Daemon, pods: Pods, scheduler: Scheduler, audit: Audit
) -> None:
    before = daemon.annotations()[nvidia_names.NODE_HANDSHAKE]
    pod = pods.create("counted", RealContainer(name="c0", cards=1, memory_mib=2000))
    scheduler.place(pod, {"c0": (Slice(uuid=cards.uuid_of(0), memory_mib=2000),)}, is_locked=True)
    pods.wait_running("counted")
    eventually("the node's lock is free", lambda: not scheduler.lock_owner())
    time.sleep(1)  # what comes late is counted too
    is_reported = daemon.annotations()[nvidia_names.NODE_HANDSHAKE] != before
    made = [(r.verb, r.what) for r in _for_pods(audit)]
    wanted = [("patch", "pods/counted"), ("patch", "nodes/e2e-node")]
    print(f"requests for one pod: {made}")
    assert _without_late_watch(made) == sorted(
        [*wanted, *[("patch", "nodes/e2e-node")] * is_reported]
    )


def _without_late_watch(made: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the one read that Allocate makes when kubelet is faster than the daemon's watch."""
    read = ("get", "pods/counted")
    assert made.count(read) <= 1, made
    return sorted(one for one in made if one != read)


def test_pod_without_lock_costs_one_request(
    daemon: Daemon, pods: Pods, scheduler: Scheduler, audit: Audit
) -> None:
    before = daemon.annotations()[nvidia_names.NODE_HANDSHAKE]
    pod = pods.create("counted", RealContainer(name="c0", cards=1, memory_mib=2000))
    scheduler.place(pod, {"c0": (Slice(uuid=cards.uuid_of(0), memory_mib=2000),)})
    pods.wait_running("counted")
    time.sleep(1)  # what comes late is counted too
    is_reported = daemon.annotations()[nvidia_names.NODE_HANDSHAKE] != before
    made = [(r.verb, r.what) for r in _for_pods(audit)]
    print(f"requests for one pod: {made}")
    assert _without_late_watch(made) == sorted(
        [("patch", "pods/counted"), *[("patch", "nodes/e2e-node")] * is_reported]
    )
