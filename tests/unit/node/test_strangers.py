"""Who else has this node's cards: kubelet's list, the record and the watch, compared."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hami_node.model import Node, Pod
from hami_node.node.cards.inventory import Inventory
from hami_node.node.strangers import SURE_S, Drift, Strangers
from hami_node.ports import EventNote, HeldContainer
from hami_node.record.ledger import Entry, Source
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.node.foreign_ids import cards_named
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.ledgers import a_ledger, an_entry
from tests.unit.node.holdings.uses import VENDOR, a_pod

GPU = nvidia_names.RESOURCE_GPU
MIG_ID = "MIG-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
CHIP, CHIP_CORE = "acme.example/chip", "acme.example/chipcore"


def listed(pod: str, *ids: str, resource: str = GPU) -> HeldContainer:
    return HeldContainer(namespace="default", pod=pod, container="main", device_ids={resource: ids})


class Bench:
    """Three cards, the last one in MIG mode, and chips that another plugin serves by right."""

    def __init__(self) -> None:
        self.pods: list[Pod] = []
        self.changes = 0
        self.notes: list[EventNote] = []
        self.clock, self.ledger, self.inventory = FakeClock(), a_ledger(), Inventory()
        self.inventory.replace((card(0), card(1), card(2, mode="mig")))
        self.held: dict[str, list[dict[str, tuple[str, ...]]]] = {}
        resource = SimpleNamespace(name=GPU, inventory=self.inventory, update_hints=lambda _: None)
        owner = SimpleNamespace(resources=(resource,), foreign_cards=cards_named)
        chips = SimpleNamespace(
            settings=SimpleNamespace(kind=object),
            listed=lambda _: (CHIP, CHIP_CORE),
            counter=SimpleNamespace(name="chips"),
            auditor=lambda *_: SimpleNamespace(audit=self._audit, closed={}, drifted=0),
        )
        node: Any = SimpleNamespace(
            settings=lambda: SimpleNamespace(of=lambda kind: kind, sysfs_root=None),
            vendors=(chips,),
            vendor_cards=(owner,),
            resources=owner.resources,
            clock=self.clock,
            ledger=self.ledger,
            live=SimpleNamespace(pods=lambda: self.pods),
            view=SimpleNamespace(node=lambda: Node(name="n1")),
            notify=self.notes.append,
            wake=self._changed,
            recorded=threading.Event(),
            metrics=SimpleNamespace(of_vendors={"chips": SimpleNamespace(count=None)}),
        )
        self.strangers = Strangers(node)

    def _changed(self) -> None:
        self.changes += 1

    def _audit(self, node: Node, pods: Any, held: Any) -> None:
        self.held = {uid: [dict(item.device_ids) for item in its] for uid, its in held.items()}

    def look(self, *items: HeldContainer) -> None:
        self.strangers.settled(items)

    def of_others(self) -> dict[str, list[dict[str, tuple[str, ...]]]]:
        """What the auditor is told that each pod holds."""
        self.strangers.audit()
        return self.held

    def closed(self) -> list[int]:
        return [card.index for card in self.inventory.cards if not card.healthy]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- our cards, from other plugins -----------------------------------------------------------------
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
    bench.look(*(listed(f"p{i}", f"{uuid(0)}::{i}") for i in range(5)))
    (reason,) = bench.strangers.closed().values()
    assert "default/p0 (nvidia.com/gpu), default/p1" in reason
    assert "and 2 more" in reason
    assert bench.closed() == [0]
    assert bench.strangers.pods_holding() == 5


def test_same_list_again_changes_nothing(bench: Bench) -> None:
    for _ in range(3):
        bench.look(listed("p", uuid(0)))
    assert bench.changes == 1


def test_card_that_is_scanned_again_stays_closed(bench: Bench) -> None:
    bench.look(listed("p", uuid(0)))
    bench.inventory.replace((card(0), card(1)))
    assert bench.closed() == [0]
    bench.inventory.replace((card(0, healthy=False, unhealthy_reason="XID 79"), card(1)))
    assert bench.inventory.cards[0].unhealthy_reason == "XID 79"


def test_pod_that_the_list_leaves_out_holds_until_the_api_server_says_otherwise(
    bench: Bench,
) -> None:
    bench.pods = [Pod(uid="u1", namespace="default", name="p", phase="Running")]
    bench.look(listed("p", uuid(0)))
    bench.look()
    assert bench.closed() == [0]
    bench.pods = [Pod(uid="u2", namespace="default", name="p", phase="Running")]
    bench.look()
    assert bench.closed() == [], "a namesake holds nothing"


@pytest.mark.parametrize(
    "pods",
    [[], [Pod(uid="u1", namespace="default", name="p", phase="Succeeded")]],
    ids=["gone", "ended"],
)
def test_listed_pod_holds_whatever_the_watch_shows(bench: Bench, pods: list[Pod]) -> None:
    bench.pods = [Pod(uid="u1", namespace="default", name="p")]
    bench.look(listed("p", uuid(0)))
    bench.pods = pods
    bench.look(listed("p", uuid(0)))
    assert bench.closed() == [0], "its containers are there"
    bench.look()
    assert bench.closed() == []


def test_what_this_daemon_gave_is_ours_in_any_form(bench: Bench) -> None:
    bench.ledger.put(an_entry("ours", resource="nvidia.com/gpu-1of4", device_ids=(uuid(1),)))
    bench.look(listed("ours", uuid(1), resource="nvidia.com/gpu-1of4"))
    assert bench.closed() == []


def test_whole_card_from_another_plugin_is_foreign_though_annotations_claim_a_share(
    bench: Bench,
) -> None:
    bench.ledger.adopt([an_entry("p", source=Source.ADOPTED, device_ids=(uuid(1),))])
    bench.look(listed("p", uuid(1)))
    assert bench.closed() == [1]


def test_share_that_was_adopted_under_a_former_resource_is_ours(bench: Bench) -> None:
    former = "example.com/vgpu"
    shares = (f"{uuid(1)}-3",)
    bench.ledger.adopt([an_entry("p", source=Source.ADOPTED, resource=former, device_ids=shares)])
    bench.look(listed("p", *shares, resource=former))
    assert bench.closed() == []
    bench.look(listed("q", f"{uuid(1)}-4", resource=former))
    assert bench.closed() == [1], "nobody has that one on record"


def test_share_of_an_ended_pod_that_kubelet_still_lists_is_free(bench: Bench) -> None:
    bench.pods = [Pod(uid="u1", namespace="default", name="p", phase="Succeeded")]
    bench.look(listed("p", f"{uuid(1)}-3", resource="example.com/vgpu"))
    assert bench.closed() == []


# -- cards that others serve by right --------------------------------------------------------------
POD = Pod(uid="uid-p", namespace="default", name="p", phase="Running")


def of_chips(**ids: tuple[str, ...]) -> HeldContainer:
    names = {"chip": CHIP, "core": CHIP_CORE, "gpu": "example.com/gpu"}
    held = {names[key]: value for key, value in ids.items()}
    return HeldContainer(namespace="default", pod="p", container="main", device_ids=held)


def test_both_resources_of_a_container_are_kept_and_nothing_else(bench: Bench) -> None:
    bench.pods = [POD]
    bench.look(of_chips(chip=("1", "0"), core=("7",), gpu=("GPU-1",)))
    (held,) = bench.of_others().values()
    assert sorted(held, key=str) == [{CHIP: ("0", "1")}, {CHIP_CORE: ("7",)}]
    assert {entry.grants for entry in bench.ledger.entries()} == {()}


def test_what_others_serve_outlives_a_list_that_shows_nothing(bench: Bench) -> None:
    bench.pods = [POD]
    bench.look(of_chips(chip=("1",)))
    bench.look()
    bench.look(of_chips())
    assert bench.of_others() == {"uid-p": [{CHIP: ("1",)}]}


@pytest.mark.parametrize("pods", [[], [replace(POD, phase="Failed")]], ids=["unseen", "ended"])
def test_pod_that_is_not_known_to_run_waits_for_the_next_list(
    bench: Bench, pods: list[Pod]
) -> None:
    bench.pods = pods
    bench.look(of_chips(chip=("1",)))
    assert bench.of_others() == {}
    bench.pods = [POD]
    bench.look(of_chips(chip=("1",)))
    assert bench.of_others() == {"uid-p": [{CHIP: ("1",)}]}


def test_ids_of_an_earlier_pod_of_the_name_are_not_the_later_ones(bench: Bench) -> None:
    bench.pods = [POD]
    bench.look(of_chips(chip=("1",)))
    bench.pods = [replace(POD, uid="uid-later")]
    bench.look(of_chips(chip=("1",)))
    assert bench.of_others() == {"uid-p": [{CHIP: ("1",)}]}
    bench.look(of_chips(chip=("2",)))
    assert bench.of_others()["uid-later"] == [{CHIP: ("2",)}]


def test_grants_of_our_own_are_not_among_them(bench: Bench) -> None:
    bench.ledger.adopt([an_entry("p")])
    assert bench.of_others() == {}


# -- devices that are offered no more --------------------------------------------------------------
RESOURCE = "nvidia.com/mig-1g.5gb"
HELD = an_entry("p", resource=RESOURCE, device_ids=("MIG-1", "MIG-2"))
LOST = {RESOURCE: frozenset({"MIG-1"})}


def test_people_are_told_of_a_lost_device_once_after_a_while(bench: Bench) -> None:
    bench.strangers.look_at_lost([HELD], LOST)
    assert bench.notes == []
    for _ in range(3):
        bench.clock.advance(SURE_S)
        bench.strangers.look_at_lost([HELD], LOST)
    (note,) = bench.notes
    told = note.kind, note.namespace, note.name, note.uid, note.reason
    assert told == ("Pod", "default", "p", "uid-p", "DeviceVanished")
    assert "MIG-1 of nvidia.com/mig-1g.5gb" in note.message
    assert "delete the pod" in note.message


def test_driver_that_is_unwell_for_a_moment_is_nobodys_news(bench: Bench) -> None:
    bench.strangers.look_at_lost([HELD], LOST)
    bench.clock.advance(SURE_S - 1)
    bench.strangers.look_at_lost([HELD], {RESOURCE: frozenset()})
    bench.strangers.look_at_lost([HELD], LOST)
    bench.clock.advance(1)
    bench.strangers.look_at_lost([HELD], LOST)
    assert bench.notes == []


def test_same_id_of_another_resource_or_of_nobody_is_not_told(bench: Bench) -> None:
    other = an_entry("q", resource="nvidia.com/gpu", device_ids=("MIG-1",))
    for entries in ([other], []):
        bench.strangers.look_at_lost(entries, LOST)
        bench.clock.advance(SURE_S)
        bench.strangers.look_at_lost(entries, LOST)
    assert bench.notes == []


# -- annotations that say otherwise than the ledger ------------------------------------------------
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{uuid(0)},NVIDIA,1000,0:;", 0),
        (f"{uuid(0)},NVIDIA,999,0:;", 1),
        (f"{uuid(1)},NVIDIA,1000,0:;", 1),
        ("", 1),
        ("rubbish,,:", 1),
    ],
    ids=["same", "less", "another-card", "removed", "broken"],
)
def test_drift_counts_pods_that_differ(text: str, wanted: int) -> None:
    pod = a_pod()
    edited = replace(pod, annotations={**pod.annotations, nvidia_names.POD_ALLOCATED: text})
    assert Drift(a_ledger(an_entry()), [VENDOR]).look([edited]) == wanted


@pytest.mark.parametrize(
    "entry",
    [
        an_entry(lender="other"),
        an_entry(container=""),
        an_entry("q"),
        an_entry(vendor="acme.example/chip", resource="acme.example/chip", grants=""),
    ],
    ids=["borrowed", "of-no-container", "of-a-pod-that-is-gone", "of-a-card-that-others-serve"],
)
def test_drift_leaves_out_what_can_not_be_compared(entry: Entry) -> None:
    assert Drift(a_ledger(entry), [VENDOR]).look([a_pod(memory_mib=7)]) == 0


def test_drift_ended_pod_does_not_count() -> None:
    assert Drift(a_ledger(an_entry()), [VENDOR]).look([a_pod(memory_mib=7, phase="Failed")]) == 0


def test_drift_logs_the_begin_and_the_end(caplog: pytest.LogCaptureFixture) -> None:
    drift = Drift(a_ledger(an_entry()), [VENDOR])
    with caplog.at_level(logging.INFO):
        for memory_mib in (1000, 7, 7, 8, 1000, 1000):
            drift.look([a_pod(memory_mib=memory_mib)])
    assert [record.message for record in caplog.records] == [
        "annotations_differ_from_record",
        "annotations_as_recorded",
    ]
