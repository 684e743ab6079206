"""`hami-node migrate` against a simulated API server, over HTTP, on clusters of several kinds."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from click.testing import CliRunner, Result

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from hami_node.clock import SystemClock
from hami_node.cluster.access import Access
from hami_node.cluster.client import KubeClient, connect
from hami_node.cluster.reading import PAGE, BoundedApi
from hami_node.simulate.apiserver import ApiServer
from tests.fakes.foreign_cluster import (
    SERVE,
    Json,
    WithPolicy,
    card_pod,
    daemon_set,
    endpoints,
    fill,
    hami_objects,
    node,
    operator_objects,
    own_objects,
    plugin_pod,
    policy,
    runtime_class,
)

HAMI_PLUGIN = "hami-device-plugin"
RESERVED = {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1000,0:;"}
NOWHERE = r"{}.hami-node\.io/nowhere=true"
Wrap = Callable[[KubeClient], BoundedApi]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


class Desk:
    """Runs the command, as a user does, against the server."""

    def __init__(self, api: ApiServer, folder: Path, wrap: Wrap = lambda kube: kube) -> None:
        self._kubeconfig, self._wrap = api.write_kubeconfig(folder / "kubeconfig"), wrap

    def run(self, *args: str, stdin: bytes = b"") -> Result:
        def plain(access: Access) -> Any:
            kube = connect(access, component="command", clock=SystemClock())
            return self._wrap(kube)

        words = ("migrate", *args, "--kubeconfig", str(self._kubeconfig))
        return CliRunner().invoke(main, words, obj=Programs(connect=plain), input=stdin)

    def plan(self) -> Json:
        result = self.run("plan", "-o", "json")
        assert result.exit_code == 0, result.output
        found: Json = json.loads(result.stdout)
        return found

    def check(self) -> tuple[int, list[Json]]:
        result = self.run("check", "-o", "json")
        return result.exit_code, json.loads(result.stdout)["problems"]

    def problems(self) -> str:
        """What is wrong, as one text; the exit code has to agree."""
        code, found = self.check()
        assert code == bool(found)
        return "\n".join(f"{one['where']}: {one['why']}" for one in found)


@pytest.fixture
def desk(api: ApiServer, tmp_path: Path) -> Desk:
    return Desk(api, tmp_path)


def hami_cluster(version: str = "2.10.0", nodes: Iterable[Json] = ()) -> list[Json]:
    """Two nodes that HAMi serves."""
    found = list(nodes) or [node("gpu-1"), node("gpu-2")]
    return [
        *hami_objects(version),
        *found,
        *(plugin_pod(HAMI_PLUGIN, one["metadata"]["name"]) for one in found),
        endpoints("kube-system", "hami-scheduler"),
        runtime_class(),
    ]


def by_name(plan: Json) -> dict[str, Any]:
    return {step["name"]: step for step in plan["steps"]}


def following(plan: Json) -> list[str]:
    return [step["name"] for step in plan["steps"] if step["state"] == "next"]


@pytest.mark.parametrize("version", ["2.4.1", "2.7.1", "2.10.0"])
def test_plan_of_a_cluster_with_hami(api: ApiServer, desk: Desk, version: str) -> None:
    fill(api, hami_cluster(version))
    plan = desk.plan()
    assert any(row["what"] == f"HAMi {version}" for row in plan["runs"])
    names = ["Read", "Install", "Freeze", "Canary", "Nodes", "Scheduler", "Remove"]
    assert [step["name"] for step in plan["steps"]] == names
    assert following(plan) == ["Read"]
    for step in plan["steps"]:
        assert step["see"], step["name"]
        assert step["undo"], step["name"]
        for command in step["commands"]:
            assert shlex.split(command), command
    assert desk.check() == (0, [])


def test_plan_follows_what_is_done(api: ApiServer, desk: Desk) -> None:
    fill(api, hami_cluster())
    fill(api, own_objects(replicas=-1))
    assert following(desk.plan()) == ["Freeze"]
    _apply_patches(api, by_name(desk.plan())["Freeze"]["commands"])
    assert following(desk.plan()) == ["Canary"]
    assert desk.check() == (0, [])
    _hand_over(api, "gpu-1")
    plan = desk.plan()
    assert following(plan) == ["Nodes"]
    assert by_name(plan)["Nodes"]["nodes"] == ["gpu-2"]
    _hand_over(api, "gpu-2")
    assert following(desk.plan()) == ["Scheduler"]
    assert desk.problems() == ""


def test_undo_of_the_freeze_leaves_what_was_there(api: ApiServer, desk: Desk) -> None:
    fill(api, hami_cluster())
    before = api.read("daemonsets", HAMI_PLUGIN, "kube-system")["spec"]
    fill(api, own_objects(replicas=-1))
    step = by_name(desk.plan())["Freeze"]
    _apply_patches(api, step["commands"])
    assert api.read("daemonsets", HAMI_PLUGIN, "kube-system")["spec"] != before
    frozen = by_name(desk.plan())["Freeze"]
    for undo in (step["undo"], frozen["undo"]):
        _apply_patches(api, step["commands"])
        _apply_patches(api, [one for one in undo if one.startswith("kubectl")])
        after = api.read("daemonsets", HAMI_PLUGIN, "kube-system")["spec"]
        assert after["updateStrategy"]["type"] == "RollingUpdate"
        assert after["template"]["spec"].get("affinity", {}).get("nodeAffinity", {}) == {}


def test_freeze_keeps_the_affinity_that_somebody_has_set(api: ApiServer, desk: Desk) -> None:
    own = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a100"]}]}
    other = {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}
    fill(api, hami_cluster())

    def choose(body: Json) -> None:
        required = {"nodeSelectorTerms": [own, other]}
        pod = body["spec"]["template"]["spec"]
        pod["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
        }

    api.edit("daemonsets", HAMI_PLUGIN, choose, "kube-system")
    _apply_patches(api, by_name(desk.plan())["Freeze"]["commands"])
    pod = api.read("daemonsets", HAMI_PLUGIN, "kube-system")["spec"]["template"]["spec"]
    affinity = pod["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    avoid = {"key": SERVE, "operator": "NotIn", "values": ["true"]}
    assert [term["matchExpressions"] for term in terms] == [
        [*own["matchExpressions"], avoid],
        [*other["matchExpressions"], avoid],
    ]


def _served_twice(api: ApiServer) -> None:
    api.edit("nodes", "gpu-1", lambda body: body["metadata"]["labels"].update({SERVE: "true"}))
    api.create("pods", plugin_pod("hami-node", "gpu-1", "hami-system"))


def _no_webhook(api: ApiServer) -> None:
    api.delete("mutatingwebhookconfigurations", "hami-webhook")


Problem = tuple[list[Json], Callable[[ApiServer], object] | None, str]
"""What is in the cluster besides HAMi, what happens there, and what is said."""
PRESENT: Final = {"nvidia.com/gpu.present": "true"}
LEFT: Final = {"hami-node.io/allocate-identity": "pod-resources"}
PROBLEMS: Final[dict[str, Problem]] = {
    "served twice": (
        own_objects(replicas=-1),
        _served_twice,
        "node gpu-1: served twice, by HAMi and hami-node",
    ),
    "served by nobody": (
        [node("gpu-3", labels=PRESENT, allocatable={})],
        None,
        "node gpu-3: the node has cards and no device plugin serves it",
    ),
    "to be served by nobody": (
        [node("gpu-3", labels=PRESENT | {"gpu": "off", SERVE: "false"})],
        None,
        "",
    ),
    "chosen by both": (
        own_objects(replicas=-1, selection="gpu-labels"),
        None,
        "both choose the node",
    ),
    "labelled, and without our pod": (
        [node("gpu-3", labels={SERVE: "true"}), *own_objects(replicas=-1)],
        None,
        "node gpu-3: hami-node.io/serve=true, but no pod of ours is there",
    ),
    "pod not ready": (
        [node("gpu-3"), plugin_pod(HAMI_PLUGIN, "gpu-3", ready=False)],
        None,
        "node gpu-3: the plugin's pod is not Ready",
    ),
    "no webhook": ([], _no_webhook, "none completes pods with cards"),
    "fewer slices": (
        own_objects(replicas=-1, split=4),
        None,
        "our deviceSplitCount (4) is smaller than HAMi's (10)",
    ),
    "mark of a killed daemon": (
        [
            node("gpu-3", annotations=LEFT),
            plugin_pod(HAMI_PLUGIN, "gpu-3"),
            *own_objects(replicas=2),
        ],
        lambda api: _scale(api, "hami-scheduler", "kube-system", 0),
        "node gpu-3: hami-node.io/allocate-identity was left",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_is_named(api: ApiServer, desk: Desk, name: str) -> None:
    objects, change, words = PROBLEMS[name]
    fill(api, [*hami_cluster(), *objects])
    if change is not None:
        change(api)
    found = desk.problems()
    assert words in found
    assert bool(words) == bool(found)


def test_two_schedulers_of_one_name(api: ApiServer, desk: Desk) -> None:
    fill(api, [*hami_cluster(), *own_objects(replicas=2)])
    assert "two schedulers named hami-scheduler" in desk.problems()
    _scale(api, "hami-scheduler", "kube-system", 0)
    assert "schedulers" not in desk.problems()
    _scale(api, "hami-node-scheduler", "hami-system", 0)
    assert "nobody schedules pods for hami-scheduler" in desk.problems()


def test_schedulers_with_one_lease(api: ApiServer, desk: Desk) -> None:
    fill(api, [*hami_cluster(), *own_objects(replicas=0)])

    def same(body: Json) -> None:
        text = body["data"]["config.yaml"]
        text = text.replace("resourceName: hami-node-scheduler", "resourceName: hami-scheduler")
        body["data"]["config.yaml"] = text.replace("hami-system", "kube-system")

    api.edit("configmaps", "hami-node-scheduler", same, "hami-system")
    assert "lease kube-system/hami-scheduler: HAMi's kube-scheduler and ours" in desk.problems()


def test_webhook_without_a_backend_unless_it_is_paused(api: ApiServer, desk: Desk) -> None:
    fill(api, [*hami_cluster(), *own_objects(replicas=0)])
    api.delete("endpointslices", "hami-scheduler-x", "kube-system")
    found = desk.problems()
    assert "webhook hami-webhook: nothing ready answers behind its Service" in found
    assert "placed without a reservation" in found
    step = by_name(desk.plan())["Scheduler"]
    _apply_patches(api, [one for one in step["commands"] if "webhookconfiguration" in one])
    assert desk.problems() == ""
    _apply_patches(api, [one for one in step["undo"] if "webhookconfiguration" in one])
    assert "webhook hami-webhook" in desk.problems()


def test_locks_and_pods_that_are_being_served(api: ApiServer, desk: Desk) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    nodes = [
        node("gpu-1", annotations={"hami.io/mutex.lock": f"{now},ml,train"}),
        node("gpu-2", annotations={"hami.io/mutex.lock": "2020-01-01T00:00:00Z,ml,old"}),
        node("gpu-3"),
    ]
    phase = RESERVED | {"hami.io/bind-phase": "allocating"}
    fill(api, [*hami_cluster(nodes=nodes), card_pod("train", "gpu-1", annotations=phase)])
    fill(api, [card_pod("boast", "gpu-3", annotations=phase, resource="example.com/none")])
    found = {one["where"]: one for one in desk.plan()["findings"]}
    assert found["node gpu-1"]["level"] == "caution"
    assert found["node gpu-2"]["level"] == "problem"
    assert "boast" not in found["pods ml/train"]["where"]
    assert by_name(desk.plan())["Canary"]["nodes"] == ["gpu-3"]


def test_nodes_in_mig_mode_stay_with_hami(api: ApiServer, desk: Desk) -> None:
    fill(api, hami_cluster())
    entries = [{"name": "gpu-1", "operatingmode": "mig"}]
    data = {"config.json": json.dumps({"nodeconfig": entries})}
    api.edit("configmaps", HAMI_PLUGIN, lambda body: body.update(data=data), "kube-system")
    plan = desk.plan()
    assert by_name(plan)["Canary"]["nodes"] == ["gpu-2"]
    assert by_name(plan)["Nodes"]["nodes"] == []
    assert "gpu-1" in by_name(plan)["Nodes"]["what"]


def test_live_edit_of_hamis_configuration_is_said(api: ApiServer, desk: Desk) -> None:
    fill(api, hami_cluster())

    def edited(body: Json) -> None:
        body["metadata"]["managedFields"] = [{"manager": "helm"}, {"manager": "kubectl-edit"}]

    api.edit("configmaps", "hami-scheduler-device", edited, "kube-system")
    (found,) = [one for one in desk.plan()["findings"] if one["where"].startswith("configmap")]
    assert found["where"] == "configmap kube-system/hami-scheduler-device"
    assert "HAMi's values don't have that" in found["why"]


def test_plan_of_a_cluster_with_the_gpu_operator(api: ApiServer, tmp_path: Path) -> None:
    labels = PRESENT | {"nvidia.com/gpu.deploy.device-plugin": "true"}
    fill(api, [*operator_objects(), *(node(f"gpu-{n}", labels=labels) for n in (1, 2))])
    plugin = "nvidia-device-plugin-daemonset"
    fill(api, [plugin_pod(plugin, f"gpu-{n}", "gpu-operator") for n in (1, 2)])
    fill(api, [card_pod("train", "gpu-1")])
    desk = Desk(api, tmp_path, lambda kube: WithPolicy(kube, policy()))
    plan = desk.plan()
    names = ["Read", "Install", "Canary", "Nodes", "Everybody", "Remove"]
    assert [step["name"] for step in plan["steps"]] == names
    canary = by_name(plan)["Canary"]
    assert canary["nodes"] == ["gpu-2"]  # the one without pods
    off = "kubectl label --overwrite node gpu-2 nvidia.com/gpu.deploy.device-plugin=false"
    ours = f"kubectl label node gpu-2 {SERVE}=true"
    assert canary["commands"].index(off) < canary["commands"].index(ours)
    (removal,) = by_name(plan)["Remove"]["commands"]
    assert '{"spec":{"devicePlugin":{"enabled":false}}}' in removal
    assert desk.problems() == ""


@pytest.mark.parametrize("is_chart", [False, True])
def test_plan_of_a_cluster_with_nvidias_plugin_alone(
    api: ApiServer, desk: Desk, *, is_chart: bool
) -> None:
    name = "nvidia-device-plugin-daemonset"
    plugin = daemon_set(name, "kube-system", image="nvcr.io/nvidia/k8s-device-plugin:v0.17.0")
    if is_chart:
        release = {"release-name": "nvdp", "release-namespace": "kube-system"}
        notes = {f"meta.helm.sh/{key}": value for key, value in release.items()}
        plugin["metadata"]["annotations"] = notes
    fill(api, [plugin, node("gpu-1", labels={}), runtime_class(), plugin_pod(name, "gpu-1")])
    plan = desk.plan()
    assert any(row["what"] == "NVIDIA's plugin 0.17.0" for row in plan["runs"])
    steps = by_name(plan)
    if is_chart:  # it comes back on no node until it is frozen
        saved = "helm get values nvdp -n kube-system -o yaml > nvidia-values.yaml"
        assert saved in steps["Read"]["commands"]
        install = steps["Remove"]["undo"][0]
        assert shlex.split(install)[-2:] == ["--set-string", NOWHERE.format("nodeSelector")]
    else:
        get = f"kubectl -n kube-system get daemonset/{name} -o yaml > nvidia-plugin-frozen.yaml"
        assert steps["Remove"]["commands"][0] == get
        assert steps["Remove"]["undo"] == ["kubectl create -f nvidia-plugin-frozen.yaml"]
    _apply_patches(api, steps["Freeze"]["commands"])
    assert desk.problems() == ""


def test_operator_in_nri_mode_and_with_its_dra_driver(api: ApiServer, tmp_path: Path) -> None:
    dra = {"gpu": "on", "nvidia.com/gpu.deploy.dra-driver": "true"}
    fill(api, hami_cluster(nodes=[node("gpu-1", labels=dra)]))
    nri = policy(cdi={"enabled": True, "nriPluginEnabled": True})
    desk = Desk(api, tmp_path, lambda kube: WithPolicy(kube, nri))
    assert "NVIDIA's DRA driver gives out the same cards" in desk.problems()
    plan = desk.plan()
    assert any("NRI" in one["where"] for one in plan["findings"])
    assert "devicePlugin.driver=nri" in by_name(plan)["Install"]["commands"][-1]


def test_hami_comes_back_on_no_node_and_after_our_scheduler(api: ApiServer, desk: Desk) -> None:
    fill(api, hami_cluster())
    fill(api, own_objects(replicas=2))
    _apply_patches(api, by_name(desk.plan())["Freeze"]["commands"])
    idle, gone, install, look, *patches, last = by_name(desk.plan())["Remove"]["undo"]
    assert "scheduler.kubeScheduler.replicas=0" in idle
    assert "system:serviceaccount:kube-system:hami-scheduler" in idle  # it writes reservations
    assert gone.startswith("kubectl -n hami-system wait --for=delete pod -l ")
    words = shlex.split(install)
    for path in ("devicePlugin.nvidiaNodeSelector", "devicePlugin.nvidianodeSelector"):
        assert NOWHERE.format(path) in words
    assert "DESIRED is 0" in look
    api.edit("daemonsets", HAMI_PLUGIN, _on_no_node, "kube-system")
    _apply_patches(api, patches)
    spec = api.read("daemonsets", HAMI_PLUGIN, "kube-system")["spec"]
    assert spec["updateStrategy"]["type"] == "OnDelete"
    assert json.dumps(spec["template"]["spec"]["affinity"]).count(SERVE) == 1
    assert spec["template"]["spec"]["nodeSelector"] == {"gpu": "on"}
    assert "undo of the step Scheduler" in last


def test_plan_of_an_empty_cluster(api: ApiServer, desk: Desk) -> None:
    fill(api, [node("gpu-1", labels={"nvidia.com/gpu.present": "true"}, allocatable={})])
    plan = desk.plan()
    assert following(plan) == ["Install"]
    assert desk.check() == (0, [])
    shown = desk.run("check").stdout
    assert "nothing is wrong" in shown


def test_pod_that_came_before_any_installation(api: ApiServer, desk: Desk) -> None:
    """Nothing is broken: the plan's only step is to install."""
    fill(api, [node("gpu-1", labels={"nvidia.com/gpu.present": "true"}, allocatable={})])
    fill(api, [card_pod("early", "")])
    plan = desk.plan()
    assert following(plan) == ["Install"]
    assert "image.registry=REGISTRY" in by_name(plan)["Install"]["commands"][-1]
    (found,) = [one for one in plan["findings"] if "early" in one["where"]]
    assert "neither HAMi nor hami-node is installed" in found["why"]
    assert "Scheduler" not in found["cure"]
    assert desk.check() == (0, [])


