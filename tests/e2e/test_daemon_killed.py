"""(g) The daemon dies at the worst moment, or is upgraded: nobody but one pod may notice."""

from __future__ import annotations

import signal
import time

import pytest

from hami_node.wire import names
from tests.e2e import cards
from tests.e2e.api import Api
from tests.e2e.assets import IMAGE_NEXT
from tests.e2e.daemon import USER, Daemon
from tests.e2e.gate import gate
from tests.e2e.pki import Authority
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import LIMIT_S, eventually

_CARD = cards.uuid_of(2)


@pytest.fixture
def mortal(daemon: Daemon) -> Daemon:
    """A daemon that kubelet starts again at once, because it has not crashed before."""
    daemon.forget_crashes()
    daemon.wait_offered()
    return daemon


def _run(pods: Pods, scheduler: Scheduler, name: str, memory_mib: int) -> None:
    pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=memory_mib))
    scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=memory_mib),)}, is_locked=True)
    pods.wait_running(name)
    assert pods.inside(name, "c0").memory_limits == (f"{memory_mib}m",)


def _victim(pods: Pods, scheduler: Scheduler) -> None:
    pod = pods.create("victim", RealContainer(name="c0", cards=1, memory_mib=2222))
    scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=2222),)}, is_locked=True)


def _check_recovery(
    daemon: Daemon, pods: Pods, scheduler: Scheduler, running: dict[str, tuple[str, int]]
) -> None:
    """A new daemon serves, the victim's lock is gone, the others run on, the next pod works."""
    eventually("the daemon runs again", lambda: daemon.restarts() == 1)
    daemon.wait_ready()
    eventually("the node's lock is free", lambda: not scheduler.lock_owner())
    eventually(
        "the victim runs or failed",
        lambda: pods.read("victim")["status"]["phase"] in ("Running", "Failed"),
    )
    daemon.wait_offered()
    _run(pods, scheduler, "next", 4444)
    now = pods.incarnations()
    assert {k: v for k, v in now.items() if k in running} == running


def test_killed_before_it_looked_at_the_pod(
    mortal: Daemon, pods: Pods, scheduler: Scheduler
) -> None:
    _run(pods, scheduler, "steady", 1111)
    running = pods.incarnations()
    mortal.signal(signal.SIGSTOP)
    _victim(pods, scheduler)
    time.sleep(2)  # kubelet's call waits at the frozen daemon
    mortal.kill()
    _check_recovery(mortal, pods, scheduler, running)


@pytest.mark.parametrize("held", ["pods", "nodes"])
def test_killed_while_its_write_is_under_way(
    api: Api, authority: Authority, mortal: Daemon, pods: Pods, scheduler: Scheduler, held: str
) -> None:
    _run(pods, scheduler, "steady", 1111)
    running = pods.incarnations()
    with gate(api, authority, USER, held) as door:
        _victim(pods, scheduler)
        assert door.arrived.wait(LIMIT_S), f"no write to {held} came"
        mortal.kill()
        door.opened.set()
    _check_recovery(mortal, pods, scheduler, running)


def test_killed_when_all_is_done(mortal: Daemon, pods: Pods, scheduler: Scheduler) -> None:
    _victim(pods, scheduler)
    pods.wait_running("victim")
    running = pods.incarnations()
    mortal.kill()
    _check_recovery(mortal, pods, scheduler, running)
    assert pods.annotation("victim", names.POD_BIND_PHASE) == names.PHASE_SUCCESS


def test_upgrade_leaves_running_pods_alone(
    daemon: Daemon, pods: Pods, scheduler: Scheduler
) -> None:
    _run(pods, scheduler, "steady", 1111)
    running = pods.incarnations()
    before = daemon.pod()["metadata"]["uid"]
    daemon.run_image(IMAGE_NEXT)
    assert daemon.pod()["metadata"]["uid"] != before
    daemon.wait_offered()
    _run(pods, scheduler, "next", 4444)
    assert {k: v for k, v in pods.incarnations().items() if k in running} == running
    daemon.restore()
    assert {k: v for k, v in pods.incarnations().items() if k in running} == running


def test_live_use_is_known_again_after_a_restart(
    mortal: Daemon, pods: Pods, scheduler: Scheduler
) -> None:
    _run(pods, scheduler, "steady", 60_000)
    mortal.kill()
    eventually("the daemon runs again", lambda: mortal.restarts() == 1)
    mortal.wait_ready()
    mortal.wait_offered()
    pod = pods.create("greedy", RealContainer(name="c0", cards=1, memory_mib=40_000))
    scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=40_000),)})
    assert _CARD in pods.wait_phase("greedy", "Failed")["message"]
