"""(h) The API server is away: kubelet keeps its devices, all converges after."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from tests.e2e.cards import Cards, lost, uuid_of
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import healthy_slices
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually, stays

_CARD = uuid_of(5)


def _bring_back(cluster: Cluster) -> None:
    """Start the API server; restart its other clients, which take a minute to find it.

    The daemon is not told: how soon it finds back is what is tested. It needs kube-proxy: while
    that has not asked again, every connection to the service's address is refused.
    """
    cluster.start("kube-apiserver")
    cluster.wait("kube-apiserver", cluster.is_api_ready)
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"):
        cluster.restart(name)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("outage_s", [20, pytest.param(60, marks=pytest.mark.e2e_long)])
def test_outage_changes_nothing_on_the_node(
    cluster: Cluster,
    daemon: Daemon,
    pods: Pods,
    scheduler: Scheduler,
    cards: Cards,
    outage_s: int,
) -> None:
    pod = pods.create("steady", RealContainer(name="c0", cards=1, memory_mib=2000))
    scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=2000),)})
    pods.wait_running("steady")
    running, pid, restarts = pods.incarnations(), daemon.pid(), daemon.restarts()
    before = daemon.annotations()[nvidia_names.NODE_HANDSHAKE]

    cluster.stop("kube-apiserver", signal.SIGKILL)
    stays("all slices at kubelet", lambda: sum(healthy_slices().values()) == 80, outage_s - 10, 1)
    cards.show(lost(0))  # kubelet hears of it without an API server
    eventually("the lost card is gone from kubelet", lambda: sum(healthy_slices().values()) == 70)
    stays("the other slices at kubelet", lambda: sum(healthy_slices().values()) == 70, 8, 1)
    _bring_back(cluster)
    eventually(
        "the lost card is reported",
        lambda: (
            [
                d.uuid
                for d in decode_register(daemon.annotations()[nvidia_names.NODE_REGISTER])
                if not d.healthy
            ]
            == [uuid_of(0)]
        ),
    )
    cards.heal()
    eventually("the card is back", lambda: sum(healthy_slices().values()) == 80)
    assert (daemon.pid(), daemon.restarts()) == (pid, restarts)
    eventually("the node is Ready", cluster.is_node_ready)
    pod = pods.create("next", RealContainer(name="c0", cards=1, memory_mib=3000))
    scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=3000),)}, is_locked=True)
    # kubelet's own back-off: it may look for new pods a minute or two after the outage
    pods.wait_running("next")
    assert pods.inside("next", "c0").memory_limits == ("3000m",)
    # the daemon's watch may learn of the lock after Allocate: then its keeper frees it
    eventually("the lock is free", lambda: not scheduler.lock_owner())
    assert {k: v for k, v in pods.incarnations().items() if k in running} == running
    eventually(
        "the daemon reports again",
        lambda: daemon.annotations()[nvidia_names.NODE_HANDSHAKE] != before,
    )


def _listens(address: str) -> bool:
    socket.create_connection((address, 9394), timeout=20).close()
    return True


@pytest.mark.timeout(900)
def test_daemon_started_without_api_server_still_offers_its_cards(
    cluster: Cluster, daemon: Daemon
) -> None:
    daemon.forget_crashes()
    pid, address = daemon.pid(), daemon.address()
    cluster.stop("kube-apiserver", signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    try:
        eventually("the daemon is gone", lambda: not Path(f"/proc/{pid}").exists())
        eventually("a new one runs", lambda: _listens(address))
        eventually("it has offered them again", lambda: sum(healthy_slices().values()) == 80)
    finally:
        _bring_back(cluster)
    daemon.wait_offered()
    eventually("the node is Ready", cluster.is_node_ready)
