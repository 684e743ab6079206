"""Chart and kustomization make the same objects: who changes one of them changes the other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.unit.chart.helm import Object, Objects, needs_helm, objects_of, template
from tests.unit.daemonset.manifests import FOLDER
from tests.unit.daemonset.test_overlays import rendered

pytestmark = needs_helm
SPACE: Final = "hami-system"
COMPONENT: Final = "app.kubernetes.io/component"
METRICS: Final = "hami-node.io/metrics"
NOT_NAMESPACED: Final = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
"""kustomize does not know that these are in no namespace; the API server ignores what it writes."""
HELMS_LABELS: Final = re.compile(r"app\.kubernetes\.io/|helm\.sh/|hami-node\.io/metrics$")
HELMS_NOTES: Final = re.compile(
    r"checksum/|helm\.sh/|hami-node\.io/(config-sha256|node-selection)$"
)
SELECTORS: Final = ("selector", "matchLabels")
UNORDERED: Final = {"env": "name", "volumes": "name", "volumeMounts": "mountPath"}
"""Lists in which only the names count."""

AS_BASE: Final[Object] = {
    "limiter": {"source": "host"},
    "namespace": {"create": True},
    "podRuntimeClassName": "",
}
DAEMON: Final[Object] = AS_BASE | {"scheduler": {"enabled": False}}
MONITORING: Final = {
    "enabled": True,
    "rules": {"enabled": True},
    "dashboards": {"enabled": True},
}
A100: Final = {"model": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "count": 4}


def plugin(**values: Any) -> Object:
    return DAEMON | {"devicePlugin": values}


VARIANTS: Final[dict[str, tuple[tuple[str, ...], Object, str]]] = {
    "base": (("base",), DAEMON, "1.34.0"),
    "base and extender": (("base", "extender"), AS_BASE, "1.34.0"),
    "cert-manager": (
        ("base", "overlays/cert-manager"),
        AS_BASE | {"scheduler": {"certManager": {"enabled": True}}},
        "1.34.0",
    ),
    "kubernetes-1.28": (
        ("overlays/kubernetes-1.28", "overlays/extender-kubernetes-1.28"),
        AS_BASE,
        "1.28.0",
    ),
    "driver-root": (("overlays/driver-root",), plugin(driver="host"), "1.34.0"),
    "nri": (("overlays/nri",), plugin(driver="nri"), "1.34.0"),
    "gpu-operator": (
        ("overlays/gpu-operator",),
        plugin(gpuOperatorToolkitReady={"enabled": True}),
        "1.34.0",
    ),
    "mig": (("overlays/mig",), plugin(mig={"enabled": True}), "1.34.0"),
    "mig-mode": (
        ("overlays/mig", "components/mig-mode"),
        plugin(mig={"enabled": True, "switchMode": True}, hostPID=True),
        "1.34.0",
    ),
    "host-pid": (
        ("overlays/mig", "components/host-pid"),
        plugin(mig={"enabled": True}, hostPID=True),
        "1.34.0",
    ),
    "limiter-image": (
        ("overlays/limiter-image",),
        DAEMON | {"limiter": {"source": "image"}},
        "1.34.0",
    ),
    "monitoring": (
        ("base", "extender", "overlays/monitoring"),
        AS_BASE | {"prometheus": MONITORING},
        "1.34.0",
    ),
    "neuron": (("base", "overlays/neuron"), DAEMON | {"neuron": {"enabled": True}}, "1.34.0"),
    "kubelet-root": (("overlays/kubelet-root",), DAEMON | {"platform": "k0s"}, "1.34.0"),
    "read-only-usr-local": (
        ("overlays/read-only-usr-local",),
        DAEMON | {"platform": "talos"},
        "1.34.0",
    ),
    "simulated": (("overlays/simulated",), plugin(simulatedCards=[A100]), "1.34.0"),
    "standalone": (("overlays/standalone",), plugin(standalone={"enabled": True}), "1.34.0"),
}


def test_every_overlay_has_a_value() -> None:
    overlays = {path.parent.name for path in FOLDER.glob("overlays/*/kustomization.yaml")}
    used = {Path(path).name for paths, _, _ in VARIANTS.values() for path in paths}
    assert overlays <= used


@pytest.mark.parametrize("variant", VARIANTS)
def test_chart_and_kustomization_make_the_same_objects(variant: str, tmp_path: Path) -> None:
    paths, values, version = VARIANTS[variant]
    wanted = by_name(kustomized(tmp_path, *paths))
    found = by_name(templated(values, version))
    assert set(found) == set(wanted)
    assert list(differences(found, wanted)) == []


def differences(chart: Any, kustomization: Any, path: str = "") -> Iterator[str]:
    """Where they differ, as lines for people."""
    if isinstance(chart, dict) and isinstance(kustomization, dict):
        for key in sorted({*chart, *kustomization}):
            yield from differences(chart.get(key), kustomization.get(key), f"{path}.{key}")
    elif isinstance(chart, list) and isinstance(kustomization, list):
        for number in range(max(len(chart), len(kustomization))):
            left, right = (
                it[number] if number < len(it) else None for it in (chart, kustomization)
            )
            yield from differences(left, right, f"{path}[{number}]")
    elif chart != kustomization:
        yield f"{path}: {chart!r} in the chart, {kustomization!r} in the kustomization"


def kustomized(folder: Path, *paths: str) -> Iterator[Object]:
    """All objects of these parts; those in namespaces of their own keep them."""
    parts = [os.path.relpath(FOLDER / path, folder) for path in paths]
    folder.joinpath("kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [one for one in parts if "components" not in one],
                "components": [one for one in parts if "components" in one],
                "images": [
                    {"name": "kube-scheduler", "newTag": "SAME"},
                    {"name": "limiter-image", "newName": "docker.io/projecthami/hamicore:v2.10.0"},
                ],
            }
        )
    )
    for one in rendered(folder):
        if one["kind"] in NOT_NAMESPACED:
            one["metadata"].pop("namespace", None)
        if one["kind"] == "DaemonSet":  # kustomize can't label pods and their selector alone
            one["metadata"].get("labels", {}).pop("app", None)
        yield plain(one, {})


def templated(values: Object, version: str) -> Iterator[Object]:
    """What the chart makes of these values, but for what only Helm has."""
    own: Object = {
        "devicePlugin": {"affinity": affinity_of_the_base()} | values.get("devicePlugin", {}),
        "scheduler": {"kubeScheduler": {"image": {"registry": "", "tag": "SAME"}}}
        | values.get("scheduler", {}),
    }
    if own["devicePlugin"].get("simulatedCards"):
        del own["devicePlugin"]["affinity"]
    found = [
        one
        for one in objects_of(template(values | own, version, space=SPACE))
        if one and "helm.sh/hook" not in one["metadata"].get("annotations", {})
    ]
    apps = {
        labels[COMPONENT]: labels["app"]
        for one in found
        if "app"
        in (labels := one.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {}))
    }
    for one in found:
        if (
            one["kind"] == "Job"
        ):  # `helm --wait` may look for it; applying it again is kustomize's way
            assert one["spec"].pop("ttlSecondsAfterFinished") == 3600
            one["spec"]["ttlSecondsAfterFinished"] = 60
        one["metadata"]["name"] = re.sub(
            r"(?<=^hami-node-certificate)-\w{8}$", "", one["metadata"]["name"]
        )
        yield plain(one, apps)


def affinity_of_the_base() -> Object:
    """The chart can look for other plugins, the base has only the nodes' labels."""
    (found,) = yaml.safe_load_all(FOLDER.joinpath("base/daemonset/daemonset.yaml").read_text())
    affinity: Object = found["spec"]["template"]["spec"]["affinity"]
    return affinity


