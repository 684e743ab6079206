"""Neuron nodes with the real daemon and extender; AWS's plugin and kube-scheduler are played."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client.exposition import generate_latest

from hami_node.config.sources import ConfigSources
from hami_node.extender.service import Extender
from hami_node.model import Pod
from hami_node.node.daemon import Daemon
from hami_node.setting_types import Role
from hami_node.simulate.patches import json_patch
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS
from hami_node.wire.objects import decode_node, decode_pod
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.faulty_kubelet import FaultyKubelet
from tests.fakes.settings import load
from tests.fakes.waiting import eventually

Json = dict[str, Any]
LIMIT_S: Final = 15.0
NODE: Final = "trn"
AWS: Final = NeuronResources()


class NeuronCluster:
    """One API server with Neuron nodes, a daemon on one of them, and the extender.

    Both programs read the same `device-config.yaml`.
    """

    def __init__(self, resources: NeuronResources = AWS) -> None:
        # Short, for a unix socket's path has at most 107 characters.
        self.root = Path(tempfile.mkdtemp(prefix="hn-"))
        self.resources = resources
        self.config = self.root / "device-config.yaml"
        self.config.write_text(
            f"awsneuron: {{resourceCountName: {resources.device}, "
            f"resourceCoreName: {resources.core}}}\n"
        )
        (self.root / "no-gpus.yaml").write_text("{driver_down: no GPU here, cards: []}\n")
        self.kubelet = FaultyKubelet(self.root / "plugins", self.root / "pr" / "kubelet.sock")
        self.sysfs = self.root / "sys"
        self.api = FaultyApiServer()
        self.url = ""
        self._ends = ExitStack()
        self.daemon: Daemon | None = None
        self.extender: Extender | None = None

    def start(self) -> None:
        """The API server, kubelet and the extender; daemons start by `start_daemon`."""
        self._ends.callback(shutil.rmtree, self.root)
        self.kubelet.start()
        self._ends.callback(self.kubelet.stop)
        self.api.start()
        self._ends.callback(self.api.stop)
        flags = {"http_bind": "127.0.0.1:0"}
        sources = self._sources(flags, Role.EXTENDER)
        self.extender = extender = Extender(load(sources), sources, VENDORS)
        extender.start()
        runner = threading.Thread(target=extender.wait, daemon=True)
        runner.start()
        self._ends.callback(runner.join, 30.0)
        self._ends.callback(extender.stop.set)
        eventually(extender.parts.readiness.is_leading, LIMIT_S)
        self.url = f"http://127.0.0.1:{extender.parts.server.port}"

    def close(self) -> None:
        self._ends.close()

    def _sources(self, flags: Mapping[str, str], role: Role) -> ConfigSources:
        kubeconfig = self.api.write_kubeconfig(self.root / "kubeconfig")
        shared = {"kubeconfig": str(kubeconfig), "metrics_address": "off"}
        return ConfigSources(
            blocks=SETTINGS_BLOCKS,
            flags={**flags, **shared},
            config_file=self.config,
            role=role,
        )

    # -- nodes -------------------------------------------------------------------------------------
    def add_node(
        self, name: str, instance_type: str, devices: int, cores: int | None = None
    ) -> None:
        """A node as AWS's plugin makes it known through kubelet, two cores on each device."""
        counted = {self.resources.device: str(devices)}
        if cores != 0:
            counted[self.resources.core] = str(cores or 2 * devices)
        label = {neuron_names.INSTANCE_TYPE: instance_type} if instance_type else {}
        body = {
            "metadata": {"name": name, "labels": label},
            "spec": {},
            "status": {"capacity": counted, "allocatable": counted},
        }
        self.api.create("nodes", body)

    def await_node(self, name: str, devices: int) -> None:
        """The extender knows so many devices of the node."""
        assert self.extender is not None
        state = self.extender.parts.state
        eventually(lambda: len(state.cards_of(name)) == devices, LIMIT_S)

    def start_daemon(self, node: str) -> None:
        flags = {
            "node_name": node,
            "backend": "simulated",
            "simulated_file": str(self.root / "no-gpus.yaml"),
            "plugin_dir": str(self.root / "plugins"),
            "pod_resources_socket": str(self.root / "pr" / "kubelet.sock"),
            "hook_path": str(self.root),
            "record_dir": str(self.root / "record"),
            "limiter": "optional",
            "sysfs_root": str(self.sysfs),
        }
        sources = self._sources(flags, Role.DAEMON)
        self.daemon = daemon = Daemon(load(sources), sources, VENDORS)
        daemon.start()
        self._ends.callback(daemon.wait)
        self._ends.callback(daemon.stop.set)

    def restart_daemon(self, node: str) -> None:
        assert self.daemon is not None
        self.daemon.stop.set()
        self.daemon.wait()
        self.start_daemon(node)

    def look(self) -> None:
        """The daemon looks at kubelet's list and at all pods now, not in some seconds."""
        assert self.daemon is not None
        assert self.daemon.cluster is not None
        self.daemon.cluster._rivals.check()
        self.daemon.cluster._outsiders.audit()

    def run_elsewhere(self, name: str, resource: str, *ids: str) -> None:
        """A running pod that another scheduler placed, with the IDs that AWS's plugin gave."""
        body = pod_body(name, {resource: str(len(ids))})
        body["metadata"] |= {"namespace": "default", "uid": f"uid-{name}"}
        body["spec"]["nodeName"] = NODE
        self.api.create("pods", {**body, "status": {"phase": "Running"}})
        self.hold(name, resource, *ids)

    def hold(self, name: str, resource: str, *ids: str) -> None:
        """kubelet lists these IDs for the pod, once the daemon has seen it."""
        cluster = self.daemon.cluster if self.daemon is not None else None
        assert cluster is not None
        eventually(lambda: cluster.view.pod("default", name) is not None, LIMIT_S)
        self.kubelet.hold(self.pod(name), resource, *ids)

    def notes_of(self, node: str) -> dict[str, str]:
        return dict(self.api.read("nodes", node)["metadata"].get("annotations") or {})

    def used_on(self, node: str) -> dict[int, int]:
        """Masks of the taken cores by device number, as the extender counts."""
        assert self.extender is not None
        cards = self.extender.parts.state.cards_of(node).values()
        return {card.device.index: card.cores_used for card in cards if card.cores_used}

    def metrics(self) -> str:
        """What the daemon shows to Prometheus."""
        assert self.daemon is not None
        assert self.daemon.cluster is not None
        return generate_latest(self.daemon.cluster.metrics.registry).decode()

    # -- pods --------------------------------------------------------------------------------------
    def submit(self, body: Json) -> list[str]:
        """Create a pod through the webhook; the warnings."""
        body = {"status": {"phase": "Pending"}, **body}
        body["metadata"] = {"namespace": "default", **body["metadata"]}
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "operation": "CREATE",
                "object": body,
            },
        }
        answer = httpx.post(f"{self.url}/webhook", json=review).json()["response"]
        assert answer["allowed"], answer
        patch = json.loads(base64.b64decode(answer["patch"])) if "patch" in answer else []
        self.api.create("pods", json_patch(body, patch))
        return list(answer.get("warnings") or [])

    def filter(self, name: str, *nodes: str) -> Json:
        call = {"Pod": self.api.read("pods", name, "default"), "NodeNames": list(nodes)}
        return dict(httpx.post(f"{self.url}/filter", json=call).json())

    def simulate(self, name: str, *nodes: str) -> Json:
        """The answer to a caller that sends whole nodes, as cluster autoscalers do."""
        items = [self.api.read("nodes", node) for node in nodes]
        call = {"Pod": self.api.read("pods", name, "default"), "Nodes": {"items": items}}
        return dict(httpx.post(f"{self.url}/filter", json=call).json())

    def bind(self, name: str, node: str) -> str:
        pod = self.api.read("pods", name, "default")["metadata"]
        call = {"PodName": name, "PodNamespace": "default", "PodUID": pod["uid"], "Node": node}
        return str(httpx.post(f"{self.url}/bind", json=call).json()["Error"])

    def place(self, body: Json, node: str) -> Pod:
        """Webhook, filter and bind, all of which go well."""
        name = body["metadata"]["name"]
        assert self.submit(body) == []
        answer = self.filter(name, node)
        assert answer["NodeNames"] == [node], answer
        assert self.bind(name, node) == ""
        return self.pod(name)

    def serve(self, name: str) -> None:
        """As AWS's plugin and kubelet do."""
        self.api.annotate("pods", name, {neuron_names.NEURON_IS_ALLOCATED: "true"}, "default")
        self.api.edit("pods", name, lambda pod: pod["status"].update(phase="Running"), "default")

    def pod(self, name: str) -> Pod:
        return decode_pod(self.api.read("pods", name, "default"))

    def events(self, reason: str) -> list[str]:
        """What the Events with that reason say."""
        return [e["message"] for e in self.api.list("events") if e["reason"] == reason]

    def saved(self) -> tuple[list[Any], list[Pod]]:
        """All nodes and pods, as `inspect` sees them."""
        nodes = [decode_node(body) for body in self.api.list("nodes")]
        return nodes, [decode_pod(body) for body in self.api.list("pods")]


@contextmanager
def cluster_of(resources: NeuronResources = AWS) -> Iterator[NeuronCluster]:
    """A cluster that runs until the end of the block."""
    made = NeuronCluster(resources)
    try:
        made.start()
        yield made
    finally:
        made.close()


def pod_body(name: str, limits: Mapping[str, str]) -> Json:
    """A pod with one container."""
    container = {"name": "main", "image": "x", "resources": {"limits": dict(limits)}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def ids_of(pod: Pod) -> str:
    """What AWS's plugin reads."""
    return pod.annotations.get(neuron_names.NEURON_IDS, "")
