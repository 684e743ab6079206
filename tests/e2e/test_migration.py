"""The way over from HAMi and NVIDIA's plugin, by the commands that `hami-node migrate` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from tests.e2e import cards, parts
from tests.e2e.api import Api
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import NAMESPACE, Daemon
from tests.e2e.foreign_install import (
    Foreign,
    Migration,
    install_hami,
    install_nvidia,
    registered_as_hami,
    remove,
    serve_as_hami,
)
from tests.e2e.kubelet import healthy_slices, held_slices
from tests.e2e.paper_nodes import PaperNodes
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually, stays
from tests.reliability import shows

_NODE: Final = f"/api/v1/nodes/{parts.NODE}"
_SERVE: Final = "hami-node.io/serve"
_OPERATOR_LABEL: Final = "nvidia.com/gpu.deploy.device-plugin"
_GPU: Final = nvidia_names.RESOURCE_GPU
_SLICES: Final = cards.COUNT * cards.SPLIT
_PLUGIN_ONLY: Final = ("ServiceAccount", "ConfigMap", "DaemonSet")
_POLICY: Final = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "cluster-policy"},
    "spec": {"devicePlugin": {"enabled": True}, "cdi": {"enabled": True}},
}
_KIND: Final = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {
        "group": "nvidia.com",
        "scope": "Cluster",
        "names": {
            "kind": "ClusterPolicy",
            "plural": "clusterpolicies",
            "singular": "clusterpolicy",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def migration(cluster: Cluster) -> Migration:
    """The command, as a user runs it."""
    return Migration(cluster)


@pytest.fixture
def before(daemon: Daemon, pods: Pods, api: Api, cluster: Cluster) -> Iterator[None]:
    """Ours is installed and serves no node; all is as it was after the test."""
    assert pods
    _label(api, {_SERVE: None})
    eventually("the daemon is gone", lambda: not _own_pods(api))
    eventually("kubelet has noticed", lambda: not healthy_slices())
    yield
    pods.clear()
    remove(cluster, api)
    daemon.install()
    daemon.wait_offered()


@pytest.mark.usefixtures("before")
def test_frozen_daemonset_leaves_labelled_nodes_and_restarts_nothing(
    cluster: Cluster, api: Api, migration: Migration
) -> None:
    with PaperNodes(api) as nodes:
        for name in ("paper-1", "paper-2"):
            nodes.add(name)
            api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"gpu": "on"}}})
        hami = install_hami(cluster, api, *_PLUGIN_ONLY)
        every = {parts.NODE, "paper-1", "paper-2"}
        eventually("a pod on each node", lambda: set(hami.pods()) == every)
        eventually("the real one serves", hami.is_ready)
        running = hami.pods()
        step = migration.plan()["Freeze"]
        migration.run(step["commands"])
        assert migration.plan()["Freeze"]["state"] == "done"
        stays("all pods as before", lambda: _alive(hami) == running, for_s=5)
        _label(api, {_SERVE: "true"}, "paper-1")
        rest = {node: uid for node, uid in running.items() if node != "paper-1"}
        eventually("the labelled node is left", lambda: _alive(hami) == rest)
        _end_as_kubelet(api, "paper-1")
        _label(api, {_SERVE: None}, "paper-1")
        eventually("it is back", lambda: set(_alive(hami)) == every)
        assert {n: u for n, u in _alive(hami).items() if n != "paper-1"} == rest
        migration.run(step["undo"])
        spec = api.read("/apis/apps/v1/namespaces/kube-system/daemonsets/hami-device-plugin")[
            "spec"
        ]
        assert spec["updateStrategy"]["type"] == "RollingUpdate"
        assert not spec["template"]["spec"].get("affinity", {}).get("nodeAffinity")
        # before the paper nodes go: pods of a node that is gone stay for a minute
        cluster.kubectl("-n", "kube-system", "delete", "daemonset", hami.name, "--wait=false")
        eventually("all pods are going", lambda: not _alive(hami))


@pytest.mark.e2e_long
@pytest.mark.usefixtures("before")
@shows(
    "R2",
    fault="a node is handed over from HAMi's plugin while its pods run, and handed back",
    happens="no pod is restarted, what they hold counts all the time, and new pods are served by "
    "whoever has the node",
)
def test_node_is_handed_over_and_back_while_its_pods_run(
    cluster: Cluster,
    api: Api,
    daemon: Daemon,
    pods: Pods,
    scheduler: Scheduler,
    migration: Migration,
) -> None:
    hami = install_hami(cluster, api, *_PLUGIN_ONLY)
    registered_as_hami(api)
    _wait_for_slices()
    held = _serve(api, pods, scheduler, "earlier", 3)
    assert migration.problems() == []
    steps = migration.plan()
    assert steps["Canary"]["nodes"] == [parts.NODE]
    migration.run(steps["Freeze"]["commands"])
    migration.run(steps["Canary"]["commands"])
    assert set(hami.pods()) == set()
    _settle(daemon)
    assert migration.problems() == []
    assert migration.plan()["Canary"]["state"] == "done"
    assert _runs_on(pods, held)
    eventually("what it holds counts", lambda: _granted_mib(daemon, 3) == 4000)
    pod = pods.create("ours", RealContainer(name="c0", cards=1, memory_mib=2000))
    scheduler.place(pod, {"c0": (Slice(uuid=cards.uuid_of(3), memory_mib=2000),)})
    pods.wait_running("ours")
    assert pods.inside("ours", "c0").memory_limits == ("2000m",)
    assert len(set(held_slices()["ours/c0"]) & set(held_slices()["earlier/c0"])) == 0
    held = pods.incarnations()
    migration.run(steps["Canary"]["undo"])  # back
    eventually("HAMi serves again", hami.is_ready)
    eventually("ours is gone", lambda: not _own_pods(api))
    _wait_for_slices()
    _serve(api, pods, scheduler, "later", 5)
    assert pods.inside("later", "c0").env["SERVED_BY"] == "stand-in"
    assert _runs_on(pods, held)
    assert migration.problems() == []
    migration.run(steps["Canary"]["commands"])  # and over again, with pods of both
    _settle(daemon)
    assert _runs_on(pods, held)
    for card, mib in ((3, 6000), (5, 4000)):
        eventually("all counts", lambda c=card, m=mib: _granted_mib(daemon, c) == m)  # type: ignore[misc]


@pytest.mark.e2e_long
@pytest.mark.usefixtures("before")
def test_node_served_twice_and_by_nobody_is_said(
    cluster: Cluster, api: Api, daemon: Daemon, migration: Migration
) -> None:
    hami = install_hami(cluster, api, *_PLUGIN_ONLY)
    eventually("HAMi serves", hami.is_ready)
    assert migration.problems() == []
    _label(api, {_SERVE: "true"})
    daemon.wait_ready()
    assert any("served twice, by HAMi and hami-node" in one for one in migration.problems())
    migration.run(migration.plan()["Freeze"]["commands"])
    eventually("HAMi's is gone", lambda: not hami.pods())
    assert migration.problems() == []
    daemon.forget_crashes()
    _label(api, {_SERVE: "false"})
    eventually("ours is gone", lambda: not _own_pods(api))
    eventually("HAMi's is back", hami.is_ready)
    _label(api, {_SERVE: "true", "gpu": "on"})
    eventually("ours is there", lambda: _own_pods(api))


@pytest.mark.e2e_long
@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("has_operator", [False, True], ids=["plugin-alone", "gpu-operator"])
def test_node_is_handed_over_from_nvidias_plugin(
    cluster: Cluster,
    api: Api,
    daemon: Daemon,
    pods: Pods,
    scheduler: Scheduler,
    migration: Migration,
    has_operator: bool,
) -> None:
    if has_operator:
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(_KIND))
        _label(api, {_OPERATOR_LABEL: "true"})
        cluster.kubectl(
            "wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com", "--timeout=30s"
        )
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(_POLICY))
    try:
        plugin = install_nvidia(cluster, api, {_OPERATOR_LABEL: "true"} if has_operator else {})
        eventually("whole cards", lambda: daemon.allocatable(_GPU) == cards.COUNT)
        name = _whole_card(api, pods)
        steps = migration.plan()
        assert ("Freeze" in steps) != has_operator
        if not has_operator:
            migration.run(steps["Freeze"]["commands"])
        but = ("kubectl drain", "kubectl taint", "helm")  # its pods stay: their cards are closed
        migration.run(steps["Canary"]["commands"], but=but)
        assert not plugin.pods()
        assert migration.problems() == []
        _settle(daemon, _SLICES - cards.SPLIT)
        closed = {str(one.uuid) for one in decode_register(_register(daemon)) if not one.healthy}
        assert closed == set(held_slices()[f"{name}/c0"])
        running = pods.incarnations()
        pods.delete(name)
        _settle(daemon)
        pod = pods.create("ours", RealContainer(name="c0", cards=1, memory_mib=2000))
        scheduler.place(pod, {"c0": (Slice(uuid=cards.uuid_of(1), memory_mib=2000),)})
        pods.wait_running("ours")
        assert running
        pods.clear()
        migration.run(steps["Canary"]["undo"], but=("kubectl taint", "helm"))
        eventually("whole cards", lambda: daemon.allocatable(_GPU) == cards.COUNT)
        if has_operator:
            migration.run(migration.plan()["Remove"]["commands"])
            spec = json.loads(
                cluster.kubectl("get", "clusterpolicy", "cluster-policy", "-o", "json")
            )["spec"]
            assert spec["devicePlugin"]["enabled"] is False
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "crd/clusterpolicies.nvidia.com")


def _label(api: Api, labels: dict[str, str | None], node: str = parts.NODE) -> None:
    api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})


def _end_as_kubelet(api: Api, node: str) -> None:
    """A paper node has no kubelet that would remove a pod that is going away."""
    space = "/api/v1/namespaces/kube-system/pods"
    for pod in api.read(space, fieldSelector=f"spec.nodeName={node}")["items"]:
        if "deletionTimestamp" in pod["metadata"]:
            api.delete(f"{space}/{pod['metadata']['name']}", 0)


def _wait_for_slices() -> None:
    """Until kubelet itself may hand them out: the node object says so seconds later."""
    eventually("HAMi offers slices", lambda: healthy_slices().total() == _SLICES)


def _own_pods(api: Api) -> list[str]:
    found = api.read(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector="app=hami-node")
    return [pod["metadata"]["name"] for pod in found["items"]]


def _alive(foreign: Foreign) -> dict[str, str]:
    """Its pods that are not going away: a paper node has no kubelet that would end them."""
    found = foreign.api.read("/api/v1/namespaces/kube-system/pods")["items"]
    going = {pod["metadata"]["uid"] for pod in found if "deletionTimestamp" in pod["metadata"]}
    alive = {}
    for pod in found:
        owner = pod["metadata"].get("ownerReferences", [{}])[0].get("name")
        if owner == foreign.name and pod["metadata"]["uid"] not in going:
            alive[pod["spec"].get("nodeName", "")] = pod["metadata"]["uid"]
    return alive


def _serve(
    api: Api, pods: Pods, scheduler: Scheduler, name: str, card: int
) -> dict[str, tuple[str, int]]:
    """A pod as HAMi's scheduler places it and its plugin serves it; all containers that run."""
    pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=4000))
    scheduler.place(pod, {"c0": (Slice(uuid=cards.uuid_of(card), memory_mib=4000),)})
    pods.wait_running(name)
    serve_as_hami(api, name)
    return pods.incarnations()


def _whole_card(api: Api, pods: Pods) -> str:
    pod = pods.create("earlier", RealContainer(name="c0", cards=1))
    target = {"apiVersion": "v1", "kind": "Node", "name": parts.NODE}
    name = str(pod["metadata"]["name"])
    api.create(f"{Pods.path}/{name}/binding", {"metadata": {"name": name}, "target": target})
    pods.wait_running(name)
    return name


def _settle(daemon: Daemon, slices: int = _SLICES) -> None:
    daemon.wait_ready()
    daemon.wait_offered(slices)


def _runs_on(pods: Pods, before: dict[str, tuple[str, int]]) -> bool:
    """None of these containers was restarted."""
    now = pods.incarnations()
    return {name: now.get(name) for name in before} == before


def _register(daemon: Daemon) -> str:
    return str(daemon.annotations().get(nvidia_names.NODE_REGISTER, ""))


def _granted_mib(daemon: Daemon, card: int) -> float:
    found = daemon.metric("hami_node_card_memory_granted_bytes", uuid=cards.uuid_of(card))
    return found / 2**20
