"""Two vendors are served on one node: neither takes the other's calls, entries or holders."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from hami_node.cluster.node_lock import NodeLock
from hami_node.errors import NoPendingPod
from hami_node.model import Pod
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.identity.identity import Identity, IdentitySources
from hami_node.ports import HeldContainer
from hami_node.record.ledger import Entry
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from tests.acme.protocol import acme_protocol
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock, soon
from tests.fakes.ledgers import a_ledger, an_entry
from tests.fakes.live_kube import FakeCluster, FakeResources
from tests.fakes.pods import NODE, Box
from tests.fakes.two_vendors import CARD, CARD_TEXT, GPU, GPU_TEXT, INIT, acme_card, pod_of

NVIDIA, ACME = nvidia_protocol(), acme_protocol()
VENDORS = (NVIDIA, ACME)
CARDS = (card(0), acme_card(0))
DONE = (";", ";")
INIT_AND_MAIN = (Box(name="i", memory_mib=1000, kind=INIT), Box(memory_mib=1000))


def live_use(cluster: FakeCluster, *entries: Entry) -> LiveUse:
    return LiveUse(watched=cluster, vendors=VENDORS, ledger=a_ledger(*entries), clock=FakeClock())


def used(live: LiveUse) -> dict[str, int]:
    return {uuid: card.memory_used_mib for uuid, card in live.cards(CARDS).items()}


def identities(
    cluster: FakeCluster, resources: FakeResources, *entries: Entry
) -> tuple[LiveUse, dict[str, Identity]]:
    """One for each resource, as the daemon has them."""
    ledger = a_ledger(*entries)
    live = LiveUse(watched=cluster, vendors=VENDORS, ledger=ledger, clock=FakeClock())
    sources = IdentitySources(
        live=live, ledger=ledger, kube=cluster, resources=resources, lock_owner=lambda _: ""
    )

    def identity(resource: str, vendor: VendorProtocol) -> Identity:
        return Identity(
            vendor=vendor,
            resource=resource,
            sources=sources,
            node_name=NODE,
        )

    return live, {GPU: identity(GPU, NVIDIA), CARD: identity(CARD, ACME)}


def listed(pod: str, ids: Mapping[str, tuple[str, ...]] | None = None) -> HeldContainer:
    """kubelet's list of a pod's container; `ids` by resource."""
    return HeldContainer(namespace="default", pod=pod, container="main", device_ids=ids or {})


# -- who is meant ----------------------------------------------------------------------------------
@pytest.mark.parametrize("first", [GPU, CARD])
def test_container_that_asks_for_both_is_found_for_each_with_its_own_grants(first: str) -> None:
    cluster, resources = FakeCluster(pod_of()), FakeResources(listed("p"))
    _, found = identities(cluster, resources)
    second = CARD if first == GPU else GPU
    grants = {GPU: uuid(0), CARD: "ACME-0"}
    candidate = found[first].find(("x-1",), soon())
    assert (candidate.problem, [grant.uuid for grant in candidate.grants]) == ("", [grants[first]])
    waiting = (";", None) if first == GPU else (None, ";")
    cluster.show(pod_of(waiting=waiting))
    resources.held = (listed("p", {first: ("x-1",)}),)
    candidate = found[second].find(("y-1",), soon())
    assert (candidate.problem, [grant.uuid for grant in candidate.grants]) == ("", [grants[second]])


@pytest.mark.parametrize(("resource", "wanted"), [(GPU, "gpus"), (CARD, "cards")])
def test_pod_that_waits_for_the_other_resource_is_not_meant(resource: str, wanted: str) -> None:
    cluster = FakeCluster(pod_of("gpus", card=""), pod_of("cards", gpu=""))
    _, found = identities(cluster, FakeResources(listed("gpus"), listed("cards")))
    assert found[resource].find(("x-1",), soon()).name == f"default/{wanted}/main"


def test_only_pods_that_wait_for_the_other_resource_are_there_so_nobody_is_meant() -> None:
    cluster = FakeCluster(pod_of("gpus", card=""))
    _, found = identities(cluster, FakeResources(listed("gpus")))
    with pytest.raises(NoPendingPod, match=CARD):
        found[CARD].find(("x-1",), soon())


def test_ids_held_of_one_resource_are_no_repeat_of_the_other() -> None:
    cluster = FakeCluster(pod_of(waiting=DONE))
    _, found = identities(cluster, FakeResources(listed("p", {GPU: ("x-1",), CARD: ("y-1",)})))
    assert found[CARD].find(("y-1",), soon()).is_repeat
    with pytest.raises(NoPendingPod):
        found[CARD].find(("x-1",), soon())


def test_pod_refused_for_one_resource_is_no_candidate_for_the_other() -> None:
    refused = pod_of("a")
    cluster = FakeCluster(refused, pod_of("b", gpu=""))
    _, found = identities(cluster, FakeResources(listed("a"), listed("b")))
    found[GPU].was_refused(refused)
    assert found[CARD].find(("x-1",), soon()).name == "default/b/main"


def test_init_container_served_of_one_resource_still_waits_for_the_other() -> None:
    """It borrows from its app container's slots, so that only the ledger says who was served."""
    pod = pod_of(boxes=INIT_AND_MAIN)
    entry = an_entry(container="i", kind="init", lender="main", device_ids=("x-1",))
    _, found = identities(FakeCluster(pod), FakeResources(listed("p")), entry)
    assert found[GPU].find(("x-1",), soon()).container.name == "main"
    assert found[CARD].find(("x-1",), soon()).container.name == "i"


