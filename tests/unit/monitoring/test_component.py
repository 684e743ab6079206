"""The component for the Prometheus operator: who is scraped is there, and everything is in it."""

from __future__ import annotations

from typing import Any

import yaml

from tests.monitoring.files import COMPONENT, DASHBOARDS, ROOT, rule_files
from tests.unit.daemonset.manifests import FOLDER, documents

SERVICES = {each["metadata"]["name"]: each for each in documents(COMPONENT / "services.yaml")}
MONITORS = documents(COMPONENT / "service-monitors.yaml")
WORKLOADS = {
    "hami-node-metrics": FOLDER / "base" / "daemonset" / "daemonset.yaml",
    "hami-node-extender-metrics": FOLDER / "extender" / "deployment.yaml",
}


def template(service: str) -> dict[str, Any]:
    """The pods that a Service leads to."""
    found: dict[str, Any] = documents(WORKLOADS[service])[0]["spec"]["template"]
    return found


def test_each_monitor_selects_one_service_and_it_the_pods() -> None:
    assert SERVICES.keys() == WORKLOADS.keys()
    for monitor in MONITORS:
        wanted = monitor["spec"]["selector"]["matchLabels"]
        (service,) = (
            each
            for each in SERVICES.values()
            if wanted.items() <= each["metadata"]["labels"].items()
        )
        assert service["metadata"]["namespace"] == monitor["metadata"]["namespace"]
        (endpoint,) = monitor["spec"]["endpoints"]
        (port,) = service["spec"]["ports"]
        assert endpoint["port"] == port["name"]
        pods = template(service["metadata"]["name"])
        assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
        ports = {
            each["name"]: each["containerPort"]
            for container in pods["spec"]["containers"]
            for each in container.get("ports", ())
        }
        assert ports[port["targetPort"]] == port["port"]


def test_series_keep_what_they_name_and_pages_are_asked_for_as_often_as_they_are_worth() -> None:
    for endpoint in (each for monitor in MONITORS for each in monitor["spec"]["endpoints"]):
        assert (endpoint["honorLabels"], endpoint["interval"]) == (True, "30s")


def test_everything_is_in_the_component() -> None:
    kustomization = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text())
    resources = kustomization["resources"]
    made = {f"rules-{path.stem}.yaml" for path in rule_files()}
    files = {path.name for path in COMPONENT.glob("*.yaml")} - {"kustomization.yaml"}
    assert made <= files
    assert set(resources) == files | {"../../chart/dashboards"}


def test_every_dashboard_has_a_config_map() -> None:
    page = yaml.safe_load((DASHBOARDS / "kustomization.yaml").read_text())
    maps = {each["name"]: each["files"] for each in page["configMapGenerator"]}
    boards = sorted(path.name for path in DASHBOARDS.glob("*.json"))
    assert maps == {f"hami-node-dashboard-{name.removesuffix('.json')}": [name] for name in boards}
    assert all((DASHBOARDS / name).stat().st_size < 256 * 1024 for name in boards)


def test_the_overlay_is_the_component_alone() -> None:
    page = yaml.safe_load((ROOT / "daemonset/overlays/monitoring/kustomization.yaml").read_text())
    assert page["components"] == ["../../components/monitoring"]