def by_name(found: Iterator[Object]) -> Objects:
    return {
        f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one
        for one in found
    }


def plain(one: Any, apps: dict[str, str]) -> Any:
    """Without what Helm's conventions add, selectors by `app`, texts by their content."""
    if isinstance(one, list):
        return [plain(item, apps) for item in one]
    if not isinstance(one, dict):
        return one
    found: Object = {}
    for key, value in one.items():
        if key in SELECTORS and COMPONENT in value:
            found[key] = {"app": apps[value[COMPONENT]]}
        elif key == "selector" and METRICS in value:  # the chart's selects Neuron's daemons as well
            found[key] = {"app": "hami-node"}
        elif key == "matchLabels" and METRICS in value:
            found[key] = {METRICS: value[METRICS]}
        elif key in ("labels", "annotations"):
            strange = HELMS_LABELS if key == "labels" else HELMS_NOTES
            found[key] = {name: text for name, text in value.items() if not strange.match(name)}
        elif key == "expression":
            found[key] = "".join(value.split())
        elif key == "data":
            found[key] = {name: yaml.safe_load(text) for name, text in value.items()}
        elif key in UNORDERED:
            found[key] = {item[UNORDERED[key]]: plain(item, apps) for item in value}
        else:
            found[key] = plain(value, apps)
    return {
        key: value
        for key, value in found.items()
        if value != {} or key not in ("labels", "annotations")
    }
