"""Names and metadata of all objects; page, monitoring and network policies."""

from __future__ import annotations

from tests.unit.chart.helm import Object, container, needs_helm, pod_template, render

pytestmark = needs_helm


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