def test_missing_rights_and_missing_kinds_are_said(api: ApiServer, desk: Desk) -> None:
    fill(api, hami_cluster())
    for resource, status in (("leases", 403), ("runtimeclasses", 404), ("secrets", 403)):
        api.faults.add("list", resource, status, times=9)
    gaps = {gap["what"]: gap["why"] for gap in desk.plan()["gaps"]}
    assert "runtimeclasses" in gaps
    assert "secrets of kube-system/hami" in " ".join(gaps)
    assert any("leases" in what for what in gaps)
    shown = desk.run("plan").stdout
    assert "not read, and so not judged" in shown
    assert "nothing is wrong" not in desk.run("check").stdout


@pytest.mark.parametrize("resource", ["nodes", "daemonsets", "deployments"])
def test_who_may_not_see_what_runs_is_told_no_steps(
    api: ApiServer, desk: Desk, resource: str
) -> None:
    fill(api, hami_cluster())
    api.faults.add("list", resource, 403, times=9)
    for command in ("plan", "check"):
        result = desk.run(command)
        assert (result.exit_code, result.stdout) == (3, "")
        assert resource in result.stderr


def test_api_server_that_fails_ends_the_command(api: ApiServer, desk: Desk) -> None:
    fill(api, hami_cluster())
    api.faults.add("list", "deployments", 500, times=9)
    result = desk.run("check")
    assert result.exit_code == 3
    assert "deployments" in result.stderr
    api.faults.clear()
    api.go_down()
    assert desk.run("plan").exit_code == 3


