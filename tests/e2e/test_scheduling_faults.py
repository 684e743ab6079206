"""Replicas that die, an API server that goes away: nothing is lost, nothing is given twice."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire import names
from hami_node.wire.grants import decode_grants
from tests.e2e import cards
from tests.e2e.api import Api
from tests.e2e.cluster import Cluster
from tests.e2e.extender import DEFAULT, SCHEDULER, Extender
from tests.e2e.parts import NODE
from tests.e2e.pods import NOBODY, Pods, RealContainer
from tests.e2e.waiting import eventually

_COUNT = 20
_MEMORY_MIB = 7000


def _create(pods: Pods, name: str, scheduler: str = DEFAULT) -> None:
    box = RealContainer(name="c0", cards=1, memory_mib=_MEMORY_MIB, cores=5)
    pods.insist(name, box, scheduler=scheduler)


def _create_all(pods: Pods, wanted: list[str]) -> None:
    for name in wanted:
        _create(pods, name)


def _check_no_card_is_given_twice(pods: Pods) -> None:
    memory: Counter[str] = Counter()
    slots: Counter[str] = Counter()
    for pod in pods.all():
        key = nvidia_names.POD_ALLOCATED
        granted = decode_grants(pod["metadata"]["annotations"][key], key, NVIDIA)
        for grant in (grant for slot in granted for grant in slot):
            memory[grant.uuid] += grant.memory_mib
            slots[grant.uuid] += 1
    assert sum(slots.values()) == len(pods.all())
    assert max(memory.values()) <= cards.MEMORY_MIB, memory
    assert max(slots.values()) <= cards.SPLIT, slots


@pytest.mark.parametrize("way", ["crash", "drain"])
def test_leader_fails_over_in_the_middle_of_a_burst(
    pods: Pods, extender: Extender, api: Api, way: str
) -> None:
    burst = [f"burst-{n:02d}" for n in range(_COUNT)]
    creator = threading.Thread(target=_create_all, args=(pods, burst))
    creator.start()
    eventually("the burst is under way", lambda: len(pods.all()) >= 5, every_s=0.02)
    before = extender.kill_leader() if way == "crash" else extender.delete_leader()
    began = time.monotonic()
    eventually("another leads", lambda: _leads_other(extender, before), every_s=0.1)
    print(
        f"after a {way} another replica leads and is served {time.monotonic() - began:.1f} s later"
    )
    creator.join()
    pods.wait_running(*burst)
    _check_no_card_is_given_twice(pods)
    extender.wait_ready()
    lost = _lost_calls(api, pods)
    print(f"{len(lost)} Events of kube-scheduler about calls that failed")
    assert way == "crash" or not lost, lost


def _lost_calls(api: Api, pods: Pods) -> list[str]:
    """What kube-scheduler says of calls that failed, about pods that are there now."""
    uids = {pod["metadata"]["uid"] for pod in pods.all()}
    found = api.read("/api/v1/namespaces/default/events")["items"]
    return [
        event["message"]
        for event in found
        if event["involvedObject"].get("uid") in uids and "https://" in event["message"]
    ]


def _leads_other(extender: Extender, before: str) -> bool:
    """A crashed replica may come back in time to lead again, in another container."""
    return extender.leading() not in ("", before)


def test_replica_killed_between_filter_and_bind(pods: Pods, extender: Extender, api: Api) -> None:
    """The test is the scheduler here, so that the replica dies at exactly that moment."""
    _create(pods, "orphan", scheduler=NOBODY)
    pod = pods.read("orphan")
    answer = extender.call("/filter", {"Pod": pod, "NodeNames": [NODE]}).json()
    assert answer["NodeNames"] == [NODE], answer
    assert names.POD_NODE not in pods.read("orphan")["metadata"].get("annotations", {})
    before = extender.kill_leader()
    eventually("somebody leads", lambda: _leads_other(extender, before))
    body = {
        "PodName": "orphan",
        "PodNamespace": "default",
        "PodUID": pod["metadata"]["uid"],
        "Node": NODE,
    }
    assert extender.call("/bind", body).json() == {"Error": ""}
    pods.wait_running("orphan")
    assert pods.annotation("orphan", nvidia_names.POD_ALLOCATED)
    assert pods.inside("orphan", "c0").memory_limits == (f"{_MEMORY_MIB}m",)
    assert api.read(f"/api/v1/nodes/{NODE}")["metadata"]["annotations"].get(names.NODE_LOCK) is None


def test_bind_without_a_reservation_makes_one_there(pods: Pods, extender: Extender) -> None:
    _create(pods, "bare", scheduler=NOBODY)
    body = {
        "PodName": "bare",
        "PodNamespace": "default",
        "PodUID": pods.read("bare")["metadata"]["uid"],
        "Node": NODE,
    }
    assert extender.call("/bind", body).json() == {"Error": ""}
    pods.wait_running("bare")
    assert pods.inside("bare", "c0").memory_limits == (f"{_MEMORY_MIB}m",)


@pytest.mark.timeout(900)
def test_api_server_restarts_and_all_goes_on(
    cluster: Cluster, pods: Pods, extender: Extender
) -> None:
    _create(pods, "before")
    pods.wait_running("before")
    leader = extender.holder()
    cluster.restart("kube-apiserver", signal.SIGKILL)
    cluster.wait("kube-apiserver", cluster.is_api_ready)
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"):
        cluster.restart(name)  # their own back-off is not what is tested
    extender.wait_ready()
    print(f"leader before {leader}, after {extender.holder()}")
    for number in range(5):
        _create(pods, f"after-{number}")
    pods.wait_running("before", *(f"after-{n}" for n in range(5)))
    _check_no_card_is_given_twice(pods)
    assert pods.read("after-0")["spec"]["schedulerName"] == SCHEDULER
