"""The helm commands of the plan, run by the real helm as `helm template`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from hami_node.cluster.calls import Query
from hami_node.errors import NotFound
from hami_node.migrate.plan import plan_of
from hami_node.migrate.seen.reading import read_cluster
from hami_node.migrate.values.mapping import as_yaml, map_values
from hami_node.simulate.api_routes import route_of
from tests.fakes.foreign_cluster import (
    RESOURCES,
    Json,
    WithPolicy,
    hami_objects,
    node,
    operator_objects,
    plugin_pod,
    policy,
)
from tests.unit.chart.helm import needs_helm, run

ROOT: Final = Path(__file__).parents[3]
pytestmark = needs_helm


class Static:
    """An API server with these objects, which nobody changes."""

    def __init__(self, objects: Iterable[Json]) -> None:
        self._objects = [(RESOURCES[one["kind"]], one) for one in objects]

    def request(self, method: str, path: str, *, query: Query = ()) -> bytes:
        del query
        route = route_of(method, path)
        found = [one for resource, one in self._objects if resource == route.kind.resource]
        if not route.name:
            return json.dumps({"metadata": {}, "items": found}).encode()
        for one in found:
            if one["metadata"]["name"] == route.name:
                return json.dumps(one).encode()
        raise NotFound(path, 404)


def steps_with_hami() -> dict[str, tuple[str, ...]]:
    kube = Static([*hami_objects(), node("gpu-1"), plugin_pod("hami-device-plugin", "gpu-1")])
    return _helm_commands(WithPolicy(kube))


def steps_with_the_operator() -> dict[str, tuple[str, ...]]:
    plugin = "nvidia-device-plugin-daemonset"
    kube = Static([*operator_objects(), node("gpu-1"), plugin_pod(plugin, "gpu-1", "gpu-operator")])
    return _helm_commands(WithPolicy(kube, policy()))


def _helm_commands(kube: WithPolicy) -> dict[str, tuple[str, ...]]:
    return {
        step.name: tuple(one for one in step.commands if one.startswith("helm upgrade"))
        for step in plan_of(read_cluster(kube, 0)).steps
    }


def rendered(command: str, folder: Path) -> dict[str, Json]:
    """What the command would install, by "Kind/name"."""
    (folder / "hami-node-values.yaml").write_text(as_yaml(map_values({})))
    words = shlex.split(command)
    assert words[:3] == ["helm", "upgrade", "--install"]
    values = words.index("-f")
    words[values + 1] = str(folder / words[values + 1])
    words[words.index("./daemonset/chart")] = str(ROOT / "daemonset" / "chart")
    done = run("template", *words[3:], "--kube-version", "1.34.0")
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def chosen_by(daemon: Json) -> list[str]:
    """The labels of which one has to be there."""
    affinity = daemon["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [term["matchExpressions"][0]["key"] for term in terms]


def test_beside_hami_it_is_installed_on_no_node_and_without_a_scheduler(tmp_path: Path) -> None:
    (install,) = steps_with_hami()["Install"]
    found = rendered(install, tmp_path)
    assert chosen_by(found["DaemonSet/hami-node"]) == ["hami-node.io/serve"]
    assert not [name for name in found if name.startswith(("Deployment/", "MutatingWebhook"))]


def test_names_are_never_those_of_hami(tmp_path: Path) -> None:
    theirs = {(one["kind"], one["metadata"]["name"]) for one in hami_objects()}
    for command in steps_with_hami()["Scheduler"]:
        ours = {tuple(name.split("/", 1)) for name in rendered(command, tmp_path)}
        assert not theirs & ours


def test_scheduler_is_idle_first_and_hamis_accounts_may_write(tmp_path: Path) -> None:
    first, last = (rendered(one, tmp_path) for one in steps_with_hami()["Scheduler"])
    assert first["Deployment/hami-node-scheduler"]["spec"]["replicas"] == 0
    assert last["Deployment/hami-node-scheduler"]["spec"]["replicas"] > 0
    assert "ValidatingAdmissionPolicy/hami-node-reservations" not in first  # HAMi still writes
    text = json.dumps(last["ValidatingAdmissionPolicy/hami-node-reservations"])
    for account in ("hami-device-plugin", "hami-scheduler"):
        assert f"system:serviceaccount:kube-system:{account}" in text


def test_own_label_stays_the_only_one_in_every_step(tmp_path: Path) -> None:
    for commands in steps_with_hami().values():
        for command in commands:
            found = rendered(command, tmp_path)
            assert chosen_by(found["DaemonSet/hami-node"]) == ["hami-node.io/serve"]


def test_beside_the_operator_only_labelled_namespaces_are_ours_at_first(tmp_path: Path) -> None:
    steps = steps_with_the_operator()
    hooks: list[Any] = []
    for name in ("Install", "Everybody"):
        command = steps[name][-1]
        found = rendered(command, tmp_path)
        daemon = found["DaemonSet/hami-node"]["spec"]["template"]["spec"]
        keys = {one["key"] for one in daemon["tolerations"]}
        assert ("hami-node.io/canary" in keys) == (name == "Install")
        assert "/run/nvidia/validations" in json.dumps(daemon["volumes"])
        hooks.append(found["MutatingWebhookConfiguration/hami-node"]["webhooks"][0])
    assert hooks[0]["namespaceSelector"]["matchLabels"] == {"hami-node.io/canary": "true"}
    assert "matchLabels" not in hooks[1]["namespaceSelector"]
