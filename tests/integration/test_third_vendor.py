"""A vendor that the product does not know, beside NVIDIA on one node, all the way.

Its folder is tests/acme; nothing else of the product knows it. Daemon and extender run with the
tuple of vendors and this one more, over real gRPC and HTTP.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from prometheus_client.exposition import generate_latest

from hami_node.config.sources import ConfigSources
from hami_node.extender.service import Extender
from hami_node.inspection.cluster import inspect
from hami_node.model import Device, Pod, Uuid
from hami_node.node.daemon import Daemon
from hami_node.setting_types import Blocks, Role
from hami_node.simulate.kubelet import Admission, SimulatedKubelet
from hami_node.simulate.patches import json_patch
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import AnyVendor, protocols_of
from hami_node.wire import names
from hami_node.wire.objects import decode_node, decode_pod
from tests.acme import names as acme_names
from tests.acme.cards import ACME, AcmeDetail
from tests.acme.codec import decode_cards, encode_cards
from tests.acme.spec import ACME_SPEC
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.cards import cards_file
from tests.fakes.limiter import lay_limiter
from tests.fakes.settings import load
from tests.fakes.waiting import eventually

ALL: Final[tuple[AnyVendor, ...]] = (*VENDORS, ACME_SPEC)
BLOCKS: Final[Blocks] = tuple(vendor.settings for vendor in ALL)
NODE: Final = "n1"
GPU, CARD = nvidia_names.RESOURCE_GPU, acme_names.RESOURCE_CARD
LIMIT_S: Final = 15.0
OLD, NEW = "ACME-00", "ACME-01"
"""Cards with firmware 3 and 7."""


def acme_cards() -> str:
    return encode_cards(
        Device(
            uuid=Uuid(uuid),
            index=index,
            vendor=ACME,
            model="ACME T1",
            memory_mib=8000,
            detail=AcmeDetail(firmware=firmware),
        )
        for index, (uuid, firmware) in enumerate(((OLD, 3), (NEW, 7)))
    )


class Cluster:
    """A node with both kinds of cards, kubelet, API server, daemon and extender."""

    def __init__(self) -> None:
        # Short, for a unix socket's path has at most 107 characters.
        self.root = Path(tempfile.mkdtemp(prefix="h3-"))
        self.hook = self.root / "hook"
        lay_limiter(self.hook)
        (self.root / "gpus.yaml").write_text(cards_file(2))
        self.acme = self.root / "acme.json"
        self.acme.write_text(acme_cards())
        self.kubelet = SimulatedKubelet(self.root / "plugins", self.root / "pr" / "kubelet.sock")
        self.kubelet.start()
        self.api = FaultyApiServer().start()
        self.kubeconfig = self.api.write_kubeconfig(self.root / "kubeconfig")
        self.api.create("nodes", {"metadata": {"name": NODE}, "spec": {}, "status": {}})
        self.daemon = self._daemon()
        self.extender = self._extender()
        self._runner = threading.Thread(target=self.extender.wait, daemon=True)

    def _daemon(self) -> Daemon:
        flags = {
            "node_name": NODE,
            "kubeconfig": str(self.kubeconfig),
            "backend": "simulated",
            "simulated_file": str(self.root / "gpus.yaml"),
            "plugin_dir": str(self.root / "plugins"),
            "pod_resources_socket": str(self.root / "pr" / "kubelet.sock"),
            "hook_path": str(self.hook),
            "record_dir": str(self.root / "record"),
            "metrics_address": "off",
            "acme_cards_file": str(self.acme),
        }
        sources = ConfigSources(blocks=BLOCKS, flags=flags)
        return Daemon(load(sources), sources, ALL)

    def _extender(self) -> Extender:
        flags = {
            "http_bind": "127.0.0.1:0",
            "metrics_address": "off",
            "kubeconfig": str(self.kubeconfig),
        }
        sources = ConfigSources(blocks=BLOCKS, flags=flags, role=Role.EXTENDER)
        return Extender(load(sources), sources, ALL)

    def start(self) -> None:
        self.daemon.start()
        for resource, count in ((GPU, 20), (CARD, 8)):
            eventually(lambda r=resource, n=count: self.kubelet.allocatable(r) == n, LIMIT_S)  # type: ignore[misc]  # mypy can't infer defaults
        allocatable = {GPU: "20", CARD: "8"}
        self.api.edit("nodes", NODE, lambda node: node["status"].update(allocatable=allocatable))
        eventually(lambda: {acme_names.NODE_REGISTER, names.NODE_IDENTITY} <= self.notes.keys())
        self.extender.start()
        self._runner.start()
        parts = self.extender.parts
        eventually(parts.readiness.is_leading, LIMIT_S)
        eventually(lambda: len(parts.state.cards_of(NODE)) == 4, LIMIT_S)
        self.url = f"http://127.0.0.1:{parts.server.port}"

    def close(self) -> None:
        with ExitStack() as ends:
            ends.callback(shutil.rmtree, self.root)
            ends.callback(self.kubelet.stop)
            ends.callback(self.api.stop)
            ends.callback(self._runner.join, 30.0)
            ends.callback(self.extender.stop.set)
            self.daemon.stop.set()
            assert self.daemon.wait() == 0

    @property
    def notes(self) -> dict[str, str]:
        return dict(self.api.read("nodes", NODE)["metadata"].get("annotations") or {})

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

    def bind(self, name: str) -> str:
        pod = self.api.read("pods", name, "default")["metadata"]
        call = {"PodName": name, "PodNamespace": "default", "PodUID": pod["uid"], "Node": NODE}
        return str(httpx.post(f"{self.url}/bind", json=call).json()["Error"])

    def pod(self, name: str) -> Pod:
        return decode_pod(self.api.read("pods", name, "default"))

    def run(self, name: str) -> Admission:
        """Filter, bind, and let kubelet admit it."""
        assert self.filter(name)["NodeNames"] == [NODE]
        assert self.bind(name) == ""
        view = self.daemon.cluster.view  # type: ignore[union-attr]  # it is started
        eventually(lambda: (seen := view.pod("default", name)) and seen.node_name == NODE)
        answer = self.kubelet.admit(self.pod(name), GPU, CARD)
        phase = "Running" if answer.is_admitted else "Failed"
        self.api.edit("pods", name, lambda pod: pod["status"].update(phase=phase), "default")
        return answer

    def metrics(self) -> str:
        cluster = self.daemon.cluster
        assert cluster is not None
        return generate_latest(cluster.metrics.registry).decode()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.close()


def envs(answer: Admission, container: str) -> dict[str, str]:
    return dict(answer.responses[container].envs)


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


def test_cards_are_registered_under_their_own_resource_beside_nvidias(cluster: Cluster) -> None:
    assert cluster.kubelet.allocatable(GPU) == 20
    assert sorted(cluster.kubelet.devices(CARD)) == [
        f"{uuid}-{slot}" for uuid in (OLD, NEW) for slot in range(4)
    ]


def test_cards_are_published_with_a_handshake(cluster: Cluster) -> None:
    cards = decode_cards(cluster.notes[acme_names.NODE_REGISTER])
    assert [(card.uuid, card.slots, card.memory_mib) for card in cards] == [
        (OLD, 4, 8000),
        (NEW, 4, 8000),
    ]
    assert cluster.notes[acme_names.NODE_HANDSHAKE].startswith("Reported_")
    assert nvidia_names.NODE_REGISTER in cluster.notes


def test_pod_that_asks_both_vendors_gets_both_slices(cluster: Cluster, both: Admission) -> None:
    assert both.refusal == ""
    assert envs(both, "train")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"
    env = envs(both, "serve")
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
    assert envs(cluster.run("new"), "c")[acme_names.ENV_CARDS] == NEW
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
    view = cluster.daemon.cluster.view  # type: ignore[union-attr]  # it is started
    eventually(lambda: (seen := view.pod("default", "forged")) and seen.node_name == NODE)
    answer = cluster.kubelet.admit(cluster.pod("forged"), GPU, CARD)
    assert "more memory than the container asks for" in answer.refusal
    cluster.api.edit("pods", "forged", lambda pod: pod["status"].update(phase="Failed"), "default")


def test_webhook_refuses_a_bad_value_by_its_name(cluster: Cluster) -> None:
    denied = cluster.submit("bad", {"c": {CARD: "1", acme_names.RESOURCE_MEMORY: "-3"}})
    assert acme_names.RESOURCE_MEMORY in denied


@pytest.mark.usefixtures("both")
def test_inspect_shows_its_cards_and_holders(cluster: Cluster) -> None:
    nodes = [decode_node(body) for body in cluster.api.list("nodes")]
    pods = [decode_pod(body) for body in cluster.api.list("pods")]
    vendors = protocols_of(ALL, cluster.daemon.settings)
    view = inspect(nodes, pods, vendors, 0.0)
    assert {card.vendor for card in view.cards} == {"NVIDIA", "ACME"}
    held = {(holder.pod, holder.container, holder.memory_mib) for holder in view.holders}
    assert {("both", "train", 2000), ("both", "serve", 3000)} <= held


@pytest.mark.usefixtures("both")
def test_metrics_count_its_cards_and_holders(cluster: Cluster) -> None:
    def is_counted() -> bool:
        text = cluster.metrics()
        return (
            f'hami_node_card_slots{{index="0",node="{NODE}",type="ACME T1",uuid="{OLD}"}} 4.0'
            in text
            and 'container="serve"' in text
            and f'hami_node_registered{{node="{NODE}",resource="{CARD}"}} 1.0' in text
        )

    eventually(is_counted, LIMIT_S)
