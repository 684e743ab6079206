"""Names, selectors, rights, images and metadata: what may not change by accident, or collide."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml

from tests.unit.chart.helm import (
    Object,
    container,
    needs_helm,
    objects_of,
    pod_template,
    render,
    template,
)
from tests.unit.chart.test_kubernetes import EVERYTHING, SETS

pytestmark = needs_helm

HAMIS_CHART: Final = {
    *("DaemonSet hami-device-plugin", "Deployment hami-scheduler"),
    *("Service hami-scheduler", "Service hami-device-plugin-monitor"),
    "MutatingWebhookConfiguration hami-webhook",
    *("ConfigMap hami-scheduler-device", "ConfigMap hami-device-plugin"),
    *("ConfigMap hami-scheduler", "ConfigMap hami-scheduler-newversion"),
    *("Lease hami-scheduler", "Secret hami-scheduler-tls"),
    *("ClusterRole hami-device-plugin-monitor", "ClusterRole hami-scheduler"),
    *("ClusterRoleBinding hami-device-plugin", "ClusterRoleBinding hami-scheduler"),
    *("ClusterRoleBinding hami-scheduler-kube", "ClusterRoleBinding hami-scheduler-volume"),
    *("ServiceAccount hami-device-plugin", "ServiceAccount hami-scheduler"),
    *("Role hami-device-plugin", "RoleBinding hami-device-plugin"),
    *("Role hami-scheduler", "RoleBinding hami-scheduler"),
    *("ClusterRole hami-admission", "ClusterRoleBinding hami-admission"),
    *("Role hami-admission", "RoleBinding hami-admission", "ServiceAccount hami-admission"),
    *("Job hami-admission-create", "Job hami-admission-patch"),
}
"""What HAMi's chart makes, 2.4 to 2.10, for a release named hami, which is the usual name."""

SELECTORS: Final = {
    "DaemonSet hami-node": "daemon",
    "DaemonSet hami-node-neuron": "neuron",
    "Deployment hami-node-extender": "extender",
    "Deployment hami-node-scheduler": "kube-scheduler",
    "Deployment hami-node-view": "view",
}
"""Kubernetes can't change them: an upgrade from a released chart would fail."""


def objects(values: Object, name: str = "gpu", space: str = "gpus") -> list[Object]:
    found = objects_of(template(values, name=name, space=space))
    return [one for one in found if one]


def called(one: Object) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


@pytest.mark.parametrize("release", ["hami", "hami-node", "gpu", "x" * 53])
def test_no_object_is_named_like_one_of_hamis_chart(release: str) -> None:
    found = objects(EVERYTHING, release, space="hami-system")
    assert {called(one) for one in found} & HAMIS_CHART == set()
    ours = [one for one in found if one["kind"] not in ("Namespace", "RuntimeClass")]
    strange = [called(one) for one in ours if not one["metadata"]["name"].startswith("hami-node")]
    assert [one for one in strange if "openshift:scc" not in one] == []


@pytest.mark.parametrize("release", ["gpu", "hami"])
def test_selectors_are_frozen(release: str) -> None:
    found = {
        called(one): one["spec"]["selector"]["matchLabels"]
        for one in objects(EVERYTHING, release)
        if "template" in one.get("spec", {}) and one["kind"] != "Job"
    }
    assert found == {
        name: {
            "app.kubernetes.io/name": "hami-node",
            "app.kubernetes.io/instance": release,
            "app.kubernetes.io/component": component,
        }
        for name, component in SELECTORS.items()
    }


def test_selectors_select_the_pods_of_their_own_and_no_others() -> None:
    found = [one for one in objects(EVERYTHING) if "template" in one.get("spec", {})]
    owners = {called(one): one["spec"] for one in found if one["kind"] != "Job"}
    pods = {called(one): one["spec"]["template"]["metadata"]["labels"] for one in found}
    for name, spec in owners.items():
        wanted = spec["selector"]["matchLabels"].items()
        assert [pod for pod, labels in pods.items() if wanted <= labels.items()] == [name]


def test_new_version_of_the_chart_alone_restarts_no_pod() -> None:
    for one in objects(EVERYTHING):
        labels = one.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
        assert {"helm.sh/chart", "app.kubernetes.io/version"}.isdisjoint(labels)


def test_two_releases_in_one_cluster_share_no_object() -> None:
    second = {"fullnameOverride": "hami-node-mig", "scheduler": {"enabled": False}}
    first = {called(one) for one in objects({}, "gpu", space="one")}
    assert first.isdisjoint(called(one) for one in objects(second, "mig", space="two"))


