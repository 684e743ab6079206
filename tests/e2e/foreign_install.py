"""HAMi and NVIDIA's plugin as their charts install them, with a stand-in for their programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e import cards, parts
from tests.e2e.api import Api, Json
from tests.e2e.assets import IMAGE
from tests.e2e.cluster import Cluster
from tests.e2e.waiting import eventually
from tests.fakes.foreign_cluster import HAMI, daemon_set, hami_objects

SPACE: Final = "kube-system"
PLUGIN: Final = "hami-device-plugin"
NVIDIA: Final = "nvidia-device-plugin-daemonset"
_PODS: Final = f"/api/v1/namespaces/{SPACE}/pods"
_SCRIPT: Final = "stand-in"
_NODE: Final = f"/api/v1/nodes/{parts.NODE}"


class Foreign:
    """Somebody else's plugin in kube-system."""

    def __init__(self, cluster: Cluster, api: Api, name: str) -> None:
        self.cluster, self.api, self.name = cluster, api, name

    def pods(self) -> dict[str, str]:
        """Nodes of its pods with the pods' uids; a pod that is going away counts."""
        found = self.api.read(_PODS)["items"]
        return {
            pod["spec"].get("nodeName", ""): pod["metadata"]["uid"]
            for pod in found
            if pod["metadata"].get("ownerReferences", [{}])[0].get("name") == self.name
        }

    def is_ready(self) -> bool:
        """Whether its pod on the real node is Ready."""
        for pod in self.api.read(_PODS)["items"]:
            owner = pod["metadata"].get("ownerReferences", [{}])[0].get("name")
            if owner == self.name and pod["spec"].get("nodeName") == parts.NODE:
                states = pod["status"].get("conditions", [])
                return any(one["type"] == "Ready" and one["status"] == "True" for one in states)
        return False


def install_hami(
    cluster: Cluster, api: Api, *kinds: str, version: str = "2.10.0", serves: bool = True
) -> Foreign:
    """HAMi's objects of these kinds (all without any); its programs are stand-ins.

    `serves`: the node has HAMi's label.
    """
    _apply_script(cluster)
    for found in hami_objects(version):
        if kinds and found["kind"] not in kinds:
            continue
        found.pop("status", None)
        if found["kind"] == "DaemonSet":
            _use_stand_in(cluster, found, ["nvidia-gpu.sock", str(cards.SPLIT), *cards.UUIDS])
        if found["kind"] == "Deployment":
            _use_sleep(found)
        if found["kind"] != "Lease":
            _apply(cluster, found)
    if serves:
        api.patch(_NODE, {"metadata": {"labels": {"gpu": "on"}}})
    return Foreign(cluster, api, PLUGIN)


def install_nvidia(cluster: Cluster, api: Api, selector: dict[str, str]) -> Foreign:
    """NVIDIA's plugin, with a selector as the GPU Operator has it: whole cards by their UUIDs."""
    _apply_script(cluster)
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"
    found = daemon_set(NVIDIA, SPACE, image=image, selector=selector)
    del found["status"], found["metadata"]["ownerReferences"]
    found["apiVersion"] = "apps/v1"
    found["spec"]["template"]["metadata"] = {"labels": {"app": NVIDIA}}
    found["metadata"]["labels"] = {"app": NVIDIA} if selector else {}
    _use_stand_in(cluster, found, ["nvidia-gpu.sock", "0", *cards.UUIDS])
    _apply(cluster, found)
    return Foreign(cluster, api, NVIDIA)


def remove(cluster: Cluster, api: Api) -> None:
    """Everything of theirs, and what a hand-over leaves on the node."""
    words = ("delete", "--ignore-not-found", "--wait=true", "-n", SPACE)
    cluster.kubectl(*words, f"daemonset/{PLUGIN}", f"daemonset/{NVIDIA}")
    objects = [
        f"{one['kind'].lower()}/{one['metadata']['name']}"
        for one in hami_objects()
        if one["kind"] not in ("DaemonSet", "Lease")
    ]
    cluster.kubectl(*words, *objects, f"configmap/{_SCRIPT}")
    labels = {"gpu": None, "nvidia.com/gpu.deploy.device-plugin": None}
    api.patch(_NODE, {"metadata": {"labels": labels}, "spec": {"unschedulable": None}})
    for name in (PLUGIN, NVIDIA):
        one = Foreign(cluster, api, name)
        eventually("their pods are gone", lambda one=one: not one.pods())  # type: ignore[misc]


