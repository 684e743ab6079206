"""A vendor that the product does not know, beside NVIDIA on one node, all the way.

Its folder is tests/acme; nothing else of the product knows it. Daemon and extender run with the
tuple of vendors and this one more, over real gRPC and HTTP.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import httpx
import pytest

from hami_node.config.sources import ConfigSources
from hami_node.extender.service import Extender
from hami_node.inspection.cluster import inspect
from hami_node.setting_types import Role
from hami_node.simulate.kubelet import Admission
from hami_node.simulate.patches import json_patch
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import AnyVendor, protocols_of
from hami_node.wire import names
from hami_node.wire.objects import decode_node, decode_pod
from tests.acme import names as acme_names
from tests.acme.cards import AcmeDetail
from tests.acme.codec import encode_cards
from tests.acme.spec import ACME_SPEC
from tests.fakes.pods import NODE
from tests.fakes.settings import load
from tests.fakes.two_vendors import CARD, GPU, acme_card
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, inside
from tests.integration.test_two_vendors import TwoVendorsRig

ALL: Final[tuple[AnyVendor, ...]] = (*VENDORS, ACME_SPEC)
OLD, NEW = "ACME-0", "ACME-1"
"""Cards with firmware 3 and 7."""


class Cluster(TwoVendorsRig):
    """A node with both kinds of cards, kubelet, API server, daemon and extender."""

    def __init__(self) -> None:
        super().__init__()
        cards = (
            replace(acme_card(index), detail=AcmeDetail(firmware=firmware))
            for index, firmware in enumerate((3, 7))
        )
        (self.root / "acme.json").write_text(encode_cards(cards))
        flags = {
            "http_bind": "127.0.0.1:0",
            "metrics_address": "off",
            "kubeconfig": str(self.kubeconfig),
        }
        blocks = tuple(vendor.settings for vendor in ALL)
        sources = ConfigSources(blocks=blocks, flags=flags, role=Role.EXTENDER)
        self.extender = Extender(load(sources), sources, ALL)
        self._runner = threading.Thread(target=self.extender.wait, daemon=True)

    def start_all(self) -> None:
        """Start the daemon, and the extender beside it."""
        self.start_both()
        allocatable = {GPU: "40", CARD: "8"}
        self.api.edit("nodes", NODE, lambda node: node["status"].update(allocatable=allocatable))
        eventually(lambda: names.NODE_IDENTITY in self.notes, LIMIT_S)
        self.extender.start()
        self._runner.start()
        parts = self.extender.parts
        eventually(parts.readiness.is_leading, LIMIT_S)
        eventually(lambda: len(parts.state.cards_of(NODE)) == 6, LIMIT_S)
        self.url = f"http://127.0.0.1:{parts.server.port}"

    def close(self) -> None:
        self.extender.stop.set()
        if self._runner.ident is not None:
            self._runner.join(LIMIT_S)
        super().close()

    # -- what users, kube-scheduler and kubelet do -------------------------------------------------
    def submit(self, name: str, containers: dict[str, dict[str, str]], **annotations: str) -> str:
        """Create a pod through the webhook; why it was denied, "" when it was not."""
        body: dict[str, Any] = {
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {
                "containers": [
                    {"name": each, "image": "x", "resources": {"limits": limits}}
                    for each, limits in containers.items()
                ]
            },
            "status": {"phase": "Pending"},
        }
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
        if not answer["allowed"]:
            return str(answer["status"]["message"])
        self.api.create("pods", json_patch(body, json.loads(base64.b64decode(answer["patch"]))))
        return ""

    def filter(self, name: str) -> dict[str, Any]:
        call = {"Pod": self.api.read("pods", name, "default"), "NodeNames": [NODE]}
        return dict(httpx.post(f"{self.url}/filter", json=call).json())

    def run(self, name: str) -> Admission:
        """Filter, bind, and let kubelet admit it."""
        assert self.filter(name)["NodeNames"] == [NODE]
        uid = self.pod(name).uid
        call = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": NODE}
        assert httpx.post(f"{self.url}/bind", json=call).json()["Error"] == ""
        return self.admit_both(name)

    def admit_both(self, name: str) -> Admission:
        """kubelet's calls for both resources."""
        self.wait_seen(name)
        answer = self.serve(name, GPU, CARD)
        self.set_phase(name, "Running" if answer.is_admitted else "Failed")
        return answer


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start_all()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def both(cluster: Cluster) -> Admission:
    """Kubelet's answer for the running pod `both`, which holds a slice of each vendor."""
    denied = cluster.submit(
        "both",
        {
            "train": {GPU: "1", nvidia_names.RESOURCE_GPU_MEMORY: "2000"},
            "serve": {
                CARD: "1",
                acme_names.RESOURCE_MEMORY: "3000",
                acme_names.RESOURCE_CORES: "40",
            },
        },
    )
    assert denied == ""
    return cluster.run("both")


