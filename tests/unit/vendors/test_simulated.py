"""Simulated cards: what the file says, refused or reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_node.errors import ConfigError, DriverUnavailable
from hami_node.model import Vendor
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.sharing import offered_cards
from hami_node.vendors.nvidia.node.simulated import NO_MIG, SIMULATED
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.simulated import SimulatedBackend, SimulatedCards, read_state

FIXTURES = Path(__file__).parents[2] / "fixtures/cards"
TWO = "cards:\n- {model: NVIDIA A10, memory_mib: 24564, count: 2}\n"


class CardsFile:
    """A file and its backend. Writes are renames, as an editor or kubelet does them."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "cards.yaml"

    def write(self, text: str) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self.file)

    def open(
        self, text: str = TWO, node_name: str = "node-a", style: SimulatedCards = SIMULATED
    ) -> SimulatedBackend:
        self.write(text)
        return SimulatedBackend(self.file, node_name, style)


@pytest.fixture
def rig(tmp_path: Path) -> CardsFile:
    return CardsFile(tmp_path)


def test_cards_have_every_fact_of_the_file(rig: CardsFile) -> None:
    backend = rig.open(
        """
cards:
- {model: NVIDIA H100, memory_mib: 81559, uuid: GPU-x, index: 3, numa: 1,
   pci_bus: "00000000:3B:00.0"}
- {model: NVIDIA A10, memory_mib: 24564, index: 0}
"""
    )
    small, big = backend.scan()
    assert (small.model, small.index, small.numa, small.healthy) == ("NVIDIA A10", 0, None, True)
    assert (big.uuid, big.index, big.numa, big.memory_mib) == ("GPU-x", 3, 1, 81559)
    assert (big.vendor, big.mode, big.slots, big.cores) == (NVIDIA, Mode.HAMI_CORE, 1, 100)
    assert big.pci_bus == "00000000:3B:00.0"


def test_default_uuids_differ_between_cards_and_nodes_and_stay(rig: CardsFile) -> None:
    here = [card.uuid for card in rig.open().scan()]
    there = [card.uuid for card in rig.open(node_name="node-b").scan()]
    assert len({*here, *there}) == 4
    assert here == [card.uuid for card in rig.open().scan()]
    assert all(len(uuid) == 40 and uuid.startswith("GPU-") for uuid in here)


ACME = SimulatedCards(
    vendor=Vendor("Acme"),
    modes={"hami-core": "", "rented": "it is rented out"},
    default_uuid=lambda node, index, _: f"{node}-Acme-{index}",
)


def test_cards_of_another_vendor_have_its_names_and_modes(rig: CardsFile) -> None:
    text = "vendor: Acme\ncards: [{model: Rocket, memory_mib: 0, count: 2, mode: rented}]"
    cards = rig.open(text, style=ACME).scan()
    assert [card.uuid for card in cards] == ["node-a-Acme-0", "node-a-Acme-1"]
    assert {(card.vendor, card.unhealthy_reason) for card in cards} == {
        (ACME.vendor, "it is rented out")
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("healthy: false, reason: XID 48", "XID 48"),
        ("healthy: false", "fault on command (simulated)"),
        ("lost: true, reason: unread", "the card does not answer (simulated)"),
        ("mode: mig", NO_MIG),
    ],
)
def test_fault_of_one_card_leaves_the_others(rig: CardsFile, fields: str, reason: str) -> None:
    backend = rig.open(TWO + f"- {{model: NVIDIA A10, memory_mib: 24564, {fields}}}\n")
    *others, bad = backend.scan()
    assert (bad.healthy, bad.unhealthy_reason) == (False, reason)
    assert [card.healthy for card in others] == [True, True]


def test_links_score_both_directions(rig: CardsFile) -> None:
    backend = rig.open(TWO + "- {model: NVIDIA A10, memory_mib: 1, links: {0: 210, 7: 5}}\n")
    first, _, third = (card.uuid for card in backend.scan())
    assert backend.pair_scores() == {first: {third: 210}, third: {first: 210}}


