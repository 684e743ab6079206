"""A pod attacks every port of the product for a minute: probes stay green and pods get cards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.api import Api, Json
from tests.e2e.attack import attack
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import NAMESPACE, Daemon
from tests.e2e.extender import DEFAULT, NAME, Extender
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually
from tests.reliability import shows

_PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_UNITS: Final = {"Mi": 1024, "Gi": 1024 * 1024}


def _targets(pod: Json) -> list[tuple[str, int]]:
    """Every port that the pod's container names."""
    container = pod["spec"]["containers"][0]
    return [(pod["status"]["podIP"], port["containerPort"]) for port in container["ports"]]


def _limit_kib(pod: Json) -> int:
    text = pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
    return int(text[:-2]) * _UNITS[text[-2:]]


def _peak_kib(cluster: Cluster, pod: Json) -> int:
    """The most memory that the pod's process has held."""
    wanted = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    for line in cluster.ctr("tasks", "list").splitlines():
        words = line.split()
        if words[0] == wanted:
            status = Path(f"/proc/{words[1]}/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0])
    raise AssertionError(f"container {wanted} does not run")


def _is_green(pod: Json) -> bool:
    """Ready, and its container never started again."""
    statuses = pod["status"].get("containerStatuses", [])
    return len(statuses) == 1 and statuses[0]["ready"] and statuses[0]["restartCount"] == 0


@pytest.mark.timeout(900)
@shows(
    "E4",
    fault="a pod attacks every port of daemon and extender for a minute: idle and slow "
    "connections by the thousand, bodies of 380 MiB",
    happens="the probes stay green, memory stays below the limit, a pod gets its card meanwhile",
)
@pytest.mark.parametrize("for_s", [15, pytest.param(60, marks=pytest.mark.e2e_long)])
def test_attack_on_all_ports(
    cluster: Cluster, api: Api, daemon: Daemon, extender: Extender, pods: Pods, for_s: int
) -> None:
    daemon.forget_crashes()
    extender.replace()  # its restarts count from nothing
    eventually("both replicas are new", lambda: sum(map(_is_green, extender.pods())) == 2)
    extender.wait_ready()
    victims = [daemon.pod(), *extender.pods()]
    began, started = time.monotonic(), False
    with attack(*(target for pod in victims for target in _targets(pod))) as made:
        while time.monotonic() - began < for_s:
            if not started and time.monotonic() - began > 10:
                container = RealContainer(name="c0", cards=1, memory_mib=1234)
                pods.create("meanwhile", container, scheduler=DEFAULT)
                started = True
            for victim in victims:
                now = api.read(f"{_PATH}/{victim['metadata']['name']}")
                assert _is_green(now), f"{now['metadata']['name']}: {now['status']}"
            time.sleep(1)
        pods.wait_running("meanwhile")
        peaks = {p["metadata"]["name"]: (_peak_kib(cluster, p), _limit_kib(p)) for p in victims}
    print(f"attacked {len(victims)} pods: {dict(made.done)}; peak and limit, KiB: {peaks}")
    assert all(peak < limit for peak, limit in peaks.values()), peaks
    assert pods.inside("meanwhile", "c0").memory_limits == ("1234m",)
    assert NAME in "".join(peaks)
