"""The helm commands of the plan, run by the real helm as `helm template`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from hami_node.clock import Deadline, SystemClock
from hami_node.cluster.access import Access
from hami_node.cluster.client import connect
from hami_node.cluster.reading import Reader
from hami_node.migrate.plan import plan_of
from hami_node.migrate.seen.reading import read_cluster
from hami_node.migrate.values.mapping import as_yaml, map_values
from hami_node.simulate.apiserver import ApiServer
from tests.fakes.foreign_cluster import (
    Json,
    WithPolicy,
    fill,
    hami_objects,
    node,
    operator_objects,
    plugin_pod,
    policy,
)
from tests.unit.chart.helm import needs_helm, run

ROOT: Final = Path(__file__).parents[3]
pytestmark = needs_helm


def helm_commands(folder: Path, objects: Iterable[Json], *policies: Json) -> dict[str, list[str]]:
    """The plan's helm commands by step, for a cluster with these objects."""
    with ApiServer() as api:
        fill(api, objects)
        access = Access(kubeconfigs=(api.write_kubeconfig(folder / "kubeconfig"),))
        kube = connect(access, component="test", clock=SystemClock())
        limit = Deadline.after(60, SystemClock().monotonic)
        reader = Reader(WithPolicy(kube, *policies), limit)
        steps = plan_of(read_cluster(reader, 0)).steps
        kube.close()
    return {
        step.name: [one for one in step.commands if one.startswith("helm upgrade")]
        for step in steps
    }


def steps_with_hami(folder: Path) -> dict[str, list[str]]:
    cluster = [*hami_objects(), node("gpu-1"), plugin_pod("hami-device-plugin", "gpu-1")]
    return helm_commands(folder, cluster)


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
    (install,) = steps_with_hami(tmp_path)["Install"]
    found = rendered(install, tmp_path)
    assert chosen_by(found["DaemonSet/hami-node"]) == ["hami-node.io/serve"]
    assert not [name for name in found if name.startswith(("Deployment/", "MutatingWebhook"))]


def test_names_are_never_those_of_hami(tmp_path: Path) -> None:
    theirs = {(one["kind"], one["metadata"]["name"]) for one in hami_objects()}
    for command in steps_with_hami(tmp_path)["Scheduler"]:
        ours = {tuple(name.split("/", 1)) for name in rendered(command, tmp_path)}
        assert not theirs & ours


def test_scheduler_is_idle_first_and_hamis_accounts_may_write(tmp_path: Path) -> None:
    first, last = (rendered(one, tmp_path) for one in steps_with_hami(tmp_path)["Scheduler"])
    assert first["Deployment/hami-node-scheduler"]["spec"]["replicas"] == 0
    assert last["Deployment/hami-node-scheduler"]["spec"]["replicas"] > 0
    assert "ValidatingAdmissionPolicy/hami-node-reservations" not in first  # HAMi still writes
    text = json.dumps(last["ValidatingAdmissionPolicy/hami-node-reservations"])
    for account in ("hami-device-plugin", "hami-scheduler"):
        assert f"system:serviceaccount:kube-system:{account}" in text


def test_own_label_stays_the_only_one_in_every_step(tmp_path: Path) -> None:
    for commands in steps_with_hami(tmp_path).values():
        for command in commands:
            found = rendered(command, tmp_path)
            assert chosen_by(found["DaemonSet/hami-node"]) == ["hami-node.io/serve"]


def test_beside_the_operator_only_labelled_namespaces_are_ours_at_first(tmp_path: Path) -> None:
    pod = plugin_pod("nvidia-device-plugin-daemonset", "gpu-1", "gpu-operator")
    steps = helm_commands(tmp_path, [*operator_objects(), node("gpu-1"), pod], policy())
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