def test_hostile_names_stay_words_and_text(api: ApiServer, desk: Desk, tmp_path: Path) -> None:
    evil = "x'; touch owned; echo $(touch owned) `touch owned` \"; touch owned; \x1b[31m"
    fill(api, hami_cluster(nodes=[node(evil), node("[bold]gpu[/bold]")]))
    fill(api, own_objects(replicas=-1))
    given = _run_commands(tmp_path, [c for s in desk.plan()["steps"] for c in s["commands"]])
    assert any(evil in line for line in given)
    assert not (tmp_path / "run" / "owned").exists()
    shown = desk.run("plan").stdout
    assert "\x1b" not in shown
    assert "[bold]gpu[/bold]" in shown


def test_commands_are_whole_when_they_are_folded(
    api: ApiServer, desk: Desk, tmp_path: Path
) -> None:
    """What a person copies from the screen does what -o json says."""
    fill(api, hami_cluster())
    wanted = _run_commands(tmp_path, [c for s in desk.plan()["steps"] for c in s["commands"]])
    shown = re.findall(r"^   \$ ((?:.*\\\n)*.*)$", desk.run("plan").stdout, re.MULTILINE)
    copied = [one for one in shown if one]
    assert _run_commands(tmp_path, copied) == wanted


def test_tenants_deployment_that_calls_itself_hami_is_left_out(api: ApiServer, desk: Desk) -> None:
    fill(api, [*hami_cluster(), *own_objects(replicas=-1)])
    for one in [*hami_objects(), *own_objects(replicas=3)]:
        if one["kind"] == "Deployment":
            one["metadata"]["namespace"] = "a-tenant"
            fill(api, [one])
    plan = desk.plan()
    assert "a-tenant" not in json.dumps(plan)
    assert desk.problems() == ""