def test_pod_that_asks_both_vendors_gets_both_slices(cluster: Cluster, both: Admission) -> None:
    assert both.refusal == ""
    assert inside(both, "train")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"
    env = inside(both, "serve")
    assert env[acme_names.ENV_CARDS] in (OLD, NEW)
    assert env[acme_names.ENV_MEMORY] == "3000"
    pod = cluster.pod("both")
    assert pod.scheduler_name == "hami-scheduler"
    assert pod.annotations[names.POD_BIND_PHASE] == names.PHASE_SUCCESS
    assert pod.annotations[acme_names.POD_ALLOCATED] == (
        f";{env[acme_names.ENV_CARDS]},ACME,3000,40:;"
    )
    assert set(pod.annotations[acme_names.POD_TO_ALLOCATE]) <= {";"}


def test_its_own_filter_decides_and_gives_its_own_reason(cluster: Cluster) -> None:
    small = {CARD: "1", acme_names.RESOURCE_MEMORY: "1000"}
    cluster.submit("new", {"c": small}, **{acme_names.MIN_FIRMWARE: "5"})
    assert inside(cluster.run("new"), "c")[acme_names.ENV_CARDS] == NEW
    cluster.submit("newer", {"c": small}, **{acme_names.MIN_FIRMWARE: "9"})
    answer = cluster.filter("newer")
    assert "2/2 CardFirmwareTooOld" in answer["FailedAndUnresolvableNodes"][NODE]


def test_reservation_beyond_the_limits_is_refused_in_allocate(cluster: Cluster) -> None:
    cluster.submit("forged", {"c": {CARD: "1", acme_names.RESOURCE_MEMORY: "100"}})
    assert cluster.filter("forged")["NodeNames"] == [NODE]
    text = f"{OLD},ACME,4000,0:;"
    cluster.api.annotate(
        "pods",
        "forged",
        {acme_names.POD_ALLOCATED: text, acme_names.POD_TO_ALLOCATE: text},
        "default",
    )
    cluster.api.edit("pods", "forged", lambda pod: pod["spec"].update(nodeName=NODE), "default")
    assert "more memory than the container asks for" in cluster.admit_both("forged").refusal


def test_webhook_refuses_a_bad_value_by_its_name(cluster: Cluster) -> None:
    denied = cluster.submit("bad", {"c": {CARD: "1", acme_names.RESOURCE_MEMORY: "-3"}})
    assert acme_names.RESOURCE_MEMORY in denied


@pytest.mark.usefixtures("both")
def test_inspect_shows_its_cards_and_holders(cluster: Cluster) -> None:
    nodes = [decode_node(body) for body in cluster.api.list("nodes")]
    pods = [decode_pod(body) for body in cluster.api.list("pods")]
    assert cluster.daemon is not None
    vendors = protocols_of(ALL, cluster.daemon.settings)
    view = inspect(nodes, pods, vendors, 0.0)
    assert {card.vendor for card in view.cards} == {"NVIDIA", "ACME"}
    held = {(holder.pod, holder.container, holder.memory_mib) for holder in view.holders}
    assert {("both", "train", 2000), ("both", "serve", 3000)} <= held


@pytest.mark.usefixtures("both")
def test_metrics_count_its_cards_and_holders(cluster: Cluster) -> None:
    eventually(lambda: cluster.metric("card_slots", uuid=OLD, type="Rocket") == 4.0, LIMIT_S)
    eventually(lambda: cluster.metric("allocation_memory_bytes", container="serve"), LIMIT_S)
    assert cluster.metric("registered", resource=CARD) == 1.0
