"""What Helm and every supported Kubernetes say about the chart."""

from __future__ import annotations

import json
from typing import Any, Final

import kubernetes_validate
import pytest

from tests.chart_values import CHART
from tests.unit.chart.helm import Object, needs_helm, objects_of, run, template

pytestmark = needs_helm
VERSIONS: Final = [f"1.{minor}.0" for minor in range(28, 37)]
OTHERS_KINDS: Final = {
    *("ServiceMonitor", "PrometheusRule"),
    *("Issuer", "Certificate"),
    "SecurityContextConstraints",
}
"""Their definitions are no part of Kubernetes."""

EVERYTHING: Final[Object] = {
    "platform": "openshift",
    "namespace": {"create": True},
    "global": {"imageRegistry": "registry.example:5000", "imagePullSecrets": ["pull"]},
    "neuron": {"enabled": True},
    "prometheus": {"enabled": True},
    "view": {
        "enabled": True,
        "ingress": {"enabled": True, "host": "gpu.example", "annotations": {"auth": "yes"}},
    },
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
    "devicePlugin": {
        "createRuntimeClass": True,
        "mig": {"enabled": True},
        "gpuOperatorClient": True,
        "gpuOperatorToolkitReady": {"enabled": True},
        "service": {"enabled": True},
    },
}
SETS: Final[dict[str, Object]] = {
    "default": {},
    "everything": EVERYTHING,
    "cert-manager": {"scheduler": {"certManager": {"enabled": True}}},
    "driver of the host": {
        "platform": "gke",
        "devicePlugin": {
            "driver": "host",
            "mig": {"enabled": True, "switchMode": True},
            "hostPID": True,
        },
        "limiter": {"source": "host"},
    },
    "NRI": {"platform": "microk8s", "devicePlugin": {"driver": "nri"}},
    "simulated": {
        "devicePlugin": {"simulatedCards": [{"model": "A", "memory_mib": 1024, "count": 1}]}
    },
    "standalone": {
        "devicePlugin": {"standalone": {"enabled": True}},
        "scheduler": {"enabled": False},
    },
}


@pytest.mark.parametrize("name", SETS)
def test_lint_has_nothing_to_say(name: str, tmp_path: Any) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps(SETS[name]))
    arguments = ("--strict", "--kube-version", "1.34.0", "-f", str(values))
    done = run("lint", *arguments, str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_api_server_knows_every_field(version: str) -> None:
    """No misspelt field, none of a later version, and every type is right."""
    checked: set[str] = set()
    for values in SETS.values():
        for one in objects_of(template(values, version)):
            text = json.dumps(one)
            if one is None or text in checked or one["kind"] in OTHERS_KINDS:
                continue
            checked.add(text)
            if one["kind"] == "EndpointSlice":
                # left out on purpose, and the API server takes it: the leader has written it
                one["endpoints"] = []
            kubernetes_validate.validate(one, version, strict=True)
    assert len(checked) > 40


def test_nothing_is_looked_up_in_a_cluster_when_there_is_none() -> None:
    """What Flux, Argo CD and `helm template` make is the same everywhere, and every time."""
    first, second = template(EVERYTHING), template(EVERYTHING)
    assert first == second
    assert first == template(EVERYTHING | {"inspectCluster": False})