@pytest.mark.parametrize("where", ["metadata", "spec", "status"])
def test_objects_of_any_shape(api: ApiServer, desk: Desk, where: str) -> None:
    fill(api, hami_cluster())
    for kind, name, namespace in (
        ("daemonsets", HAMI_PLUGIN, "kube-system"),
        ("deployments", "hami-scheduler", "kube-system"),
        ("nodes", "gpu-1", ""),
        ("pods", f"{HAMI_PLUGIN}-gpu-1", "kube-system"),
    ):
        odd: Json = {"labels": 7, "template": [], "conditions": "x", "containers": {"a": 1}}

        def spoil(body: Json, odd: Json = odd) -> None:
            kept = body["metadata"] if where == "metadata" else {}
            body[where] = {**odd, **kept, "labels": ["a"], "annotations": 3}

        api.edit(kind, name, spoil, namespace)
    assert desk.run("plan").exit_code == 0
    assert desk.run("check").exit_code in (0, 1)


def test_large_cluster_is_read_in_pages_and_shown_in_few_lines(api: ApiServer, desk: Desk) -> None:
    nodes = [node(f"gpu-{n:04}") for n in range(5000)]
    fill(api, hami_cluster(nodes=nodes))
    fill(api, own_objects(replicas=-1))
    began = time.monotonic()
    shown = desk.run("plan").stdout
    assert time.monotonic() - began < 60
    assert len(shown.splitlines()) < 250
    assert "4997 more" in shown
    lists = [one for one in api.requests(verb="list") if one.resource in ("nodes", "pods")]
    assert {one.query["limit"] for one in lists} == {str(PAGE)}
    assert all("resourceVersion" not in one.query for one in lists)  # a cache sends all at once
    assert len(by_name(desk.plan())["Nodes"]["nodes"]) == 4999
    assert not [one for one in api.requests() if one.verb not in ("get", "list")]


