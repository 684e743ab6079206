"""A cluster in which hami-node is installed from its manifests, all of it as it should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from hami_node.clock import SystemClock
from hami_node.cluster.client import KubeClient, connect
from hami_node.extender.http.certificate_secret import CertificateSecret, Target, certify
from hami_node.extender.http.certify import Subject, service_names
from hami_node.simulate.apiserver import ApiServer
from hami_node.wire.times import format_go, format_rfc3339
from tests.fakes.saved_cluster import card_json

SPACE: Final = "hami-system"
MANIFESTS: Final = Path(__file__).parents[2] / "daemonset"
RESOURCES: Final = {
    "ConfigMap": "configmaps",
    "DaemonSet": "daemonsets",
    "Deployment": "deployments",
    "EndpointSlice": "endpointslices",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "Secret": "secrets",
    "Service": "services",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
LABELS: Final = {"app.kubernetes.io/name": "hami-node", "app.kubernetes.io/part-of": "hami-node"}
GPU_NODE: Final = {"nvidia.com/gpu.present": "true", "kubernetes.io/arch": "amd64"}
LIMITER: Final = "v2.10.0"
Json = dict[str, Any]


def manifests() -> list[Json]:
    """Every object of daemonset/base and daemonset/extender, with the labels of kustomize."""
    return deepcopy(_parsed())


@cache
def _parsed() -> list[Json]:
    return list(_read())


def _read() -> Iterator[Json]:
    for path in sorted((*MANIFESTS.glob("base/**/*.yaml"), *MANIFESTS.glob("extender/*.yaml"))):
        if path.name == "kustomization.yaml":
            continue
        for body in yaml.safe_load_all(path.read_text()):
            if body and body["kind"] in RESOURCES:
                labels = body["metadata"].setdefault("labels", {})
                labels |= LABELS
                yield body


class Installed:
    """The cluster; faults are made by editing its objects."""

    def __init__(
        self,
        server: ApiServer,
        kubeconfig: Path,
        *,
        nodes: int = 2,
        limited: int = 5000,
        objects: Iterable[Json] | None = None,
    ) -> None:
        """Install everything on nodes `gpu-0`, `gpu-1`, and so on, and one without cards.

        The first `limited` nodes have a limiter.
        """
        self.server, self.kubeconfig, self.now_s = server, kubeconfig, SystemClock().now()
        self.node_names = [f"gpu-{number}" for number in range(nodes)]
        for body in objects or manifests():
            self._create(body)
        server.create("runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        self.made = {
            one["metadata"]["name"]: one
            for resource in ("daemonsets", "deployments")
            for one in server.list(resource)
        }
        for number, name in enumerate(self.node_names):
            body = self.node(name)
            if number >= limited:
                del body["metadata"]["annotations"]["hami-node.io/limiter"]
            server.create("nodes", body)
            self.pod("hami-node", f"hami-node-{name}", node=name)
        server.create("nodes", {"metadata": {"name": "plain", "labels": {}}, "status": {}})
        for app, ip in (("extender", "10.0.0"), ("scheduler", "10.0.1")):
            if f"hami-node-{app}" in self.made:
                self.lease(f"hami-node-{app}", f"{app}-0")
                for number in range(2):
                    self.pod(f"hami-node-{app}", f"{app}-{number}", ip=f"{ip}.{number + 1}")
        if "hami-node-extender" in self.made:
            self._endpoints()
            self.certify()

    def _create(self, body: Json) -> None:
        resource = RESOURCES[body["kind"]]
        meta = body["metadata"]
        if resource not in (
            "mutatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ):
            meta.setdefault("namespace", SPACE)
        self.server.create(resource, body)

    def node(self, name: str, cards: int = 1) -> Json:
        """A node with healthy cards of ten slots each."""
        register = [card_json(f"GPU-{name}-{index}", index) for index in range(cards)]
        count = str(10 * cards)
        return {
            "metadata": {
                "name": name,
                "labels": GPU_NODE,
                "annotations": {
                    "hami.io/node-nvidia-register": json.dumps(register),
                    "hami.io/node-handshake": f"Reported {format_go(self.now_s)}",
                    "hami-node.io/limiter": LIMITER,
                    "hami-node.io/hand-over": "envvar",
                    "hami-node.io/allocate-identity": "pod-resources",
                },
            },
            "spec": {},
            "status": {
                "capacity": {"nvidia.com/gpu": count},
                "allocatable": {"nvidia.com/gpu": count},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def pod(self, app: str, name: str, *, node: str = "cpu-0", ip: str = "10.1.0.1") -> None:
        """A Ready pod of a workload."""
        labels = self.made[app]["spec"]["template"]["metadata"]["labels"]
        self.server.create(
            "pods",
            {
                "metadata": {"name": name, "namespace": SPACE, "labels": labels},
                "spec": {"nodeName": node, "containers": [{"name": app}]},
                "status": {
                    "phase": "Running",
                    "podIP": ip,
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{"name": app, "ready": True}],
                },
            },
        )

    def lease(self, name: str, holder: str, age_s: float = 1.0) -> None:
        """A Lease that was renewed a moment ago."""
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": format_rfc3339(self.now_s - age_s),
        }
        body = {"metadata": {"name": name, "namespace": SPACE}, "spec": spec}
        self.server.create("leases", body)

    def _endpoints(self) -> None:
        def lead(body: Json) -> None:
            body["endpoints"] = [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]

        self.server.edit("endpointslices", "hami-node-leader", lead, SPACE)
        labels = {"kubernetes.io/service-name": "hami-node-webhook"}
        meta = {"name": "hami-node-webhook-x1", "namespace": SPACE, "labels": labels}
        endpoints = [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]
        self.server.create("endpointslices", {"metadata": meta, "endpoints": endpoints})

    def certify(self, days: int = 3650, *, now_s: float | None = None) -> None:
        """What the Job does."""
        services = ("hami-node-leader", "hami-node-webhook")
        names = tuple(name for each in services for name in service_names(each, SPACE))
        client = Subject(names=("hami-node-scheduler",), is_client=True)
        target = Target(
            namespace=SPACE,
            authority_secret="hami-node-authority",
            holders=(
                CertificateSecret(secret="hami-node-scheduler-client-tls", subject=client),
                CertificateSecret(secret="hami-node-extender-tls", subject=Subject(names=names)),
            ),
            webhook="hami-node",
            days=days,
        )
        list(certify(self.client(), target, self.now_s if now_s is None else now_s))

    def client(self) -> KubeClient:
        """A client of its API server."""
        return connect(self.kubeconfig, component="test", clock=SystemClock())

    # -- faults ------------------------------------------------------------------------------------
    def edit(self, resource: str, name: str, change: Callable[[Json], object]) -> None:
        """Change an object, in our namespace if its kind has one."""
        spaces = {one["metadata"].get("namespace", "") for one in self.server.list(resource)}
        self.server.edit(resource, name, change, SPACE if SPACE in spaces else "")

    def annotate(self, node: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a node; None removes one."""

        def change(body: Json) -> None:
            found = body["metadata"].setdefault("annotations", {})
            for key, text in annotations.items():
                found.pop(key, None)
                if text is not None:
                    found[key] = text

        self.server.edit("nodes", node, change)

    def unready(self, pod: str, **status: object) -> None:
        """Make a pod not Ready."""

        def change(body: Json) -> None:
            body["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
            body["status"]["containerStatuses"] = []
            body["status"] |= status

        self.server.edit("pods", pod, change, SPACE)
