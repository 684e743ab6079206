from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.cluster.node_lock import NodeLock
from hami_node.errors import KubeError
from hami_node.model import Pod
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.clock import FakeClock
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import NODE, Box, Part, reserved_pod
from tests.unit.node.holdings.uses import VENDOR, live_use

P = reserved_pod("p", [Box(memory_mib=1)], {"main": [Part(uuid=uuid(0), memory_mib=1)]})
SERVED = replace(P, annotations={**P.annotations, nvidia_names.POD_TO_ALLOCATE: ";"})
FAILED = replace(P, annotations={**P.annotations, names.POD_BIND_PHASE: names.PHASE_FAILED})
YOUNG = "2027-01-15T08:00:00Z"  # the fake clock's now
OLD = "2027-01-15T07:00:00Z"


def keeper(
    cluster: FakeCluster, clock: FakeClock | None = None, removed: list[str] | None = None
) -> LockKeeper:
    clock = clock or FakeClock()
    return LockKeeper(
        lock=NodeLock(cluster, clock),
        kube=cluster,
        watched=cluster,
        live=live_use(cluster, clock),
        vendors=[VENDOR],
        node_name=NODE,
        clock=clock,
        on_removed=(removed if removed is not None else []).append,
    )


def locked(text: str | None, *pods: Pod) -> FakeCluster:
    return FakeCluster(*pods, annotations={names.NODE_LOCK: text} if text is not None else {})


@pytest.mark.parametrize(
    ("text", "pods", "is_freed"),
    [
        (f"{YOUNG},default,p", (P,), False),
        (f"{YOUNG},default,p", (SERVED,), True),
        (f"{YOUNG},default,p", (FAILED,), True),
        (f"{YOUNG},default,p", (replace(P, phase="Succeeded"),), True),
        (f"{YOUNG},default,p", (replace(P, phase="Failed"),), True),
        (f"{YOUNG},default,p", (), True),
        (f"{YOUNG},default,p", (replace(P, annotations={}),), False),
        (f"{OLD},default,p", (P,), True),
        (OLD, (), True),
        (YOUNG, (), False),
        ("rubbish", (), False),
    ],
    ids=[
        "waits",
        "served",
        "refused",
        "succeeded",
        "failed",
        "deleted",
        "not-reserved-yet",
        "expired",
        "ownerless-expired",
        "ownerless-young",
        "rubbish-young",
    ],
)
def test_look_removes_a_lock_that_nobody_needs_and_no_other(
    text: str, pods: tuple[Pod, ...], is_freed: bool
) -> None:
    cluster, removed = locked(text, *pods), list[str]()
    keeper(cluster, removed=removed).look()
    assert (names.NODE_LOCK not in cluster.actual_node.annotations) == is_freed
    assert removed == (["stale"] if is_freed else [])


def test_look_pod_not_yet_in_the_watch_is_read_before_the_lock_goes() -> None:
    cluster = locked(f"{YOUNG},default,p", P)
    cluster.shown.clear()
    keeper(cluster).look()
    assert names.NODE_LOCK in cluster.actual_node.annotations
    assert cluster.reads == ["default/p"]


def test_look_pod_can_not_be_read_the_lock_stays() -> None:
    cluster = locked(f"{YOUNG},default,p")
    cluster.fail_next(KubeError("down"))
    with pytest.raises(KubeError):
        keeper(cluster).look()
    assert names.NODE_LOCK in cluster.actual_node.annotations


def test_look_lock_that_changed_hands_meanwhile_is_left_alone() -> None:
    cluster = locked(f"{YOUNG},default,gone")
    cluster.set_node({names.NODE_LOCK: f"{YOUNG},default,new"}, is_shown=False)
    keeper(cluster).look()
    assert cluster.actual_node.annotations[names.NODE_LOCK] == f"{YOUNG},default,new"


def test_look_unreadable_time_counts_from_first_sight() -> None:
    cluster, clock = locked("rubbish"), FakeClock()
    kept = keeper(cluster, clock)
    kept.look()
    clock.advance(299)
    kept.look()
    assert names.NODE_LOCK in cluster.actual_node.annotations
    clock.advance(2)
    kept.look()
    assert names.NODE_LOCK not in cluster.actual_node.annotations
