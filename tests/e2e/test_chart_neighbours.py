"""The chart beside HAMi, over edits in the cluster, over a kustomization; what its notes say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.api import Api
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import CONFIG_MAP, NAMESPACE, Daemon
from tests.e2e.extender import Extender
from tests.e2e.parts import NODE
from tests.e2e.release import NAME, Refused, Release
from tests.e2e.waiting import eventually

pytestmark = [pytest.mark.e2e_long, pytest.mark.timeout(900)]
_HAMI: Final = (Path(__file__).parent / "hami_chart.yaml").read_text()


@pytest.mark.usefixtures("released")
def test_edit_in_the_cluster_survives_upgrades_and_is_announced(api: Api, release: Release) -> None:
    made = api.read(CONFIG_MAP)["data"]
    text = made["device-config.yaml"].replace("deviceSplitCount: 10", "deviceSplitCount: 7")
    api.patch(CONFIG_MAP, {"data": {"device-config.yaml": f"# tried on Monday\n{text}"}})
    edited = api.read(CONFIG_MAP)["data"]
    for _ in range(2):
        assert "The edit\n    was kept" in release.upgrade()
        assert api.read(CONFIG_MAP)["data"] == edited
    with pytest.raises(Refused, match="edited in the cluster, and these values change it as well"):
        release.upgrade("devicePlugin.deviceSplitCount=8")
    assert api.read(CONFIG_MAP)["data"] == edited, "a refused upgrade changes nothing"
    assert "The edit was\n    overwritten" in release.upgrade("config.liveEdits=overwrite")
    assert api.read(CONFIG_MAP)["data"] == made
    assert "edited" not in release.upgrade()


@pytest.mark.usefixtures("released")
def test_certificates_endpoints_and_authority_are_kept_by_upgrades(
    api: Api, release: Release
) -> None:
    before = _written_by_others(api)
    assert all(before)
    release.upgrade("devicePlugin.podAnnotations.a=b")
    assert _written_by_others(api) == before


def _written_by_others(api: Api) -> list[Any]:
    secrets = api.read(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-node"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/hami-node-leader"
    ours = {one["metadata"]["name"]: one["data"] for one in secrets if one["type"] == "Opaque"}
    return [
        ours,
        api.read(path)["webhooks"][0]["clientConfig"]["caBundle"],
        api.read(slices)["endpoints"],
    ]


@pytest.mark.usefixtures("released")
def test_helm_test_finds_everything_in_order(release: Release) -> None:
    shown = release.run("test", NAME, "--logs", "--timeout=120s")
    assert "Phase:          Succeeded" in shown, shown
    assert "nothing wrong was found" in shown, (
        "--logs shows the table; its account reads no Secrets"
    )


@pytest.fixture
def beside_hami(cluster: Cluster, release: Release) -> Iterator[Release]:
    """No release yet, and what decides of HAMi's: its DaemonSet, its Deployment, a binding."""
    release.uninstall()
    cluster.kubectl("apply", "-f", "-", stdin=_HAMI)
    yield release
    cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=_HAMI)
    release.uninstall()
    release.install()


def test_beside_hami_only_our_own_label_starts_the_daemon_and_that_is_kept(
    beside_hami: Release, cluster: Cluster, api: Api
) -> None:
    api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"gpu": "on"} | _serve(None)}})
    try:
        notes = beside_hami.install("scheduler.enabled=false")
        assert "Another device plugin: DaemonSet kube-system/hami-device-plugin" in notes
        assert "0 node(s) match" in notes
        assert _scheduled(api) == 0, "HAMi's label does not start us beside its plugin"
        cluster.kubectl("-n", "kube-system", "delete", "daemonset", "hami-device-plugin")
        beside_hami.upgrade("scheduler.enabled=false")
        assert _scheduled(api) == 0, "what was decided at the first install stays"
        api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": _serve("true")}})
        eventually("the daemon is started", lambda: _scheduled(api) == 1)
    finally:
        labels = {"gpu": None} | _serve("true")
        api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}})


def _serve(value: str | None) -> dict[str, str | None]:
    return {"hami-node.io/serve": value}


def _scheduled(api: Api) -> int:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/hami-node"
    return int(api.read(path)["status"]["desiredNumberScheduled"])


def test_beside_hamis_scheduler_ours_stays_idle_and_hamis_objects_stay_hamis(
    beside_hami: Release, api: Api
) -> None:
    binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/hami-scheduler"
    before = api.read(binding)
    with pytest.raises(Refused, match=r"kube-system/hami-scheduler.*kubeScheduler\.replicas=0"):
        beside_hami.install()
    notes = beside_hami.install("scheduler.kubeScheduler.replicas=0")
    assert "Ours stays idle" in notes
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    assert not api.exists(f"{policies}/hami-node-reservations"), "it would refuse HAMi's writes"
    beside_hami.uninstall()
    assert api.read(binding) == before


def test_notes_say_what_the_cluster_lacks(beside_hami: Release, cluster: Cluster) -> None:
    idle = "scheduler.kubeScheduler.replicas=0"
    assert "No runtime class missing" in beside_hami.preview(
        idle, "devicePlugin.runtimeClassName=missing"
    )
    assert "Pod Security" not in beside_hami.preview(idle)
    level = "pod-security.kubernetes.io/enforce"
    try:
        cluster.kubectl("label", "--overwrite", "namespace", NAMESPACE, f"{level}=baseline")
        said = beside_hami.preview(idle)
        assert 'enforces Pod Security "baseline"' in said
        assert f"kubectl label namespace {NAMESPACE} --overwrite" in said
    finally:
        cluster.kubectl("label", "--overwrite", "namespace", NAMESPACE, f"{level}=privileged")


def test_chart_takes_over_what_kustomize_installed(
    release: Release, cluster: Cluster, installed: Daemon, api: Api
) -> None:
    release.uninstall()
    installed.install()
    cluster.kubectl("-n", NAMESPACE, "delete", "daemonset/hami-node")
    release.install(flags=("--take-ownership",))
    Extender(cluster, api).wait_ready()
    owner = api.read(CONFIG_MAP)["metadata"]["annotations"]["meta.helm.sh/release-name"]
    assert owner == NAME
