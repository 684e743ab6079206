"""Renders the chart with the real helm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from tests.chart_values import CHART
from tests.e2e.assets import program

Object = dict[str, Any]
Objects = dict[str, Object]
DAEMON: Final = "DaemonSet/hami-node"
PROCESSORS: Final = ("kubernetes.io/arch", "In", ("amd64", "arm64"))
NOT_REFUSED: Final = ("hami-node.io/serve", "NotIn", ("false",))
"""What every term of the node affinity has, and every one but that of our own label."""
HELM: Final = program("helm")
"""Found on PATH, or where `make e2e` builds it."""
needs_helm: Final = pytest.mark.programs


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; its output is kept apart from its errors."""
    assert HELM is not None, "no helm: `make e2e` builds one"
    command = [HELM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def template(
    values: Object | None = None,
    kube_version: str = "1.34.0",
    name: str = "gpu",
    space: str = "gpus",
) -> str:
    """The rendered chart as text. Raises: AssertionError with helm's message where it refuses."""
    done = _template(values, kube_version, name, space)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(values: Object) -> str:
    """What helm says about values that the chart does not take."""
    done = _template(values, "1.34.0", "gpu")
    assert done.returncode != 0, "the chart takes these values"
    return done.stderr


def render(values: Object | None = None, kube_version: str = "1.34.0") -> Objects:
    """The rendered objects by "Kind/name"; no two have the same."""
    found = [one for one in objects_of(template(values, kube_version)) if one]
    by_name = {f"{one['kind']}/{one['metadata']['name']}": one for one in found}
    assert len(by_name) == len(found)
    return by_name


def objects_of(text: str) -> Iterator[Object]:
    """The documents of a rendered chart; Python's own parser takes a second for one."""
    return yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _template(
    values: Object | None, kube_version: str, name: str, space: str = "gpus"
) -> subprocess.CompletedProcess[str]:
    assert HELM is not None, "no helm: `make e2e` builds one"
    flags = ("-n", space, "--kube-version", kube_version, "-f", "-")
    return subprocess.run(
        [HELM, "template", name, str(CHART), *flags],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def pod(found: Objects, name: str = DAEMON) -> Object:
    """The pod's spec of an object."""
    spec: Object = pod_template(found, name)["spec"]
    return spec


def pod_template(found: Objects, name: str = DAEMON) -> Object:
    """What the pods of an object are made from."""
    made: Object = found[name]["spec"]["template"]
    return made


def host_paths(found: Objects) -> dict[str, str]:
    """The folders of the node that the daemon mounts, by the names of the volumes."""
    volumes = pod(found)["volumes"]
    return {one["name"]: one["hostPath"]["path"] for one in volumes if "hostPath" in one}


def container(found: Objects, name: str = DAEMON) -> Object:
    """Its first container."""
    first: Object = pod(found, name)["containers"][0]
    return first


def config(found: Objects, key: str = "device-config.yaml") -> str:
    """One file of the chart's ConfigMap."""
    text: str = found["ConfigMap/hami-node-config"]["data"][key]
    return text


def terms(found: Objects) -> list[list[tuple[str, str, tuple[str, ...]]]]:
    """The daemon's node affinity: any of these, each a list of (key, operator, values)."""
    affinity = pod(found)["affinity"]["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    return [
        [(one["key"], one["operator"], tuple(one["values"])) for one in term["matchExpressions"]]
        for term in required["nodeSelectorTerms"]
    ]
