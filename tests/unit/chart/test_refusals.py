"""Values that the chart does not take: misspelt, out of range, or contradicting each other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.chart.helm import needs_helm, refusal, template

pytestmark = needs_helm
SECRET = {"scheduler": {"certificate": {"existingSecret": "mine"}}}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"devicePlugin": {"deviceSplitCont": 3}}, "deviceSplitCont"),
        ({"devicePlugin": {"deviceSplitCount": 0}}, "/devicePlugin/deviceSplitCount"),
        ({"devicePlugin": {"deviceMemoryScaling": 0}}, "/devicePlugin/deviceMemoryScaling"),
        ({"devicePlugin": {"pluginPath": "relative"}}, "/devicePlugin/pluginPath"),
        ({"devicePlugin": {"nvidiaNodeSelector": {"gpu": True}}}, "/nvidiaNodeSelector/gpu"),
        ({"fullnameOverride": "hami"}, "/fullnameOverride"),
        ({"image": {"digest": "sha256:12"}}, "/image/digest"),
        ({"platform": "k4s"}, "/platform"),
        ({"resourceName": "gpu"}, "/resourceName"),
        ({"limiter": {"sha256": ["12"]}}, "/limiter/sha256/0"),
        (
            {"admissionPolicies": {"reservationWriters": ["a' || true || '"]}},
            "/reservationWriters/0",
        ),
        ({"scheduler": {"kubeScheduler": {"imageTag": "v1"}}}, "imageTag"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_schema_names_the_value(values: dict[str, Any], named: str) -> None:
    assert named in refusal(values)


@pytest.mark.parametrize(
    ("values", "cure"),
    [
        (
            {"devicePlugin": {"enabled": False}, "scheduler": {"enabled": False}},
            "set devicePlugin.enabled, neuron.enabled or scheduler.enabled to true",
        ),
        ({"devicePlugin": {"standalone": {"enabled": True}}}, "set scheduler.enabled=false"),
        ({"devicePlugin": {"mig": {"switchMode": True}}}, "needs devicePlugin.mig.enabled=true"),
        (
            {"devicePlugin": {"mig": {"enabled": True, "switchMode": True}}},
            "needs devicePlugin.hostPID=true",
        ),
        ({"devicePlugin": {"nvidiaDriverRoot": "/opt"}}, "devicePlugin.driver=host only"),
        (
            {"devicePlugin": {"createRuntimeClass": True, "runtimeClassName": ""}},
            "set devicePlugin.runtimeClassName=nvidia",
        ),
        ({"schedulerName": "default-scheduler"}, "set another name"),
        (
            {"config": {"existingConfigMap": "mine", "deviceConfig": "nvidia: {}"}},
            "remove config.deviceConfig",
        ),
        (
            {"devicePlugin": {"nodeConfiguration": {"config": "{}", "externalConfigName": "a"}}},
            "set config or externalConfigName, not both",
        ),
        ({"resourceMem": "nvidia.com/gpu"}, "Two resources have the same name"),
        ({"config": {"deviceConfig": "nvidia: ["}}, "config.deviceConfig is not YAML"),
        (SECRET, "set scheduler.certificate.existingClientSecret"),
        (
            {"scheduler": {"certificate": {"existingSecret": "a", "existingClientSecret": "b"}}},
            "set scheduler.certificate.caBundle",
        ),
        (
            {
                "scheduler": {
                    "certManager": {"enabled": True},
                    "certificate": {"existingSecret": "a"},
                }
            },
            "set one of them",
        ),
        ({"devicePlugin": {"service": {"nodePort": 31992}}}, "type=NodePort"),
        ({"view": {"ingress": {"enabled": True}}}, "needs view.enabled=true"),
        (
            {"view": {"enabled": True, "ingress": {"enabled": True, "host": "gpu.example"}}},
            "authenticates users",
        ),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_contradiction_is_refused_with_the_cure(values: dict[str, Any], cure: str) -> None:
    assert cure in refusal(values)


def test_kubernetes_without_what_the_manifests_need_is_refused() -> None:
    with pytest.raises(AssertionError, match="incompatible with Kubernetes"):
        template(kube_version="1.27.9")


@pytest.mark.parametrize("version", ["v1.28.0-gke.100", "v1.33.4-eks-abcdef", "v1.32.1+k3s1"])
def test_distributors_versions_are_taken(version: str) -> None:
    pinned = f"image: registry.k8s.io/kube-scheduler:{version[:7]}\n"
    assert pinned in template(kube_version=version)
