"""docs/where-the-seeds-differ.md: each row names a test that exists; some of them are here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from hami_node.config.sources import ignored_flags
from hami_node.engine.card_rules import LIVE_FILTERS
from hami_node.engine.check import check_reservation
from hami_node.engine.compat import V2_8
from hami_node.engine.filters import is_within_quota
from hami_node.setting_types import Role
from hami_node.vendors.neuron.placement import Family, family_of, instance_type_of
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_csv7, encode_json
from hami_node.vendors.registry import SETTINGS_BLOCKS
from hami_node.wire import names
from hami_node.wire.handshake import encode_requesting
from hami_node.wire.objects import decode_node
from tests.fakes.pods import Box
from tests.unit.engine.cards import ask, grant, wishes_for
from tests.unit.engine.cards import card as idle_card
from tests.unit.extender.desk import Desk, card

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "docs" / "where-the-seeds-differ.md").read_text()
ROWS: Final = re.findall(r"^\| (00\d.*) \|$", PAGE, re.MULTILINE)
TESTS: Final = frozenset(
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
)


# -- the page ------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.partition(" |")[0])
def test_row_names_document_difference_reason_and_a_test_that_exists(row: str) -> None:
    cells = row.split(" | ")
    assert len(cells) == 5
    assert all(cells)
    assert re.match(r"00[0-4], ", cells[0])
    named = re.findall(r"`(test_\w+)`", cells[4])
    assert named or cells[4].startswith("none: ")
    assert [name for name in named if name not in TESTS] == []


def test_test_of_a_difference_stands_on_the_page() -> None:
    assert {name for name in TESTS if name.startswith("test_differs_")} <= set(
        re.findall(r"`(test_\w+)`", PAGE)
    )


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_page_is_linked(page: str) -> None:
    assert "where-the-seeds-differ.md)" in (ROOT / page).read_text()


# -- annotations ---------------------------------------------------------------------------------
def _reserved() -> Desk:
    desk = Desk("n1")
    desk.add_pod("a")
    desk.sync()
    assert desk.choose("a") == "n1"
    return desk


def test_differs_004_4_1_names_of_the_annotations() -> None:
    desk = _reserved()
    assert desk.bind("a", "n1") == ""
    notes = desk.notes_of("a")
    assert {"hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-time"} <= notes.keys()
    theirs = {"hami.io/assigned-node", "hami.io/assigned-time", "hami.io/bindtime"}
    assert not theirs & notes.keys()


def test_differs_004_4_1_phases() -> None:
    phases = (names.PHASE_ALLOCATING, names.PHASE_SUCCESS, names.PHASE_FAILED)
    assert phases == ("allocating", "success", "failed")


def test_differs_002_3_2_3_1_1_date_of_a_question() -> None:
    assert encode_requesting(0.0) == "Requesting_1970-01-01 00:00:00"


def test_differs_002_3_2_3_1_1_changed_node_counts_at_once() -> None:
    desk = Desk("n1")
    desk.add_pod("p", memory_mib=20000)
    desk.sync()
    assert desk.choose("p") == ""
    larger = encode_csv7([card("n1", 0, memory_mib=24576)])
    desk.kube.merge_patch_node("n1", {nvidia_names.NODE_REGISTER: larger})
    desk.sync()
    assert desk.choose("p") == "n1"


# -- filters -------------------------------------------------------------------------------------
def test_differs_000_3_3_health_is_each_cards_own() -> None:
    desk = Desk("n1")
    cards = (card("n1", 0, healthy=False), card("n1", 1))
    desk.kube.merge_patch_node("n1", {nvidia_names.NODE_REGISTER: encode_json(cards)})
    desk.add_pod("one")
    desk.add_pod("two", Box(cards=2, memory_mib=100))
    desk.sync()
    assert desk.choose("one") == "n1"
    assert "1/2 CardNotHealth" in desk.ask("two")["FailedNodes"]["n1"]


def test_differs_000_3_2_cordoned_cards_take_no_pod() -> None:
    desk = Desk("n1")
    desk.kube.merge_patch_node("n1", {names.NODE_CORDON: "GPU-n1-0"})
    desk.add_pod("a")
    desk.sync()
    assert desk.ask("a")["FailedAndUnresolvableNodes"] == {"n1": "1/1 CardCordoned"}


# -- events --------------------------------------------------------------------------------------
def test_differs_004_5_event_of_success_names_the_cards() -> None:
    desk = _reserved()
    assert desk.notes[-1].message == "find fit node(n1): main: GPU-n1-0 6000 MiB 0 %"


def test_differs_004_5_pod_that_asks_nothing_gets_no_event() -> None:
    desk = Desk("n1")
    desk.add_pod("plain", Box(cards=0))
    assert desk.choose("plain") == "n1"
    assert desk.notes == []


def test_differs_004_5_one_event_holds_all_reasons() -> None:
    desk = Desk("n1", "n2")
    bad = encode_json((card("n2", 0, healthy=False),))
    desk.kube.merge_patch_node("n2", {nvidia_names.NODE_REGISTER: bad})
    desk.add_pod("a", memory_mib=99999)
    desk.sync()
    assert desk.choose("a") == ""
    (note,) = desk.notes
    assert "1 nodes CardInsufficientMemory(n1)" in note.message
    assert "1 nodes CardNotHealth(n2)" in note.message


# -- Neuron --------------------------------------------------------------------------------------
def test_differs_001_1_extender_reads_the_label() -> None:
    topology = '{"instance_type":"inf2.48xlarge"}'
    node = decode_node(
        {
            "metadata": {
                "name": "n",
                "labels": {"node.kubernetes.io/instance-type": "trn1.32xlarge"},
                "annotations": {"hami-node.io/neuron-topology": topology},
            },
            "status": {
                "allocatable": {
                    "aws.amazon.com/neuron": "16",
                    "aws.amazon.com/neuroncore": "32",
                }
            },
        }
    )
    offered = neuron_protocol().offered_by(node)
    assert {family_of(instance_type_of(device)) for device in offered} == {Family.TRAINIUM}


def test_differs_001_1_devices_are_those_that_are_allocatable() -> None:
    counts = {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32"}
    fewer = {"aws.amazon.com/neuron": "4", "aws.amazon.com/neuroncore": "8"}
    node = {"metadata": {"name": "n"}, "status": {"capacity": counts, "allocatable": fewer}}
    assert len(neuron_protocol().offered_by(decode_node(node))) == 4


# -- the daemon ----------------------------------------------------------------------------------
def test_differs_000_3_3_allocate_checks_neither_quota_nor_numa() -> None:
    assert is_within_quota not in LIVE_FILTERS
    cards = {usage.device.uuid: usage for usage in (idle_card(0, numa=0), idle_card(1, numa=1))}
    grants = (grant("GPU-0"), grant("GPU-1"))
    bound = wishes_for(is_numa_bound=True)
    assert check_reservation(cards, grants, ask(2), bound, V2_8) is None


def test_differs_002_3_2_2_flags_without_effect() -> None:
    (row,) = (row for row in ROWS if row.startswith("002, 3.2.2"))
    listed = set(re.findall(r"`--([\w-]+)`", row))
    assert listed == set(ignored_flags(Role.EXTENDER, SETTINGS_BLOCKS))
