"""Clusters that somebody else has set up: HAMi's releases, the GPU Operator, NVIDIA's plugin."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from hami_node.clock import Deadline
from hami_node.cluster.calls import Query
from hami_node.cluster.reading import BoundedApi
from hami_node.simulate.apiserver import ApiServer
from hami_node.simulate.store import KINDS

Json = dict[str, Any]
HAMI: Final = Path(__file__).parents[1] / "e2e" / "hami"
SERVE: Final = "hami-node.io/serve"
RESOURCES: Final = {kind.kind: kind.resource for kind in KINDS.values()}
_COMPONENT: Final = "app.kubernetes.io/component"
_OF_RELEASE: Final = {
    "meta.helm.sh/release-name": "hami",
    "meta.helm.sh/release-namespace": "kube-system",
}
_GPU: Final = "nvidia.com/gpu"


def hami_objects(version: str = "2.10.0") -> list[Json]:
    """HAMi's objects as its chart of that version makes them."""
    found: list[Json] = []
    for part in ("device-plugin", "scheduler"):
        text = (HAMI / f"{part}.yaml").read_text().replace("2.10.0", version)
        for one in yaml.safe_load_all(text):
            one["metadata"]["labels"] = _of_chart(version) | {_COMPONENT: f"hami-{part}"}
            one["metadata"]["annotations"] = dict(_OF_RELEASE)
            found.append(copy.deepcopy(one))
    for one in found:
        if one["kind"] == "DaemonSet":
            one["status"] = {"desiredNumberScheduled": 2, "numberReady": 2}
        if one["kind"] == "Deployment":
            one["status"] = {"readyReplicas": 1}
    return [*found, lease("kube-system", "hami-scheduler", "hami-scheduler-abc")]


def _of_chart(version: str) -> dict[str, str]:
    return {
        "helm.sh/chart": f"hami-{version}",
        "app.kubernetes.io/name": "hami",
        "app.kubernetes.io/instance": "hami",
        "app.kubernetes.io/version": version,
        "app.kubernetes.io/managed-by": "Helm",
    }


def lease(namespace: str, name: str, holder: str) -> Json:
    meta = {"name": name, "namespace": namespace}
    return {"kind": "Lease", "metadata": meta, "spec": {"holderIdentity": holder}}


def endpoints(namespace: str, service: str, ready: int = 1) -> Json:
    labels = {"kubernetes.io/service-name": service}
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": f"{service}-x", "namespace": namespace, "labels": labels},
        "endpoints": [
            {"addresses": [f"10.0.0.{n}"], "conditions": {"ready": True}} for n in range(ready)
        ],
    }


def runtime_class(name: str = "nvidia", release: str = "") -> Json:
    notes = {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "kube-system"}
    meta = {"name": name, "annotations": notes if release else {}}
    return {"kind": "RuntimeClass", "metadata": meta, "handler": "nvidia"}


def node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
) -> Json:
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": dict(labels if labels is not None else {"gpu": "on"}),
            "annotations": dict(annotations or {}),
        },
        "status": {
            "allocatable": dict(allocatable if allocatable is not None else {_GPU: "80"}),
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.34.0"},
        },
    }


def plugin_pod(
    owner: str, where: str, namespace: str = "kube-system", *, ready: bool = True
) -> Json:
    """A pod of a DaemonSet."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": f"{owner}-{where}",
            "namespace": namespace,
            "ownerReferences": [{"kind": "DaemonSet", "name": owner, "controller": True}],
        },
        "spec": {"nodeName": where},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def card_pod(
    name: str,
    where: str,
    *,
    annotations: Mapping[str, str] | None = None,
    resource: str = _GPU,
    scheduler: str = "hami-scheduler",
) -> Json:
    """A user's pod."""
    box = {"name": "c0", "resources": {"limits": {resource: "1"}}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "annotations": dict(annotations or {})},
        "spec": {"nodeName": where, "schedulerName": scheduler, "containers": [box]},
        "status": {"phase": "Running" if where else "Pending"},
    }


def daemon_set(
    name: str,
    namespace: str,
    *,
    image: str,
    labels: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
    owner: str = "",
    folder: str = "/var/lib/kubelet/device-plugins",
) -> Json:
    """A DaemonSet that registers a device plugin."""
    owners = [{"kind": owner, "name": "x", "controller": True}] if owner else []
    return {
        "kind": "DaemonSet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "ownerReferences": owners,
        },
        "spec": {
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "spec": {
                    "nodeSelector": dict(selector or {}),
                    "containers": [{"name": "c", "image": image}],
                    "volumes": [{"name": "p", "hostPath": {"path": folder}}],
                }
            },
        },
        "status": {"desiredNumberScheduled": 1, "numberReady": 1},
    }


