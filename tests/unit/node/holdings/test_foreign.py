"""Which pods hold cards from other plugins, by kubelet's list, the record and the watch."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from hami_node.model import Pod
from hami_node.node.cards.inventory import Inventory
from hami_node.node.holdings.foreign import ForeignHolders, WatchedCards
from hami_node.ports import HeldContainer
from hami_node.record.ledger import Source
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.node.foreign_ids import cards_named
from tests.fakes.cards import card, uuid
from tests.fakes.ledgers import a_ledger, an_entry

GPU = nvidia_names.RESOURCE_GPU
MIG_ID = "MIG-8dcd427f-483b-b48f-d7e5-75fb19a52b76"


def listed(pod: str, *ids: str, resource: str = GPU) -> HeldContainer:
    return HeldContainer(namespace="default", pod=pod, container="main", device_ids={resource: ids})


@dataclass
class Bench:
    """The holders of three cards, the last one in MIG mode."""

    pods: list[Pod] = field(default_factory=list)
    changes: int = 0

    def __post_init__(self) -> None:
        self.inventory = Inventory()
        self.inventory.replace((card(0), card(1), card(2, mode="mig")))
        self.ledger = a_ledger()
        self.holders = ForeignHolders(
            [WatchedCards(resource=GPU, inventory=self.inventory, named=cards_named)],
            ledger=self.ledger,
            pods=lambda: self.pods,
            on_change=self.changed,
        )

    def changed(self) -> None:
        self.changes += 1

    def closed(self) -> list[int]:
        return [card.index for card in self.inventory.cards if not card.healthy]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("device_id", "named"),
    [
        (uuid(1), [1]),
        (f"{uuid(1)}::0", [1]),
        (f"{uuid(1)}-17", [1]),
        pytest.param(f"MIG-{uuid(1)}/3/0", [1], id="mig-of-old-drivers"),
        pytest.param(MIG_ID, [2], id="mig"),
        pytest.param(f"{MIG_ID}::1", [2], id="shared-mig"),
        pytest.param(uuid(7), [], id="no-card-of-ours"),
        pytest.param("nvidia0", None, id="by-minor-number"),
        pytest.param(f"{uuid(1)}::", None, id="no-replica"),
        pytest.param(uuid(1)[:-1], None, id="cut"),
        pytest.param(f"{uuid(1)}\n", None, id="line-end"),
        pytest.param("", None, id="empty"),
        pytest.param("G" * 100_000, None, id="long"),
    ],
)
def test_ids_of_other_plugins_name_cards(device_id: str, named: list[int] | None) -> None:
    cards = (card(0), card(1), card(2, mode="mig"))
    found = cards_named(device_id, cards)
    assert found == (None if named is None else tuple(uuid(index) for index in named))


def test_reason_names_the_pods_and_the_resource_and_is_bounded(bench: Bench) -> None:
    bench.holders.look([listed(f"p{i}", f"{uuid(0)}::{i}") for i in range(5)])
    (reason,) = bench.holders.reasons.values()
    assert "default/p0 (nvidia.com/gpu), default/p1" in reason
    assert "and 2 more" in reason
    assert bench.closed() == [0]
    assert bench.holders.pods_holding == 5


def test_same_list_again_changes_nothing(bench: Bench) -> None:
    for _ in range(3):
        bench.holders.look([listed("p", uuid(0))])
    assert bench.changes == 1


def test_card_that_is_scanned_again_stays_closed(bench: Bench) -> None:
    bench.holders.look([listed("p", uuid(0))])
    bench.inventory.replace((card(0), card(1)))
    assert bench.closed() == [0]
    bench.inventory.replace((card(0, healthy=False, unhealthy_reason="XID 79"), card(1)))
    assert bench.inventory.cards[0].unhealthy_reason == "XID 79"


def test_pod_that_the_list_leaves_out_holds_until_the_api_server_says_otherwise(
    bench: Bench,
) -> None:
    bench.pods = [Pod(uid="u1", namespace="default", name="p", phase="Running")]
    bench.holders.look([listed("p", uuid(0))])
    bench.holders.look([])
    assert bench.closed() == [0]
    bench.pods = [Pod(uid="u2", namespace="default", name="p", phase="Running")]
    bench.holders.look([])
    assert bench.closed() == [], "a namesake holds nothing"


@pytest.mark.parametrize(
    "pods",
    [[], [Pod(uid="u1", namespace="default", name="p", phase="Succeeded")]],
    ids=["gone", "ended"],
)
def test_listed_pod_holds_whatever_the_watch_shows(bench: Bench, pods: list[Pod]) -> None:
    bench.pods = [Pod(uid="u1", namespace="default", name="p")]
    bench.holders.look([listed("p", uuid(0))])
    bench.pods = pods
    bench.holders.look([listed("p", uuid(0))])
    assert bench.closed() == [0], "its containers are there"
    bench.holders.look([])
    assert bench.closed() == []


def test_what_this_daemon_gave_is_ours_in_any_form(bench: Bench) -> None:
    bench.ledger.put(an_entry("ours", resource="nvidia.com/gpu-1of4", device_ids=(uuid(1),)))
    bench.holders.look([listed("ours", uuid(1), resource="nvidia.com/gpu-1of4")])
    assert bench.closed() == []


def test_whole_card_from_another_plugin_is_foreign_though_annotations_claim_a_share(
    bench: Bench,
) -> None:
    bench.ledger.adopt([an_entry("p", source=Source.ADOPTED, device_ids=(uuid(1),))])
    bench.holders.look([listed("p", uuid(1))])
    assert bench.closed() == [1]


def test_share_that_was_adopted_under_a_former_resource_is_ours(bench: Bench) -> None:
    former = "example.com/vgpu"
    shares = (f"{uuid(1)}-3",)
    bench.ledger.adopt([an_entry("p", source=Source.ADOPTED, resource=former, device_ids=shares)])
    bench.holders.look([listed("p", *shares, resource=former)])
    assert bench.closed() == []
    bench.holders.look([listed("q", f"{uuid(1)}-4", resource=former)])
    assert bench.closed() == [1], "nobody has that one on record"


def test_share_of_an_ended_pod_that_kubelet_still_lists_is_free(bench: Bench) -> None:
    bench.pods = [Pod(uid="u1", namespace="default", name="p", phase="Succeeded")]
    bench.holders.look([listed("p", f"{uuid(1)}-3", resource="example.com/vgpu")])
    assert bench.closed() == []
