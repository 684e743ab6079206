"""(f) kubelet restarts under running pods: none dies, and the next pod works."""

from __future__ import annotations

import signal

import pytest

from tests.e2e import cards
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import healthy_slices, held_slices
from tests.e2e.pods import Pods, RealContainer, describe
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually, stays

_READMISSION_S = 2.5  # kubelet looks at running pods again about 0.9 s after its socket appears


def _start_workload(pods: Pods, scheduler: Scheduler) -> None:
    """Two pods with a GPU init container, the kind that a slow plugin kills, and two without."""
    for number in range(4):
        own = Slice(uuid=cards.uuid_of(number), memory_mib=2000 + number)
        box = RealContainer(name="c0", cards=1, memory_mib=own.memory_mib)
        init = RealContainer(name="init", cards=1, memory_mib=own.memory_mib, script="true")
        has_init = number % 2 == 0
        pod = pods.create(f"run-{number}", box, inits=[init] if has_init else [])
        scheduler.place(pod, {"c0": (own,), "init": (own,)})
    pods.wait_running(*(f"run-{n}" for n in range(4)))


def _next_pod_works(pods: Pods, scheduler: Scheduler, name: str) -> None:
    own = Slice(uuid=cards.uuid_of(6), memory_mib=3333)
    init = RealContainer(name="init", cards=1, memory_mib=3333, script="true")
    pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=3333), inits=[init])
    scheduler.place(pod, {"c0": (own,), "init": (own,)}, is_locked=True)
    pods.wait_running(name)
    assert pods.inside(name, "c0").cards == (own.uuid,)
    eventually("the lock is free", lambda: not scheduler.lock_owner())
    pods.delete(name)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=pytest.mark.e2e_long)])
def test_kubelet_restarted_many_times_kills_nobody(
    cluster: Cluster, daemon: Daemon, pods: Pods, scheduler: Scheduler, rounds: int
) -> None:
    _start_workload(pods, scheduler)
    before, held = pods.incarnations(), held_slices()
    restarts = daemon.restarts()
    for number in range(rounds):
        kind = signal.SIGKILL if number % 3 == 2 else signal.SIGTERM
        cluster.restart("kubelet", kind)
        eventually(
            f"all slices are at kubelet after restart {number}",
            lambda: healthy_slices() == dict.fromkeys(cards.UUIDS, cards.SPLIT),
            every_s=0.05,
        )
        stays("all slices at kubelet", lambda: sum(healthy_slices().values()) == 80, _READMISSION_S)
        dead = {
            p["metadata"]["name"]: describe(p["status"])
            for p in pods.all()
            if p["status"]["phase"] != "Running"
        }
        assert not dead, f"restart {number} killed {dead}"
        if number % 5 == 4:
            _next_pod_works(pods, scheduler, f"next-{number}")
    eventually("the node is Ready", cluster.is_node_ready)
    daemon.wait_offered()
    pods.wait_running(*(f"run-{n}" for n in range(4)))
    assert pods.incarnations() == before
    eventually("kubelet lists what they hold", lambda: held_slices() == held)
    assert daemon.restarts() == restarts
