"""A vendor that the product does not know, beside NVIDIA on one node, all the way.

Its folder is tests/acme; nothing else of the product knows it. Daemon and extender run with the
tuple of vendors and this one more, over real gRPC and HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from hami_node.model import Device, Uuid
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import AnyVendor
from hami_node.wire import names
from tests.acme import names as acme_names
from tests.acme.cards import ACME, AcmeDetail
from tests.acme.codec import decode_cards, encode_cards
from tests.acme.spec import ACME_SPEC
from tests.fakes.cards import cards_file
from tests.fakes.limiter import lay_limiter
from tests.fakes.waiting import eventually
from tests.integration.vendor_cluster import LIMIT_S, VendorCluster

ALL: Final[tuple[AnyVendor, ...]] = (*VENDORS, ACME_SPEC)
NODE: Final = "n1"
GPU, CARD = nvidia_names.RESOURCE_GPU, acme_names.RESOURCE_CARD
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


class Cluster(VendorCluster):
    """A node with both kinds of cards."""

    def __init__(self) -> None:
        super().__init__(ALL)
        self.hook = self.root / "hook"
        lay_limiter(self.hook)
        (self.root / "gpus.yaml").write_text(cards_file(2))
        self.acme = self.root / "acme.json"
        self.acme.write_text(acme_cards())

    def serve(self) -> None:
        """Both programs run, and the node has all its cards."""
        self.start()
        self.api.create("nodes", {"metadata": {"name": NODE}, "spec": {}, "status": {}})
        self.start_daemon(NODE, hook_path=str(self.hook), acme_cards_file=str(self.acme))
        for resource, count in ((GPU, 20), (CARD, 8)):
            eventually(lambda r=resource, n=count: self.kubelet.allocatable(r) == n, LIMIT_S)  # type: ignore[misc]  # mypy can't infer defaults
        allocatable = {GPU: "20", CARD: "8"}
        self.api.edit("nodes", NODE, lambda node: node["status"].update(allocatable=allocatable))
        shown = {acme_names.NODE_REGISTER, names.NODE_IDENTITY}
        eventually(lambda: shown <= self.notes_of(NODE).keys(), LIMIT_S)
        self.await_node(NODE, 4)

    def submit(self, name: str, containers: dict[str, dict[str, str]], **annotations: str) -> str:
        """Create a pod through the webhook; why it was denied, "" when it was not."""
        boxes = [
            {"name": each, "image": "x", "resources": {"limits": limits}}
            for each, limits in containers.items()
        ]
        metadata = {"name": name, "annotations": annotations}
        answer = self.review({"metadata": metadata, "spec": {"containers": boxes}})
        return "" if answer["allowed"] else str(answer["status"]["message"])

    def run(self, name: str) -> Admission:
        """Filter, bind, and let kubelet admit it."""
        assert self.filter(name, NODE)["NodeNames"] == [NODE]
        assert self.bind(name, NODE) == ""
        view = self.daemon.view  # type: ignore[union-attr]  # it is started
        eventually(lambda: (seen := view.pod("default", name)) and seen.node_name == NODE)
        answer = self.kubelet.admit(self.pod(name), GPU, CARD)
        self.set_phase(name, "Running" if answer.is_admitted else "Failed")
        return answer


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.serve()
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


def test_cards_are_registered_and_published_beside_nvidias(cluster: Cluster) -> None:
    assert cluster.kubelet.allocatable(GPU) == 20
    assert sorted(cluster.kubelet.devices(CARD)) == [
        f"{uuid}-{slot}" for uuid in (OLD, NEW) for slot in range(4)
    ]
    cards = decode_cards(cluster.notes_of(NODE)[acme_names.NODE_REGISTER])
    assert [(card.uuid, card.slots, card.memory_mib) for card in cards] == [
        (OLD, 4, 8000),
        (NEW, 4, 8000),
    ]
    assert cluster.notes_of(NODE)[acme_names.NODE_HANDSHAKE].startswith("Reported_")
    assert nvidia_names.NODE_REGISTER in cluster.notes_of(NODE)


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
    answer = cluster.filter("newer", NODE)
    assert "2/2 CardFirmwareTooOld" in answer["FailedAndUnresolvableNodes"][NODE]


def test_webhook_refuses_a_bad_value_by_its_name(cluster: Cluster) -> None:
    denied = cluster.submit("bad", {"c": {CARD: "1", acme_names.RESOURCE_MEMORY: "-3"}})
    assert acme_names.RESOURCE_MEMORY in denied


@pytest.mark.usefixtures("both")
def test_inspect_shows_its_cards_and_holders(cluster: Cluster) -> None:
    view = cluster.view()
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
