"""The chart on a real cluster: install, upgrade and roll back under running pods, uninstall.

The daemon, the extender and kube-scheduler are Helm's in this module.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest
import yaml

from tests.e2e import parts
from tests.e2e.api import Api, ApiError
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import CONFIG_MAP, NAMESPACE
from tests.e2e.extender import DEFAULT, SCHEDULER, Extender
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.release import Release
from tests.e2e.waiting import eventually

_WORKLOADS: Final = "daemonsets,deployments,replicasets,jobs,pods,poddisruptionbudgets"
_ALLOWED_S: Final = 5.0
"""For how long the webhook may be away: kube-proxy follows the endpoints that late, if loaded."""


def _card(memory_mib: int = 3000) -> RealContainer:
    return RealContainer(name="c0", cards=1, memory_mib=memory_mib, cores=5)


@dataclass(slots=True)
class Asker:
    """Asks again and again whether a pod with cards would be taken; nothing is stored."""

    api: Api
    refusals: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Asker:
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _ask(self) -> None:
        pod: dict[str, Any] = {
            "metadata": {"generateName": "asked-"},
            "spec": {"containers": [_card().manifest()]},
        }
        taken = time.monotonic()
        while not self._stop.wait(0.1):
            try:
                found = self.api.create(Pods.path, pod, is_dry_run=True)
                assert found["spec"]["schedulerName"] == SCHEDULER
                taken = time.monotonic()
            except (ApiError, AssertionError, httpx.TransportError) as error:
                self.refusals.append(str(error))
            self.longest_s = max(self.longest_s, time.monotonic() - taken)


def _under_traffic(api: Api, pods: Pods, change: subprocess.Popen[str], name: str) -> Asker:
    """Let pods come until the change is over; all of them run, and none was refused for long."""
    began = time.monotonic()
    created: list[str] = []
    with Asker(api) as asker:
        while change.poll() is None:
            created.append(f"{name}-{len(created)}")
            pods.insist(created[-1], _card(500), scheduler=DEFAULT)
            time.sleep(2)
    said, _ = change.communicate()
    assert change.returncode == 0, said
    eventually("none is under way", lambda: _none_is_pending(pods))
    again = _create_again(pods, created)
    pods.wait_running(*created)
    print(
        f"{name}: {time.monotonic() - began:.1f} s, {len(created)} pods, {len(again)} of them "
        f"twice, {len(asker.refusals)} reviews failed"
    )
    pods.delete(*created)
    return asker


def _none_is_pending(pods: Pods) -> bool:
    return all(one["status"]["phase"] != "Pending" for one in pods.all())


def _create_again(pods: Pods, created: list[str]) -> list[str]:
    """What a controller does with pods that were placed just before the daemon was replaced."""
    failed = [
        one["metadata"]["name"]
        for one in pods.all()
        if one["metadata"]["name"] in created
        and one["status"].get("reason") == "UnexpectedAdmissionError"
    ]
    assert len(failed) <= 2, failed  # the first closes the node; another may be on its way
    pods.delete(*failed)
    for name in failed:
        pods.create(name, _card(500), scheduler=DEFAULT)
    return failed


@pytest.mark.usefixtures("released")
def test_pod_gets_its_slice_from_what_the_chart_installed(pods: Pods) -> None:
    pods.create("mine", _card(), scheduler=DEFAULT)
    pods.wait_running("mine")
    inside = pods.inside("mine", "c0")
    assert inside.memory_limits == ("3000m",)
    assert len(inside.cards) == 1


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("released")
def test_upgrade_and_rollback_leave_running_pods_alone_and_refuse_nobody(
    pods: Pods, api: Api, release: Release
) -> None:
    pods.create("resident", _card(), scheduler=DEFAULT)
    pods.wait_running("resident")
    before = pods.incarnations()["resident/c0"]
    upgrade = release.begin_upgrade("image.tag=e2e-next", "devicePlugin.deviceSplitCount=9")
    asker = _under_traffic(api, pods, upgrade, "upgrade")
    assert asker.longest_s < _ALLOWED_S, asker.refusals
    assert _split_count(api) == 9
    asker = _under_traffic(api, pods, release.begin_rollback(), "rollback")
    assert asker.longest_s < _ALLOWED_S, asker.refusals
    assert _split_count(api) == 10
    assert pods.incarnations()["resident/c0"] == before
    pods.create("after", _card(), scheduler=DEFAULT)
    pods.wait_running("resident", "after")


def _split_count(api: Api) -> int:
    config = yaml.safe_load(api.read(CONFIG_MAP)["data"]["device-config.yaml"])
    return int(config["nvidia"]["deviceSplitCount"])


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("released")
def test_uninstall_leaves_running_pods_and_what_the_documents_name(
    pods: Pods, api: Api, release: Release, cluster: Cluster
) -> None:
    pods.create("stays", _card(), scheduler=DEFAULT)
    pods.wait_running("stays")
    before = pods.incarnations()
    release.uninstall()
    eventually("only what is named is left", lambda: _is_left_alone(cluster))
    assert pods.incarnations() == before
    release.install()
    Extender(cluster, api).wait_ready()
    assert pods.incarnations() == before
    pods.create("again", _card(), scheduler=DEFAULT)
    pods.wait_running("stays", "again")


def _is_left_alone(cluster: Cluster) -> bool:
    """Nothing of ours is there but what stays; kubelet and controllers tidy up after Helm."""
    kinds = "configmaps,secrets,serviceaccounts,services,endpointslices,leases,roles,rolebindings"
    wide = (
        "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,"
        "validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    inside = cluster.kubectl("-n", NAMESPACE, "get", f"{kinds},{_WORKLOADS}", "-o", "name")
    outside = cluster.kubectl("get", wide, "-o", "name")
    assert {*inside.split(), *(one for one in outside.split() if "hami" in one)} == {
        "configmap/kube-root-ca.crt",
        "serviceaccount/default",
        "lease.coordination.k8s.io/hami-node-extender",
        "lease.coordination.k8s.io/hami-node-scheduler",
    }
    return True


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("args", [(), ("--probe",)], ids=["looks", "probes"])
def test_verify_finds_nothing_wrong(cluster: Cluster, args: tuple[str, ...]) -> None:
    config = parts.kubeconfig(cluster.root, parts.ADMIN)
    command = [sys.executable, "-m", "hami_node", "verify", "--kubeconfig", str(config), *args]

    def probe() -> bool:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        print(done.stdout)
        return True

    eventually("nothing is wrong", probe)  # some of it was started a moment ago
