"""The probe: a pod that asks for a slice, explained when it does not run, and always removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hami_node.errors import Forbidden, KubeError
from hami_node.simulate.store import ApiRefusal
from hami_node.verify.probe import not_created
from tests.fakes.installed import Installed, Json
from tests.fakes.waiting import eventually
from tests.unit.verify.calling import call, findings

GRANT = {
    "hami.io/vgpu-devices-allocated": "GPU-gpu-0-0,NVIDIA,256,0:;",
    "hami.io/vgpu-devices-to-allocate": ";",
    "hami.io/vgpu-node": "gpu-0",
    "hami.io/bind-phase": "success",
}


def probes(cluster: Installed) -> list[Json]:
    return [
        pod
        for pod in cluster.server.list("pods")
        if (pod["metadata"].get("labels") or {}).get("app") == "hami-node-probe"
    ]


@contextmanager
def answered(cluster: Installed, change: Callable[[Json], object]) -> Iterator[list[Json]]:
    """While this is entered, each probe pod is changed once, as scheduler and kubelet would."""
    stop, seen = threading.Event(), list[Json]()

    def watch() -> None:
        while not stop.wait(0.02):
            for pod in probes(cluster):
                meta = pod["metadata"]
                if meta["name"] not in {one["metadata"]["name"] for one in seen}:
                    seen.append(pod)
                    try:
                        cluster.server.edit("pods", meta["name"], change, meta["namespace"])
                    except ApiRefusal:
                        continue  # it was removed meanwhile

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def runs(annotations: dict[str, str] = GRANT, phase: str = "Succeeded") -> Callable[[Json], object]:
    def change(body: Json) -> None:
        body["metadata"]["annotations"] = annotations
        body["spec"]["nodeName"] = "gpu-0"
        body["spec"]["schedulerName"] = "hami-scheduler"
        body["status"] = {"phase": phase}

    return change


def probe_of(found: list[Json]) -> list[tuple[str, str]]:
    return [(one["state"], one["what"]) for one in found if one["check"] == "probe"]


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_pod_that_gets_its_slice_is_green_and_gone(cluster: Installed, phase: str) -> None:
    with answered(cluster, runs(phase=phase)) as seen:
        found = findings(cluster, "--probe")
    assert probe_of(found) == [("ok", "a pod got 256 MiB of card GPU-gpu-0-0 on gpu-0")]
    assert probes(cluster) == []
    (pod,) = seen
    assert pod["metadata"]["namespace"] == "default"
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert container["image"] == "hami-node"
    assert container["args"] == ["--version"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "256"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", 300)
    assert spec["automountServiceAccountToken"] is False
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]


def test_image_namespace_and_node_are_the_users(cluster: Installed) -> None:
    args = ("--probe=cuda:12", "--probe-namespace", "ml", "--node", "gpu-0")
    with answered(cluster, runs()) as seen:
        assert call(cluster, *args).exit_code == 0
    (pod,) = seen
    assert pod["metadata"]["namespace"] == "ml"
    container = pod["spec"]["containers"][0]
    assert (container["image"], "args" in container) == ("cuda:12", False)
    terms = pod["spec"]["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["gpu-0"]


def test_pod_that_waits_is_explained_by_its_events_and_removed(cluster: Installed) -> None:
    def wait(body: Json) -> None:
        message = "0/3 nodes are available: 3 CardInsufficientMemory"
        body["status"] = {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                }
            ],
        }
        event = {
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"name": body["metadata"]["name"]},
            "type": "Warning",
            "reason": "FilteringFailed",
            "message": "gpu-0: no card has 256 MiB",
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }
        cluster.server.create("events", event)

    with answered(cluster, wait):
        found = findings(cluster, "--probe", "--timeout", "5")
    ((state, what),) = probe_of(found)
    assert state == "wrong"
    assert "did not run: Unschedulable: 0/3 nodes are available: 3 CardInsufficientMemory" in what
    assert "FilteringFailed: gpu-0: no card has 256 MiB" in what
    assert probes(cluster) == []


def test_pod_that_is_refused_by_kubelet_is_explained_at_once(cluster: Installed) -> None:
    def fail(body: Json) -> None:
        reason, message = "UnexpectedAdmissionError", "Allocate failed: it has no reservation"
        body["status"] = {"phase": "Failed", "reason": reason, "message": message}

    with answered(cluster, fail):
        ((state, what),) = probe_of(findings(cluster, "--probe"))
    assert state == "wrong"
    assert "UnexpectedAdmissionError Allocate failed: it has no reservation" in what
    assert probes(cluster) == []


def test_pod_that_runs_without_a_reservation_is_wrong(cluster: Installed) -> None:
    with answered(cluster, runs(annotations={})):
        ((state, what),) = probe_of(findings(cluster, "--probe"))
    assert state == "wrong"
    assert "runs on gpu-0 without a reservation" in what


def test_pod_whose_creation_was_not_answered_is_removed(cluster: Installed) -> None:
    cluster.server.faults.add("create", "pods", "reset-after", 1)
    done = call(cluster, "--probe")
    assert done.exit_code == 3
    assert [one.status for one in cluster.server.requests(verb="delete", resource="pods")] == [200]
    assert probes(cluster) == []


def test_pod_that_is_refused_is_said_in_the_words_of_who_refused(cluster: Installed) -> None:
    cluster.server.faults.add("create", "pods", 422, 1)
    ((state, what),) = probe_of(findings(cluster, "--probe"))
    assert state == "wrong"
    assert "is refused: can't create" in what


def test_missing_right_to_create_pods_is_no_failure() -> None:
    words = 'pods is forbidden: User "x" cannot create resource "pods" in API group ""'
    assert not_created("default/p", Forbidden(words, 403)).what.startswith("not checked: no right")
    assert not_created("default/p", KubeError("quota exceeded", 403)).state == "wrong"


def test_removal_is_tried_again(cluster: Installed) -> None:
    cluster.server.faults.add("delete", "pods", 500, 2)
    with answered(cluster, runs()):
        assert call(cluster, "--probe").exit_code == 0
    assert probes(cluster) == []


def test_pod_that_can_not_be_removed_is_named(cluster: Installed) -> None:
    cluster.server.faults.add("delete", "pods", 403, 10)
    with answered(cluster, runs()) as seen:
        found = findings(cluster, "--probe")
    name = seen[0]["metadata"]["name"]
    assert probe_of(found)[-1][0] == "wrong"
    assert found[-1]["remedy"] == f"kubectl -n default delete pod {name}"


def test_without_cards_nothing_is_created(cluster: Installed) -> None:
    for node in cluster.node_names:
        cluster.annotate(node, {"hami.io/node-nvidia-register": None})
    ((state, what),) = probe_of(findings(cluster, "--probe"))
    assert (state, "no node has registered a card" in what) == ("skip", True)
    assert cluster.server.requests(verb="create", resource="pods") == ()


def test_api_server_that_hangs_meanwhile_is_given_up(cluster: Installed) -> None:
    cluster.server.faults.add("get", "pods", "hang", 100)
    done = call(cluster, "--probe", "--timeout", "5")
    assert done.exit_code == 3
    assert probes(cluster) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_probe_is_removed_before_the_end(cluster: Installed, number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hami_node", "verify", "--probe", "-o", "json"],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: len(probes(cluster)) == 1, limit_s=60)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert probes(cluster) == []
    assert probe_of(json.loads(output)["findings"]) == [("skip", "not checked: interrupted")]