# -- who holds what --------------------------------------------------------------------------------
def test_cards_of_both_are_held_by_what_was_served_of_each() -> None:
    assert used(live_use(FakeCluster(pod_of(waiting=(";", None))))) == {uuid(0): 1000, "ACME-0": 0}
    assert used(live_use(FakeCluster(pod_of(waiting=DONE)))) == {uuid(0): 1000, "ACME-0": 500}


def test_init_container_holds_its_lenders_card_of_the_vendor_that_served_it() -> None:
    cluster = FakeCluster(pod_of(boxes=INIT_AND_MAIN))
    loan = an_entry(container="i", kind="init", vendor="ACME", grants=CARD_TEXT, lender="main")
    assert used(live_use(cluster, loan)) == {uuid(0): 0, "ACME-0": 500}


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ({CARD: ("x-1",)}, {uuid(0): 1000, "ACME-0": 500}),
        ({GPU: ("x-1",)}, {uuid(0): 1000, "ACME-0": 500}),
        ({CARD: (), GPU: ()}, {uuid(0): 0, "ACME-0": 0}),
    ],
    ids=["acme", "nvidia", "nothing"],
)
@pytest.mark.parametrize("resource", [GPU, CARD])
def test_call_for_any_resource_counts_the_holders_of_all(
    resource: str, held: dict[str, tuple[str, ...]], wanted: dict[str, int]
) -> None:
    """A pod that was deleted by force holds its cards while kubelet lists any of its IDs."""
    cluster = FakeCluster(pod_of("gone", waiting=DONE))
    live, found = identities(cluster, FakeResources(listed("gone", held), listed("p")))
    live.settle([listed("gone", {GPU: ("x-1",), CARD: ("x-1",)})])
    assert used(live) == {uuid(0): 1000, "ACME-0": 500}
    cluster.show(pod_of("p"))
    found[resource].find(("z-1",), soon())
    assert used(live) == wanted


@pytest.mark.parametrize(
    ("text", "held_mib"),
    [(CARD_TEXT * 3, 1500), ("rubbish,,:", 0)],
    ids=["other-count", "unreadable"],
)
def test_unclear_reservation_of_one_vendor_counts_in_full_beside_the_others_slots(
    text: str, held_mib: int, caplog: pytest.LogCaptureFixture
) -> None:
    pod = pod_of(boxes=INIT_AND_MAIN, gpu=GPU_TEXT * 2, card=text, waiting=(";;", None))
    live = live_use(FakeCluster(pod))
    with caplog.at_level(logging.WARNING):
        live.settle([listed("p", {GPU: ("x-1",), CARD: ("y-1",)})])
        found = used(live)
    assert found["ACME-0"] == held_mib
    assert found[uuid(0)] >= 1000
    assert [record.message for record in caplog.records] == ["reservation_unclear"]


# -- the node lock ---------------------------------------------------------------------------------
def kept(pod: Pod) -> bool:
    """Whether the lock that the pod owns stands after a look."""
    lock = "2027-01-15T08:00:00Z,default,p"
    cluster, clock = FakeCluster(pod, annotations={names.NODE_LOCK: lock}), FakeClock()
    LockKeeper(
        lock=NodeLock(cluster, clock),
        kube=cluster,
        watched=cluster,
        live=live_use(cluster),
        vendors=VENDORS,
        node_name=NODE,
        clock=clock,
    ).look()
    return names.NODE_LOCK in cluster.actual_node.annotations


@pytest.mark.parametrize(
    ("pod", "is_kept"),
    [
        (pod_of(), True),
        (pod_of(waiting=(";", None)), True),
        (pod_of(waiting=(None, ";")), True),
        (pod_of(waiting=(";", "rubbish,,:")), True),
        (pod_of(waiting=DONE), False),
        (pod_of(waiting=(None, ";"), gpu=""), False),
        (pod_of(waiting=(";", None), card=""), False),
    ],
    ids=["waits", "acme-waits", "nvidia-waits", "acme-unclear", "served", "only-acme", "only-gpu"],
)
def test_lock_is_freed_once_all_resources_of_its_pod_are_served(pod: Pod, is_kept: bool) -> None:
    assert kept(pod) == is_kept