def containers(one: Object) -> list[Object]:
    spec = one.get("spec", {})
    pod = spec if one["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


def test_nothing_is_privileged_unless_a_value_says_so() -> None:
    for one in objects({"view": {"enabled": True}, "neuron": {"enabled": True}}):
        for box in containers(one):
            rights = box["securityContext"]
            assert rights["capabilities"] == {"drop": ["ALL"]}, called(one)
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["readOnlyRootFilesystem"] is True
            assert not rights.get("privileged")
            assert {"cpu", "memory"} <= set(box["resources"]["requests"])
            assert "memory" in box["resources"]["limits"]


def test_only_the_daemon_is_root_and_only_it_sees_the_node() -> None:
    for one in objects({"view": {"enabled": True}}):
        spec = one.get("spec", {})
        pod = spec if one["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
        if not pod or one["kind"] == "DaemonSet":
            continue
        assert pod["securityContext"]["runAsNonRoot"] is True, called(one)
        assert not [volume for volume in pod.get("volumes", ()) if "hostPath" in volume]
    for one in objects(EVERYTHING):
        assert not re.search(r"host(PID|Network|IPC): true", yaml.safe_dump(one))


def test_rights_have_no_wildcard_and_reach_no_secret_but_our_own() -> None:
    for one in objects(EVERYTHING):
        for rule in one.get("rules", ()):
            assert "*" not in str(rule), called(one)
            if "secrets" in rule.get("resources", ()):
                assert rule["resourceNames"], called(one)
                assert set(rule["verbs"]) <= {"get", "update"}, called(one)
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


@pytest.mark.parametrize("name", SETS)
def test_every_image_comes_from_the_registry_of_the_values(name: str) -> None:
    values: dict[str, Any] = {**SETS[name], "global": {"imageRegistry": "registry.example:5000"}}
    for one in objects(values):
        for box in containers(one):
            assert box["image"].startswith("registry.example:5000/"), called(one)
            assert box["imagePullPolicy"] == "IfNotPresent"


def test_every_pod_pulls_with_the_secrets_of_the_values() -> None:
    for one in objects(EVERYTHING):
        spec = one.get("spec", {})
        pod = spec if one["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
        if pod:
            assert pod["imagePullSecrets"] == [{"name": "pull"}], called(one)


def test_namespaced_objects_are_in_the_namespace_of_the_release() -> None:
    """kube-system has one: who may ask kube-scheduler for its metrics."""
    elsewhere = {
        called(one): one["metadata"]["namespace"]
        for one in objects(EVERYTHING)
        if one["metadata"].get("namespace", "gpus") != "gpus"
    }
    assert elsewhere == {"RoleBinding hami-node-scheduler-authentication-reader": "kube-system"}


@pytest.mark.parametrize("name", SETS)
def test_another_namespace_is_named_wherever_a_namespace_is(name: str) -> None:
    """Policies and certificates name accounts and Services with their namespace."""
    assert "hami-system" not in template(SETS[name], space="gpus")


def test_labels_and_annotations_reach_every_object() -> None:
    found = render({"global": {"labels": {"team": "x"}, "annotations": {"note": "y"}}})
    for one in found.values():
        assert one["metadata"]["labels"]["team"] == "x"
        assert one["metadata"]["annotations"]["note"] == "y"


def test_extra_objects_are_templates() -> None:
    cm = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-a"}}
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n"
    found = render({"extraObjects": [cm, text]})
    assert {"ConfigMap/gpu-a", "ConfigMap/b"} <= {*found}


def test_page_reads_what_it_shows_and_answers_to_its_hosts_only() -> None:
    ingress = {"enabled": True, "host": "gpu.example", "annotations": {"auth": "yes"}}
    found = render({"view": {"enabled": True, "ingress": ingress}})
    assert found["ClusterRole/hami-node-view"]["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["nodes", "pods", "resourcequotas", "events"],
            "verbs": ["get", "list", "watch"],
        }
    ]
    arguments = container(found, "Deployment/hami-node-view")["args"]
    assert arguments[:2] == ["view", "--bind=:8450"]
    assert "--allowed-host=gpu.example" in arguments
    assert found["Ingress/hami-node-view"]["metadata"]["annotations"] == {"auth": "yes"}


def test_node_ports_of_hamis_chart_on_request() -> None:
    service = {"enabled": True, "type": "NodePort", "nodePort": 31992}
    found = render({"devicePlugin": {"service": service}})
    ports = found["Service/hami-node-metrics"]["spec"]["ports"]
    assert [one["nodePort"] for one in ports] == [31992]


def test_network_policies_select_every_pod_that_listens() -> None:
    peers: list[Object] = [{"namespaceSelector": {}}]
    found = render(
        {"networkPolicy": {"enabled": True, "metricsFrom": peers}, "view": {"enabled": True}}
    )
    policies = [one["spec"] for one in found.values() if one["kind"] == "NetworkPolicy"]
    for owner in (
        "DaemonSet/hami-node",
        *(f"Deployment/hami-node-{n}" for n in ("extender", "scheduler", "view")),
    ):
        labels = pod_template(found, owner)["metadata"]["labels"]
        chosen = [
            one for one in policies if one["podSelector"]["matchLabels"].items() <= labels.items()
        ]
        assert len(chosen) == 1
        opened = {port["port"] for rule in chosen[0]["ingress"] for port in rule["ports"]}
        assert opened == {port["name"] for port in container(found, owner)["ports"]}
