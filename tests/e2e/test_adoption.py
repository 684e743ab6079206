"""Pods that were there before the daemon, under HAMi's annotations: they keep what they hold."""

from __future__ import annotations

import shutil
import signal

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e import cards
from tests.e2e.daemon import Daemon
from tests.e2e.limiter import CONTAINERS
from tests.e2e.machine import NODE_DIR
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually
from tests.reliability import shows

_CARD = cards.uuid_of(4)
_HELD_MIB = 60_000


def _begin_anew(daemon: Daemon) -> None:
    """A daemon without any memory of its own, as on a node that another plugin has served."""
    daemon.signal(signal.SIGSTOP)
    shutil.rmtree(NODE_DIR / "record")
    for folder in CONTAINERS.iterdir():
        shutil.rmtree(folder, ignore_errors=True)  # what is mounted stays busy
    daemon.kill()
    eventually("the daemon runs again", lambda: daemon.restarts() > 0)
    daemon.wait_ready()
    daemon.wait_offered()


def _granted_mib(daemon: Daemon) -> float:
    return daemon.metric("hami_node_card_memory_granted_bytes", uuid=_CARD) / 2**20


@pytest.mark.parametrize("is_cleared", [True, False])
@shows(
    "R2",
    fault="the record is gone, and pods run that HAMi's plugin has served",
    happens="they are adopted from kubelet's list and their annotations, and count in full",
)
def test_pods_that_were_there_before_the_daemon(
    daemon: Daemon, pods: Pods, scheduler: Scheduler, is_cleared: bool
) -> None:
    pod = pods.create("earlier", RealContainer(name="c0", cards=1, memory_mib=_HELD_MIB))
    scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=_HELD_MIB),)})
    pods.wait_running("earlier")
    if not is_cleared:
        scheduler.reserve(pods.read("earlier"), {"c0": (Slice(uuid=_CARD, memory_mib=_HELD_MIB),)})
    running = pods.incarnations()
    daemon.forget_crashes()
    _begin_anew(daemon)
    eventually("what it holds is known", lambda: _granted_mib(daemon) == _HELD_MIB)
    greedy = pods.create("greedy", RealContainer(name="c0", cards=1, memory_mib=30_000))
    scheduler.place(greedy, {"c0": (Slice(uuid=_CARD, memory_mib=30_000),)})
    assert _CARD in pods.wait_phase("greedy", "Failed")["message"]
    modest = pods.create("modest", RealContainer(name="c0", cards=1, memory_mib=10_000))
    scheduler.place(modest, {"c0": (Slice(uuid=_CARD, memory_mib=10_000),)})
    pods.wait_running("modest")
    assert pods.inside("modest", "c0").memory_limits == ("10000m",)
    assert {k: v for k, v in pods.incarnations().items() if k in running} == running
    assert pods.annotation("earlier", nvidia_names.POD_ALLOCATED).count(_CARD) == 1
    pods.delete("earlier")
    eventually("what it held is free", lambda: _granted_mib(daemon) == 10_000)
