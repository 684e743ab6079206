"""A large cluster behind the simulated API server, as its own process, for measurements.

`python -m tests.bench.extender_cluster NODES PODS KUBECONFIG` fills it, writes the kubeconfig, says
so on standard output and serves until standard input ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hami_node.model import Device
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_json
from hami_node.wire import names
from tests.bench.engine_load import CARDS, devices_of, node_name, thrown_grants
from tests.fakes.api_server import FaultyApiServer

NAMESPACES = 20
READY = "filled"

Json = dict[str, Any]


def node_object(number: int, *, has_identity: bool = True) -> Json:
    """A node as our daemon leaves it; without identity it needs the lock at a bind."""
    devices: list[Device] = devices_of(number)
    annotations = {nvidia_names.NODE_REGISTER: encode_json(devices)}
    if has_identity:
        annotations[names.NODE_IDENTITY] = names.IDENTITY_POD_RESOURCES
    amounts = {"cpu": "128", "memory": "1056Gi", "pods": "250", "nvidia.com/gpu": str(CARDS * 10)}
    return {
        "metadata": {
            "name": node_name(number),
            "annotations": annotations,
            "labels": {"kubernetes.io/hostname": node_name(number), "topology/zone": "a"},
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [
                {"type": kind, "status": status, "message": "kubelet is posting this"}
                for kind, status in (("MemoryPressure", "False"), ("Ready", "True"))
            ],
            "images": [
                {"names": [f"registry.example/team/image-{i}@sha256:{i:064x}"], "sizeBytes": i}
                for i in range(10)
            ],
        },
    }


def pod_object(name: str, namespace: str, limits: Json, annotations: Json | None = None) -> Json:
    """A pending pod with about what a Deployment's pod carries: 2 KiB of JSON."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "labels": {"app": "model", "pod-template-hash": "5d78c9869d"},
            "annotations": annotations or {},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "model", "uid": "rs-1"}
            ],
        },
        "spec": {
            "schedulerName": "hami-scheduler",
            "serviceAccountName": "default",
            "containers": [
                {
                    "name": "model",
                    "image": "registry.example/team/model:v1",
                    "args": ["--port=8000", "--model=/models/one"],
                    "env": [{"name": f"SETTING_{i}", "value": f"value-{i}"} for i in range(12)],
                    "resources": {"limits": {"cpu": "4", "memory": "16Gi", **limits}},
                    "volumeMounts": [
                        {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io"}
                    ],
                }
            ],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
            ],
            "volumes": [{"name": "token", "projected": {"sources": []}}],
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def limits_of(memory_mib: int, cores: int = 0, count: int = 1) -> Json:
    """What a container asks for."""
    limits = {"nvidia.com/gpu": str(count), "nvidia.com/gpumem": str(memory_mib)}
    return {**limits, "nvidia.com/gpucores": str(cores)} if cores else limits


def placed_pods(nodes: int, pods: int, seed: int = 1) -> Iterator[Json]:
    """Running pods that hold one card each, thrown at random cards as long as they fit."""
    for placed, (number, grant) in enumerate(thrown_grants(nodes, pods, seed)):
        grants = f"{grant.uuid},NVIDIA,{grant.memory_mib},{grant.cores}:;"
        pod = pod_object(
            f"placed-{placed:06d}",
            f"team-{placed % NAMESPACES}",
            limits_of(grant.memory_mib, grant.cores),
            {
                names.POD_NODE: node_name(number),
                names.POD_TIME: "1780000000",
                nvidia_names.POD_ALLOCATED: grants,
                nvidia_names.POD_TO_ALLOCATE: grants,
                names.POD_BIND_PHASE: names.PHASE_SUCCESS,
            },
        )
        pod["spec"]["nodeName"] = node_name(number)
        pod["status"]["phase"] = "Running"
        yield pod


def main(nodes: int, pods: int, kubeconfig: Path) -> None:
    """Serve until standard input ends."""
    api = FaultyApiServer()
    for number in range(nodes):
        api.create("nodes", node_object(number))
    for pod in placed_pods(nodes, pods):
        api.create("pods", pod)
    with api:
        api.write_kubeconfig(kubeconfig)
        print(READY, api.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
