"""The API server hangs in a burst: kubelet answers, every pod ends right."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire.grants import decode_grants
from tests.e2e import cards
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.extender import DEFAULT, Extender
from tests.e2e.kubelet import healthy_slices
from tests.e2e.pods import Pods, RealContainer, describe
from tests.e2e.scheduler import Scheduler
from tests.e2e.waiting import eventually, stays
from tests.reliability import shows

_COUNT: Final = 20


def _bound(pods: Pods) -> int:
    return sum(bool(pod["spec"].get("nodeName")) for pod in pods.all())


def _has_come_to_rest(pods: Pods) -> bool:
    waiting = {
        pod["metadata"]["name"]: describe(pod["status"])
        for pod in pods.all()
        if pod["status"]["phase"] not in ("Running", "Failed")
    }
    assert not waiting, waiting
    return True


@pytest.mark.timeout(900)
@shows(
    "N4",
    fault="the API server hangs in the middle of a burst of 20 pods, for a minute in the long run",
    happens="kubelet's own API answers all the time; every pod runs with its own slice, or was "
    "refused with the reason",
    lost="pods whose Allocate fell into that time: they are refused",
)
@pytest.mark.parametrize("hangs_s", [20, pytest.param(60, marks=pytest.mark.e2e_long)])
def test_api_server_hangs_in_a_burst(
    cluster: Cluster,
    daemon: Daemon,
    extender: Extender,
    pods: Pods,
    scheduler: Scheduler,
    hangs_s: int,
) -> None:
    pid = daemon.pid()
    for number in range(_COUNT):
        asked = RealContainer(name="c0", cards=1, memory_mib=1000 + 37 * number)
        pods.create(f"burst-{number:02d}", asked, scheduler=DEFAULT)
    eventually("the burst is under way", lambda: _bound(pods) >= 3, every_s=0.02)
    server = cluster.pid("kube-apiserver")
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    try:
        stays("all slices at kubelet", lambda: sum(healthy_slices().values()) == 80, hangs_s, 1)
    finally:
        os.kill(server, signal.SIGCONT)
    cluster.wait("kube-apiserver", cluster.is_api_ready)
    eventually("the node is Ready", cluster.is_node_ready)
    extender.wait_ready()
    eventually("every pod runs or was refused", lambda: _has_come_to_rest(pods))
    phases: Counter[str] = Counter()
    for pod in pods.all():
        name, phase = pod["metadata"]["name"], pod["status"]["phase"]
        phases[phase] += 1
        if phase == "Failed":
            text = describe(pod["status"])
            assert "did not answer" in text or "API server" in text, text
            continue
        key = nvidia_names.POD_ALLOCATED
        slots = decode_grants(pod["metadata"]["annotations"][key], key, NVIDIA)
        (grant,) = [grant for slot in slots for grant in slot]
        inside = pods.inside(name, "c0")
        assert inside.cards == (grant.uuid,), name
        assert inside.memory_limits == (f"{1000 + 37 * int(name[-2:])}m",), name
        assert grant.uuid in cards.UUIDS
    print(f"after {hangs_s} s without an answer: {dict(phases)}")
    assert daemon.pid() == pid
    eventually("the node's lock is free", lambda: not scheduler.lock_owner())