def _on_no_node(body: Json) -> None:
    """As the chart makes it with the selector that no node has."""
    chosen = body["spec"]["template"]["spec"].setdefault("nodeSelector", {})
    chosen["hami-node.io/nowhere"] = "true"


def _hand_over(api: ApiServer, name: str) -> None:
    """As the DaemonSet controller does once the node has our label."""
    api.edit("nodes", name, lambda body: body["metadata"]["labels"].update({SERVE: "true"}))
    api.delete("pods", f"{HAMI_PLUGIN}-{name}", "kube-system")
    api.create("pods", plugin_pod("hami-node", name, "hami-system"))


def _scale(api: ApiServer, name: str, namespace: str, replicas: int) -> None:
    def change(body: Json) -> None:
        body["spec"]["replicas"] = replicas
        body["status"]["readyReplicas"] = replicas

    api.edit("deployments", name, change, namespace)


def _run_commands(folder: Path, commands: Iterable[str]) -> list[str]:
    """Run them in a shell in which kubectl, helm and hami-node only note what they are told."""
    programs, run = folder / "programs", folder / "run"
    for one in (programs, run):
        one.mkdir(exist_ok=True)
    noted = folder / "noted"
    noted.write_text("")
    for name in ("kubectl", "helm", "hami-node"):
        program = programs / name
        program.write_text(f'#!/bin/sh\nprintf "%s|" {name} "$@" >> {noted}; echo >> {noted}\n')
        program.chmod(0o755)
    for command in commands:
        subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=run,
            env={"PATH": f"{programs}:/usr/bin:/bin"},
            check=True,
            capture_output=True,
            timeout=20,
        )
    return noted.read_text().splitlines()


def _apply_patches(api: ApiServer, commands: Iterable[str]) -> None:
    """What kubectl would send for these commands."""
    for command in commands:
        words = shlex.split(command)
        namespace = words[words.index("-n") + 1] if "-n" in words else ""
        at = words.index("patch")
        kind, _, name = words[at + 1].partition("/")
        name = name or words[at + 2]
        resource = {"daemonset": "daemonsets"}.get(kind, f"{kind}s")
        version = "apps" if resource == "daemonsets" else "admissionregistration.k8s.io"
        base = f"{api.url}/apis/{version}/v1" + (f"/namespaces/{namespace}" if namespace else "")
        form = "json" if "--type=json" in words else "merge"
        answer = httpx.patch(
            f"{base}/{resource}/{name}",
            content=words[words.index("-p") + 1],
            headers={"Content-Type": f"application/{form}-patch+json"},
        )
        assert answer.status_code == 200, answer.text