def operator_objects() -> list[Json]:
    """The GPU Operator's device plugin and MIG manager."""
    deploy = "nvidia.com/gpu.deploy."
    return [
        daemon_set(
            "nvidia-device-plugin-daemonset",
            "gpu-operator",
            image="nvcr.io/nvidia/k8s-device-plugin:v0.18.0",
            labels={"app": "nvidia-device-plugin-daemonset"},
            selector={f"{deploy}device-plugin": "true"},
            owner="ClusterPolicy",
        ),
        daemon_set(
            "nvidia-mig-manager",
            "gpu-operator",
            image="nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.13.0",
            labels={"app": "nvidia-mig-manager"},
            selector={f"{deploy}mig-manager": "true"},
            owner="ClusterPolicy",
            folder="/sys",
        ),
        runtime_class(),
        runtime_class("nvidia-cdi"),
        runtime_class("nvidia-legacy"),
    ]


def policy(**spec: Mapping[str, object]) -> Json:
    """A ClusterPolicy, as GPU Operator 25.10 has it unless said otherwise."""
    base: Json = {
        "devicePlugin": {"enabled": True},
        "migManager": {"enabled": True},
        "toolkit": {"enabled": True},
        "driver": {"enabled": True},
        "cdi": {"enabled": True, "nriPluginEnabled": False},
        "mig": {"strategy": "single"},
    }
    return {"kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": base | spec}


def own_objects(*, replicas: int = 0, split: int = 10, selection: str = "own-label") -> list[Json]:
    """Ours, as our chart makes them; with no replica kube-scheduler is idle."""
    labels = {"app.kubernetes.io/name": "hami-node", "app.kubernetes.io/instance": "hami-node"}
    daemon = daemon_set(
        "hami-node", "hami-system", image="reg.local/hami-node:0.1.0", labels=labels
    )
    pod = daemon["spec"]["template"]["spec"]
    keys = [SERVE] if selection == "own-label" else [SERVE, "gpu"]
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": ["true", "on"]}]}
        for key in keys
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod["affinity"] = {"nodeAffinity": required}
    pod["runtimeClassName"] = "nvidia"
    pod["volumes"].append({"name": "config", "configMap": {"name": "hami-node-config"}})
    config = yaml.safe_dump({"nvidia": {"resourceCountName": _GPU, "deviceSplitCount": split}})
    return [
        daemon,
        {
            "kind": "ConfigMap",
            "metadata": {"name": "hami-node-config", "namespace": "hami-system"},
            "data": {"device-config.yaml": config, "config.json": '{"nodeconfig": []}'},
        },
        *(own_scheduler(replicas, labels) if replicas >= 0 else []),
    ]


def own_scheduler(replicas: int, labels: Mapping[str, str]) -> list[Json]:
    profile = {
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "resourceName": "hami-node-scheduler",
            "resourceNamespace": "hami-system",
        },
        "profiles": [{"schedulerName": "hami-scheduler"}],
    }
    volume = {"name": "config", "configMap": {"name": "hami-node-scheduler"}}
    return [
        {
            "kind": "ConfigMap",
            "metadata": {"name": "hami-node-scheduler", "namespace": "hami-system"},
            "data": {"config.yaml": yaml.safe_dump(profile)},
        },
        {
            "kind": "Deployment",
            "metadata": {
                "name": "hami-node-scheduler",
                "namespace": "hami-system",
                "labels": dict(labels),
            },
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "hami-node-scheduler"}},
                "template": {
                    "spec": {
                        "containers": [{"name": "s", "image": "registry.k8s.io/kube-scheduler:v1"}],
                        "volumes": [volume],
                    }
                },
            },
            "status": {"readyReplicas": replicas},
        },
        {
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "hami-node", "labels": dict(labels)},
            "webhooks": [
                {
                    "name": "vgpu.hami.io",
                    "clientConfig": {
                        "caBundle": "eA==",
                        "service": {"name": "hami-node-webhook", "namespace": "hami-system"},
                    },
                    "failurePolicy": "Fail",
                }
            ],
        },
        endpoints("hami-system", "hami-node-webhook", 2),
    ]


def fill(api: ApiServer, objects: Iterable[Json]) -> None:
    """Add them to the API server."""
    for one in objects:
        api.create(RESOURCES[one["kind"]], one)


class WithPolicy:
    """An API server that also knows the GPU Operator's kind."""

    def __init__(self, kube: BoundedApi, *policies: Json) -> None:
        self._kube, self._policies = kube, policies

    def within(self, deadline: Deadline) -> WithPolicy:
        """The deadline is of no use here."""
        del deadline
        return self

    def request(self, method: str, path: str, *, body: object = None, query: Query = ()) -> bytes:
        """As the API server, or the policies."""
        del body
        if path == "/apis/nvidia.com/v1/clusterpolicies":
            return json.dumps({"metadata": {}, "items": self._policies}).encode()
        return self._kube.request(method, path, query=query)
