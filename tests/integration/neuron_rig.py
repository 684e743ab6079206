"""Neuron nodes with the real daemon and extender; AWS's plugin and kube-scheduler are played."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import httpx

from hami_node.model import Pod
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.registry import VENDORS
from tests.fakes.waiting import eventually
from tests.integration.vendor_cluster import LIMIT_S, Json, VendorCluster

NODE: Final = "trn"
AWS: Final = NeuronResources()


class NeuronCluster(VendorCluster):
    """Neuron nodes; both programs read the same `device-config.yaml`."""

    def __init__(self, resources: NeuronResources = AWS) -> None:
        super().__init__(VENDORS)
        self.resources = resources
        self.config = self.root / "device-config.yaml"
        self.config.write_text(
            f"awsneuron: {{resourceCountName: {resources.device}, "
            f"resourceCoreName: {resources.core}}}\n"
        )
        (self.root / "gpus.yaml").write_text("{driver_down: no GPU here, cards: []}\n")
        self.sysfs = self.root / "sys"

    # -- nodes -------------------------------------------------------------------------------------
    def add_node(self, name: str, instance_type: str, devices: int) -> None:
        """A node as AWS's plugin makes it known through kubelet, two cores on each device."""
        counted = {self.resources.device: str(devices), self.resources.core: str(2 * devices)}
        label = {neuron_names.INSTANCE_TYPE: instance_type} if instance_type else {}
        body = {
            "metadata": {"name": name, "labels": label},
            "spec": {},
            "status": {"capacity": counted, "allocatable": counted},
        }
        self.api.create("nodes", body)

    def run_daemon(self, node: str) -> None:
        self.start_daemon(node, limiter="optional", sysfs_root=str(self.sysfs))

    def restart_daemon(self, node: str) -> None:
        assert self.daemon is not None
        self.daemon.stop.set()
        self.daemon.wait()
        self.run_daemon(node)

    def look(self) -> None:
        """The daemon looks at kubelet's list and at all pods now, not in some seconds."""
        assert self.daemon is not None
        assert self.daemon.cluster is not None
        self.daemon.cluster._strangers.look()
        self.daemon.cluster._strangers.audit()

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
        eventually(lambda: cluster.node.view.pod("default", name) is not None, LIMIT_S)
        self.kubelet.hold(self.pod(name), resource, *ids)

    def used_on(self, node: str) -> dict[int, int]:
        """Masks of the taken cores by device number, as the extender counts."""
        assert self.extender is not None
        cards = self.extender.parts.state.cards_of(node).values()
        return {card.device.index: card.cores_used for card in cards if card.cores_used}

    # -- pods --------------------------------------------------------------------------------------
    def submit(self, body: Json) -> list[str]:
        """Create a pod through the webhook; the warnings."""
        answer = self.review(body)
        assert answer["allowed"], answer
        return list(answer.get("warnings") or [])

    def simulate(self, name: str, *nodes: str) -> Json:
        """The answer to a caller that sends whole nodes, as cluster autoscalers do."""
        items = [self.api.read("nodes", node) for node in nodes]
        call = {"Pod": self.api.read("pods", name, "default"), "Nodes": {"items": items}}
        return dict(httpx.post(f"{self.url}/filter", json=call).json())

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
        self.set_phase(name, "Running")

    def events(self, reason: str) -> list[str]:
        """What the Events with that reason say."""
        return [e["message"] for e in self.api.list("events") if e["reason"] == reason]


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
