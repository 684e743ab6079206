from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hami_node.errors import KubeError
from hami_node.model import Pod
from hami_node.node.allocate.lock_keeper import INTERVAL_S, SETTLE_S, LockKeeper
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.clock import FakeClock
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import NODE, Box, Part, reserved_pod
from tests.fakes.settings import settings
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
    count = (removed if removed is not None else []).append
    node: Any = SimpleNamespace(
        settings=lambda: settings(node_name=NODE),
        clock=clock,
        kube=cluster,
        view=cluster,
        live=live_use(cluster, clock),
        served=[VENDOR],
        metrics=SimpleNamespace(locks_removed=SimpleNamespace(count=count)),
        wake=lambda *_: None,
    )
    return LockKeeper(node)


def locked(text: str | None, *pods: Pod) -> FakeCluster:
    return FakeCluster(*pods, annotations={names.NODE_LOCK: text} if text is not None else {})


@pytest.mark.parametrize(
    ("text", "is_freed"),
    [
        (None, False),
        (f"{YOUNG},default,p", True),
        (f"{YOUNG},default,p-1", False),
        (f"{YOUNG},other,p", False),
        (f"{YOUNG},default,", False),
        (YOUNG, False),
    ],
    ids=["free", "ours", "name-begins-alike", "other-namespace", "no-name", "ownerless"],
)
def test_release_removes_the_lock_of_exactly_this_pod_at_once(
    text: str | None, is_freed: bool
) -> None:
    cluster, removed = locked(text, P), list[str]()
    found = keeper(cluster, removed=removed)
    found.release(P)
    found.watch()
    assert (names.NODE_LOCK in cluster.actual_node.annotations) == (
        text is not None and not is_freed
    )
    assert removed == (["served"] if is_freed else [])


def test_release_while_the_watch_shows_no_node_removes_nothing() -> None:
    cluster = locked(f"{YOUNG},default,p", P)
    cluster.shown_node = None
    found = keeper(cluster)
    found.release(P)
    assert found.watch() is None
    assert names.NODE_LOCK in cluster.actual_node.annotations


def test_release_leaves_a_later_lock_of_a_pod_of_the_same_name() -> None:
    later = "2027-01-15T08:00:09Z,default,p"
    cluster, removed = locked(f"{YOUNG},default,p", P), list[str]()
    found = keeper(cluster, removed=removed)
    found.release(P)
    cluster.set_node({names.NODE_LOCK: later}, is_shown=False)
    found.watch()
    assert cluster.actual_node.annotations[names.NODE_LOCK] == later
    assert removed == []


def test_lock_that_can_not_be_released_now_is_released_by_the_next_pass() -> None:
    cluster, removed = locked(f"{YOUNG},default,p", SERVED), list[str]()
    found = keeper(cluster, removed=removed)
    found.release(SERVED)
    cluster.fail_next(KubeError("away"))
    with pytest.raises(KubeError):
        found.watch()
    found.watch()
    assert removed == ["served"]


def test_refusal_of_a_pod_without_the_lock_keeps_the_release_of_another() -> None:
    cluster, removed = locked(f"{YOUNG},default,p", SERVED), list[str]()
    found = keeper(cluster, removed=removed)
    found.release(SERVED)
    found.release(replace(P, name="other"))
    found.watch()
    assert removed == ["served"]


def test_lock_of_a_pod_that_lives_is_asked_for_once_a_second() -> None:
    cluster, clock = locked(f"{YOUNG},default,p", P), FakeClock()
    cluster.shown.clear()
    found = keeper(cluster, clock)
    found.watch()
    for _ in range(20):
        clock.advance(SETTLE_S / 4)
        found.watch()
    assert len(cluster.reads) == 5


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


@pytest.mark.parametrize(
    ("later", "removed"),
    [
        (f"{YOUNG},default,p", ["stale"]),
        (f"{YOUNG},default,next", []),
        (None, []),
    ],
    ids=["stands", "taken-by-the-next", "freed-by-allocate"],
)
def test_watch_leaves_a_lock_alone_until_it_has_stood_a_while(
    later: str | None, removed: list[str]
) -> None:
    cluster, reasons, clock = locked(f"{YOUNG},default,p", SERVED), list[str](), FakeClock()
    kept = keeper(cluster, clock, reasons)
    assert kept.watch() == SETTLE_S
    clock.advance(SETTLE_S / 2)
    cluster.set_node({names.NODE_LOCK: later} if later else {})
    assert reasons == []
    clock.advance(SETTLE_S / 2)
    wait_s = kept.watch()
    assert reasons == removed
    assert (
        wait_s
        == {"stands": INTERVAL_S, "freed": None, "next": SETTLE_S}[
            "freed" if later is None else "stands" if removed else "next"
        ]
    )