def test_fault_and_recovery_on_command_wake_the_waiter(rig: CardsFile) -> None:
    backend = rig.open()
    assert all(card.healthy for card in backend.scan())
    rig.write(TWO.replace("count: 2", "lost: true"))
    assert backend.wait_for_event(10)
    assert [card.healthy for card in backend.scan()] == [False]
    rig.write(TWO)
    assert backend.wait_for_event(10)
    assert [card.healthy for card in backend.scan()] == [True, True]


def test_file_rewritten_with_the_same_meaning_wakes_nobody(rig: CardsFile) -> None:
    backend = rig.open()
    backend.scan()
    rig.write("# the same\n" + TWO)
    assert not backend.wait_for_event(0.1)


@pytest.mark.parametrize(
    "text",
    ["cards: 5", ": :", "cards: [{model: x}]", "cards: 2020-13-45", "cards: " + "[" * 5000],
    ids=["a number", "no YAML", "no memory", "no date", "too deep"],
)
def test_wrong_file_later_keeps_the_last_cards_and_says_so(
    rig: CardsFile, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = rig.open()
    before = backend.scan()
    rig.write(text)
    assert not backend.wait_for_event(0.1)
    assert backend.scan() == before
    assert [r.message for r in caplog.records] == ["simulated_cards_refused"]


def test_driver_that_is_too_slow_is_unavailable_and_close_ends_the_wait(rig: CardsFile) -> None:
    backend = rig.open("answer_after_s: 60\n" + TWO)
    backend.close()
    with pytest.raises(DriverUnavailable, match="has not answered"):
        backend.scan()
    assert not backend.wait_for_event(60)
    backend.close()


@pytest.mark.parametrize(
    ("text", "field", "part"),
    [
        ("[]", "$", "Expected `object`"),
        ("", "$", "Expected `object`"),
        ("cards: [", "line 2", "did not find expected node content"),
        ("cards: []\ncolour: red", "$", "colour"),
        ("cards: [{model: x}]", "$.cards[0]", "memory_mib"),
        ("cards: [{model: 5, memory_mib: 1}]", "$.cards[0].model", "5 is wrong: Expected `str`"),
        ("cards: [{model: x, memory_mib: 1, mode: fast}]", "$.cards[0].mode", "'fast' is wrong"),
        ("vendor: AMD\ncards: []", "$.vendor", "'AMD'"),
        ("cards: [{model: x, memory_mib: -1}]", "$.cards[0].memory_mib", "`int` >= 0"),
        ("cards: [{model: x, memory_mib: 1, count: 0}]", "$.cards[0].count", "`int` >= 1"),
        ("cards: [{model: x, memory_mib: 1, index: -1}]", "$.cards[0].index", ">= 0"),
        ("cards: [{model: '', memory_mib: 1}]", "$.cards[0].model", "length >= 1"),
        ("cards: [{model: x, memory_mib: 1, count: 2, uuid: u}]", "uuid", "leave it out"),
        ("cards: [{model: x, memory_mib: 1, count: 2, pci_bus: u}]", "pci_bus", "leave it out"),
        (
            "cards: [{model: x, memory_mib: 1}, {model: x, memory_mib: 1, index: 0}]",
            "cards, number 1: index",
            "another card",
        ),
        (
            "cards: [{model: x, memory_mib: 1, uuid: u}, {model: x, memory_mib: 1, uuid: u}]",
            "uuid",
            "its own",
        ),
    ],
)
def test_wrong_file_at_start_names_file_field_value_and_remedy(
    rig: CardsFile, text: str, field: str, part: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        rig.open(text)
    assert str(rig.file) in str(refused.value)
    assert field in refused.value.field
    assert part in str(refused.value)


@pytest.mark.parametrize(
    ("name", "healthy"),
    [("a100-4", [True] * 4), ("mixed-faults", [True, True, False, False, False])],
)
def test_fixture_means_what_it_says(name: str, healthy: list[bool]) -> None:
    backend = SimulatedBackend(FIXTURES / f"{name}.yaml", "node-a", SIMULATED)
    offered = offered_cards(backend.scan(), NvidiaSettings())
    assert [card.healthy for card in offered] == healthy


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(content)
    try:
        state = read_state(file, "node-a", SIMULATED)
    except ConfigError:
        return
    assert isinstance(state.devices, tuple)
