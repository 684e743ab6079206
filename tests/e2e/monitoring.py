"""What the Prometheus operator does: monitors become a configuration of Prometheus."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.e2e.api import Api, Json
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import NAMESPACE
from tests.e2e.waiting import eventually
from tests.monitoring.files import ROOT

OVERLAY: Final = ROOT / "daemonset" / "overlays" / "monitoring"
GROUP: Final = "monitoring.coreos.com"
KINDS: Final = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}
_MONITORS: Final = f"/apis/{GROUP}/v1/namespaces/{NAMESPACE}/servicemonitors"
_CORE: Final = f"/api/v1/namespaces/{NAMESPACE}"
_SLICES: Final = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


class Operator:
    """The operator's kinds, and the configuration that it would write for our objects."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self._cluster, self._api = cluster, api

    def install(self) -> None:
        """Its kinds, then our component as its reader applies it."""
        for plural in KINDS:
            self._cluster.kubectl("apply", "-f", "-", stdin=json.dumps(_definition(plural)))
        eventually("the kinds are served", lambda: self._api.read(_MONITORS))
        self._cluster.kubectl("apply", "-k", str(OVERLAY))
        eventually("the Services lead to the pods", self.scrape_configs)

    def remove(self) -> None:
        """All of it."""
        self._cluster.kubectl("delete", "-k", str(OVERLAY), "--ignore-not-found")
        for plural in KINDS:
            self._cluster.kubectl("delete", "crd", f"{plural}.{GROUP}", "--ignore-not-found")

    def scrape_configs(self) -> list[dict[str, Any]]:
        """For all monitors of ours that are in the cluster."""
        return [
            {
                "job_name": f"serviceMonitor/{NAMESPACE}/{monitor['metadata']['name']}/0",
                "honor_labels": endpoint.get("honorLabels", False),
                "static_configs": self._targets(monitor, endpoint),
            }
            for monitor in self._api.read(_MONITORS)["items"]
            for endpoint in monitor["spec"]["endpoints"]
        ]

    def _targets(self, monitor: Json, endpoint: Json) -> list[dict[str, Any]]:
        """Who is behind the Services that a monitor selects, with the labels of the operator.

        Debian's Prometheus can't ask Kubernetes itself.
        """
        wanted = monitor["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{label}={value}" for label, value in wanted.items())
        found = []
        for service in self._api.read(f"{_CORE}/services", labelSelector=selector)["items"]:
            name = service["metadata"]["name"]
            slices = self._api.read(_SLICES, labelSelector=f"kubernetes.io/service-name={name}")
            for one in slices["items"]:
                (port,) = (p["port"] for p in one["ports"] if p["name"] == endpoint["port"])
                found += [_target(name, each, port) for each in one["endpoints"]]
        assert found, f"nobody is behind {monitor['metadata']['name']}"
        return found


def _target(service: str, endpoint: Json, port: int) -> dict[str, Any]:
    labels = {
        "job": service,
        "service": service,
        "namespace": NAMESPACE,
        "pod": endpoint["targetRef"]["name"],
        "container": "hami-node",
    }
    return {"targets": [f"{endpoint['addresses'][0]}:{port}"], "labels": labels}


def _definition(plural: str) -> Json:
    """A kind of the operator's that takes everything."""
    kind = KINDS[plural]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": anything},
                }
            ],
        },
    }