def serve_as_hami(api: Api, pod: str) -> None:
    """What HAMi's plugin of 2.10 writes when it has served a pod with one container."""
    notes = {nvidia_names.POD_TO_ALLOCATE: ";", names.POD_BIND_PHASE: names.PHASE_SUCCESS}
    path = f"/api/v1/namespaces/default/pods/{pod}"
    api.patch(path, {"metadata": {"annotations": notes}})


def registered_as_hami(api: Api) -> None:
    """What HAMi's plugin of 2.10 writes on its node."""
    rows = [
        {
            "id": uuid,
            "index": index,
            "count": cards.SPLIT,
            "devmem": cards.MEMORY_MIB,
            "devcore": 100,
            "type": cards.MODEL,
            "mode": "hami-core",
            "health": True,
        }
        for index, uuid in enumerate(cards.UUIDS)
    ]
    notes = {
        nvidia_names.NODE_REGISTER: json.dumps(rows, separators=(",", ":")),
        nvidia_names.NODE_HANDSHAKE: "Requesting_2026-11-21 00:12:50",
    }
    api.patch(_NODE, {"metadata": {"annotations": notes}})


class Migration:
    """`hami-node migrate` and its commands, with the real kubectl."""

    def __init__(self, cluster: Cluster) -> None:
        self._env = {
            "PATH": f"{cluster.programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(parts.kubeconfig(cluster.root, parts.ADMIN)),
            "HOME": str(cluster.root),
        }

    def plan(self) -> dict[str, Json]:
        """The steps by their names."""
        done = self._call("plan", "-o", "json")
        assert done.returncode == 0, done.stderr
        return {step["name"]: step for step in json.loads(done.stdout)["steps"]}

    def problems(self) -> list[str]:
        """What is wrong now."""
        done = self._call("check", "-o", "json")
        found = [f"{one['where']}: {one['why']}" for one in json.loads(done.stdout)["problems"]]
        assert done.returncode == bool(found), done.stderr
        return found

    def run(self, commands: Iterable[str], *, but: tuple[str, ...] = ("helm",)) -> None:
        """Run those that are commands, one after the other; not those that begin so."""
        for command in commands:
            if not command.startswith(("kubectl", "until", "for")) or command.startswith(but):
                continue
            if ": " in command.partition("'")[0]:
                continue  # a sentence
            done = subprocess.run(
                ["/bin/bash", "-euc", command],
                env=self._env,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def _call(self, *args: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "hami_node", "migrate", *args]
        return subprocess.run(
            words, env=self._env, capture_output=True, text=True, timeout=180, check=False
        )


def _apply_script(cluster: Cluster) -> None:
    script = (Path(HAMI) / "stand_in.py").read_text()
    meta = {"name": _SCRIPT, "namespace": SPACE}
    _apply(
        cluster,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"run.py": script}},
    )


def _apply(cluster: Cluster, found: Json) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(found))


def _use_stand_in(cluster: Cluster, found: Json, args: list[str]) -> None:
    """The product's image under the name of theirs: it has Python and kubelet's protocol."""
    pod = found["spec"]["template"]["spec"]
    box = pod["containers"][0]
    cluster.ctr("images", "tag", "--force", IMAGE, box["image"])
    box |= {
        "imagePullPolicy": "Never",
        "securityContext": {"runAsUser": 0},  # kubelet's folder is root's
        "command": ["python3", "/stand-in/run.py"],
        "args": args,
        "volumeMounts": [
            {"name": "stand-in", "mountPath": "/stand-in"},
            {"name": "sockets", "mountPath": "/var/lib/kubelet/device-plugins"},
        ],
    }
    path = next(
        one["hostPath"]["path"]
        for one in pod["volumes"]
        if one.get("hostPath", {}).get("path", "").endswith("device-plugins")
    )
    pod["volumes"] += [
        {"name": "stand-in", "configMap": {"name": _SCRIPT}},
        {"name": "sockets", "hostPath": {"path": path}},
    ]
    pod["tolerations"] = [{"operator": "Exists"}]
    pod.pop("hostPID", None)


def _use_sleep(found: Json) -> None:
    """A Deployment whose pods only exist."""
    pod = found["spec"]["template"]["spec"]
    for box in pod["containers"]:
        box |= {"image": parts.BUSYBOX, "imagePullPolicy": "Never"}
        box["command"] = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"]
        box["volumeMounts"] = [one for one in box["volumeMounts"] if "subPath" not in one]
