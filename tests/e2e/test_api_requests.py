"""What the daemon costs the API server, counted in its audit log."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e import cards
from tests.e2e.audit import Audit
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import USER, Daemon
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually


def _for_pods(audit: Audit, name: str) -> list[tuple[str, str]]:
    """The daemon's requests without Events; the pod is called `counted`."""
    made = [r for r in audit.requests(USER) if not r.what.startswith("events")]
    return [(r.verb, r.what.replace(name, "counted")) for r in made]


def _at_rest(path: Path) -> Audit:
    """From a moment on at which the daemon has asked for nothing for 8 seconds."""

    def quiet() -> Audit | None:
        one = Audit(path)
        time.sleep(8)  # the links of cards are reported with the second scan, after 5 s
        return one if not one.requests(USER) else None

    return eventually("the daemon is at rest", quiet) or pytest.fail("never at rest")


@pytest.mark.parametrize("is_locked", [True, False])
def test_pod_costs_one_request_and_its_lock_one_more(
    cluster: Cluster, daemon: Daemon, pods: Pods, scheduler: Scheduler, is_locked: bool
) -> None:
    numbers = itertools.count()
    wanted = Counter([("patch", "pods/counted"), *[("patch", "nodes/e2e-node")] * is_locked])

    def count() -> list[tuple[str, str]]:
        """The requests for a pod; those of a moment into which no regular report falls."""
        name = f"counted-{next(numbers)}"
        audit = _at_rest(cluster.root / "log/audit.jsonl")
        before = daemon.annotations()[nvidia_names.NODE_HANDSHAKE]
        pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=2000))
        own = Slice(uuid=cards.uuid_of(0), memory_mib=2000)
        scheduler.place(pod, {"c0": (own,)}, is_locked=is_locked)
        pods.wait_running(name)
        eventually("the node's lock is free", lambda: not scheduler.lock_owner())
        eventually("they are in the log", lambda: not wanted - Counter(_for_pods(audit, name)))
        time.sleep(1)  # what comes late is counted too
        made = _for_pods(audit, name)
        assert daemon.annotations()[nvidia_names.NODE_HANDSHAKE] == before, "a report"
        return made

    made = eventually("a pod is counted between two reports", count, 600)
    print(f"requests for one pod: {made}")
    # the one read that Allocate makes when kubelet is faster than the daemon's watch
    assert Counter(made) - Counter([("get", "pods/counted")]) == wanted
