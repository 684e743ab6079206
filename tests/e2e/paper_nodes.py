"""Nodes on paper: objects as a kubelet and a device plugin write them, without either."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Self

import httpx

from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire.register import encode_csv7, encode_csv9, encode_json
from tests.e2e.api import Api, ApiError
from tests.e2e.waiting import eventually

CARDS: Final = 2
MEMORY_MIB: Final = 40_000
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_RENEW_S: Final = 5.0
ENCODERS: Final[Mapping[str, Callable[[Iterable[Device]], str]]] = {
    "json": encode_json,
    "csv9": encode_csv9,
    "csv7": encode_csv7,
}


def cards_of(node: str) -> tuple[Device, ...]:
    """The cards that a paper node registers."""
    return tuple(
        Device(
            uuid=Uuid(f"GPU-{node}-{index}"),
            index=index,
            vendor=NVIDIA,
            model="NVIDIA A100-PCIE-40GB",
            slots=10,
            memory_mib=MEMORY_MIB,
            numa=0,
        )
        for index in range(CARDS)
    )


class PaperNodes:
    """The nodes of one test; their Leases are renewed until it is over."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._nodes: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="paper-nodes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        for name in self._nodes:
            self._remove_pods(name)
            self._api.delete(f"/api/v1/nodes/{name}")
            self._api.delete(f"{_LEASES}/{name}")

    def add(self, name: str, *, form: str = "json", handshake: str = "") -> None:
        """A Ready node whose device plugin registered its cards in that generation's form."""
        said = {nvidia_names.NODE_REGISTER: ENCODERS[form](cards_of(name))}
        if handshake:
            said[nvidia_names.NODE_HANDSHAKE] = handshake
        self._api.create(
            "/api/v1/nodes",
            {"metadata": {"name": name, "annotations": said, "labels": {"paper": "1"}}},
        )
        self._live(name)
        self.set_allocatable(name, CARDS * 10)

    def add_plain(self, name: str) -> None:
        """A Ready node without cards; its label `paper` is its name."""
        self._api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"paper": name}}})
        self._live(name)
        self.set_allocatable(name)

    def _live(self, name: str) -> None:
        self._nodes.append(name)
        self._api.create(_LEASES, {"metadata": {"name": name}, "spec": self._lease(name)})

    def set_allocatable(self, name: str, slices: int | None = None) -> None:
        """What the device plugin offers through kubelet now; None where there is none."""
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        if slices is not None:
            amounts[nvidia_names.RESOURCE_GPU] = str(slices)
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "OnPaper",
            "lastHeartbeatTime": moment,
            "lastTransitionTime": moment,
        }
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self._api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        eventually(f"{name} has no taint", lambda: not self._taints(name))

    def _taints(self, name: str) -> object:
        """A new node has one until a controller has seen that it is Ready."""
        return self._api.read(f"/api/v1/nodes/{name}")["spec"].get("taints")

    def annotate(self, name: str, values: Mapping[str, str | None]) -> None:
        """Write the node's annotations as somebody in the cluster does."""
        self._api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": dict(values)}})

    def cordon(self, name: str) -> None:
        """Take the node out of scheduling."""
        self._api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})

    def _lease(self, name: str) -> dict[str, object]:
        return {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()),
        }

    def _renew(self) -> None:
        while not self._stop.wait(_RENEW_S):
            for name in tuple(self._nodes):
                try:
                    self._api.patch(f"{_LEASES}/{name}", {"spec": self._lease(name)})
                except (ApiError, httpx.TransportError) as error:
                    print(f"lease of {name}: {error}")

    def _remove_pods(self, name: str) -> None:
        """No kubelet ends them: they are removed by force."""
        found = self._api.read("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")["items"]
        for pod in found:
            meta = pod["metadata"]
            self._api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", 0)
