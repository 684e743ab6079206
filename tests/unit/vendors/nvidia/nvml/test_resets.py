"""Cards that have to be reset stay out until they have been, over restarts of the daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.model import Uuid
from hami_node.node.vendor_cards import CardRecord
from hami_node.record.file import Loaded, RecordFile
from hami_node.vendors.nvidia.nvml.backend import NvmlBackend, NvmlSettings
from hami_node.vendors.nvidia.nvml.xid_ledger import RESET_XIDS, XidLedger, XidPolicy
from hami_node.wire import names
from tests.fakes.clock import RealClock
from tests.fakes.records import FakeRecord
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS, Stub, card, sequence
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.conftest import ManualClock

CARD = Uuid("GPU-1")
POLICY = XidPolicy(clean_passes=2)


class Node:
    """A node over boots and restarts of the daemon, with its ledger of today."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.record = ManualClock(), FakeRecord()
        self.boot_file = folder / "boot_id"
        self.boots = 0
        self.boot()

    def boot(self) -> None:
        self.boots += 1
        self.boot_file.write_text(f"boot-{self.boots}\n")
        self.start()

    def start(self) -> None:
        """A new process of the daemon."""
        self.ledger = XidLedger(self.clock, self.record, self.boot_file)
        self.ledger.open()

    def judge(self, passes: int = 100, *, uuid: Uuid = CARD, policy: XidPolicy = POLICY) -> str:
        """What is said of the card after so many passes that it answers."""
        text = ""
        for _ in range(passes):
            self.clock.at_s += 60
            text = self.ledger.fault_text(uuid, has_answered=True, policy=policy)
            self.ledger.keep()
        return text

    def fail(self, xid: int = 79, uuid: Uuid = CARD) -> None:
        assert self.ledger.enter(uuid, xid, POLICY)
        self.ledger.keep()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("xid", sorted(RESET_XIDS))
def test_xid_that_asks_for_a_reset_is_not_over_by_time(node: Node, xid: int) -> None:
    node.fail(xid)
    text = node.judge()
    assert text.startswith(f"critical XID {xid}")
    assert f"annotate the node {names.NODE_CLEAR_ERRORS}={CARD}" in text
    node.start()
    assert node.judge() == text


def test_error_after_the_card_was_lost_asks_for_another_reset(node: Node) -> None:
    node.fail(79)
    node.ledger.note_gone([CARD])
    node.fail(95)
    assert node.judge().startswith("critical XID 95")


def test_xid_that_is_ignored_from_now_on_is_over(node: Node) -> None:
    node.fail(74)
    assert node.judge(policy=replace(POLICY, ignored=frozenset({74}))) == ""


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"{}", b'{"boot_id": 3}', b'{"boot_id": "", "cards": {"a": 1}}', b"[" * 9999],
)
def test_record_of_another_meaning_is_an_empty_one(tmp_path: Path, payload: bytes) -> None:
    ledger = XidLedger(ManualClock(), FakeRecord(payload), tmp_path / "none")
    ledger.open()
    assert ledger.waiting() == frozenset()


def test_boot_that_cant_be_told_resets_nothing(node: Node) -> None:
    node.fail()
    node.boot_file.unlink()
    node.start()
    assert node.judge()


class Machine:
    """The real backend on the stand-in driver, with records in a folder."""

    def __init__(self, stub: Stub, settings: NvmlSettings, folder: Path) -> None:
        self.stub, self.folder, self.boot_file = stub, folder, folder / "boot_id"
        self.settings = replace(
            settings, xids=XidPolicy(quiet_s=0), interval_s=0.02, boot_id=self.boot_file
        )
        self.boot_file.write_text("first\n")
        self.backend = self.open()

    def open(self) -> NvmlBackend:
        record = CardRecord(self.folder / "record", "cards")
        return NvmlBackend(RealClock(), self.settings, record)

    def restart(self) -> None:
        self.backend.close()
        self.backend = self.open()

    @property
    def health(self) -> list[bool]:
        return [found.healthy for found in self.backend.scan()]

    def passes(self, number: int = 10) -> list[bool]:
        """The cards' health after so many more passes."""
        for _ in range(number):
            self.backend.scan()
        return self.health

    def error(self, index: int, xid: int) -> str:
        """The driver reports an error; the line that has to stay in its file."""
        self.backend.scan()
        heard = self.stub.calls("nvmlEventSetWait_v2")
        eventually(lambda: self.stub.calls("nvmlEventSetWait_v2") > heard)
        line = f"xid {next(sequence)} {index} {xid}"
        self.stub.show(line)
        eventually(lambda: not self.health[index])
        return line


@pytest.fixture
def machine(stub: Stub, settings: NvmlSettings, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(stub, settings, tmp_path)
    yield made
    stub.show()
    made.backend.close()


@shows(
    "N9",
    fault="a card reports an error after which it has to be reset (XID 79), then answers as if "
    "nothing were wrong; the daemon restarts",
    happens="it stays out with the reason and what to do, until the node has booted again",
)
def test_card_that_needs_a_reset_stays_out_until_the_next_boot(machine: Machine) -> None:
    machine.error(1, 79)
    assert machine.passes() == [True, False, True]
    machine.restart()
    assert machine.passes() == [True, False, True]
    reason = machine.backend.scan()[1].unhealthy_reason
    assert "XID 79" in reason
    assert "reset the card" in reason
    machine.boot_file.write_text("second\n")
    machine.restart()
    assert machine.passes() == [True, True, True]


@pytest.mark.parametrize("way", ["off the list", "lost", "lost by its handle"])
def test_card_that_was_lost_and_is_found_again_is_served_again(
    machine: Machine, stub: Stub, way: str
) -> None:
    event = machine.error(1, 95)
    if way == "off the list":
        stub.write(card(0), card(2), event)
    else:
        function = "nvmlDeviceGetHandleByIndex_v2" if "handle" in way else "nvmlDeviceGetName"
        stub.show(event, f"fail {function} 1 15")
    eventually(lambda: "XID" not in machine.backend.scan()[1].unhealthy_reason)
    machine.restart()
    stub.show(event)
    eventually(lambda: machine.health == [True, True, True])


@pytest.mark.parametrize("code", [4, 10, 999])
def test_card_that_fails_in_another_way_meanwhile_was_not_reset(
    machine: Machine, stub: Stub, code: int
) -> None:
    event = machine.error(1, 95)
    stub.show(event, f"fail * 1 {code}")
    machine.passes()
    stub.show(event)
    assert machine.passes() == [True, False, True]


@shows(
    "N9",
    fault="a card was reset where the daemon could not see it",
    happens="it is served again as soon as an operator says so, and not for the next error",
)
def test_operators_word_brings_the_card_back_at_once(machine: Machine) -> None:
    machine.error(1, 48)
    assert machine.backend.clear_errors(frozenset({Uuid(UUIDS[1])})) == (UUIDS[1],)
    eventually(lambda: machine.health == [True, True, True])
    machine.restart()
    assert machine.passes() == [True, True, True]
    machine.error(1, 48)
    assert machine.passes() == [True, False, True]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The disk of records: it hangs while this is not set."""
    answers = threading.Event()
    answers.set()
    load, save = RecordFile.load, RecordFile.save

    def load_late(file: RecordFile) -> Loaded:
        answers.wait()
        return load(file)

    def save_late(file: RecordFile, payload: bytes) -> None:
        answers.wait()
        save(file, payload)

    monkeypatch.setattr(RecordFile, "load", load_late)
    monkeypatch.setattr(RecordFile, "save", save_late)
    yield answers
    answers.set()


@shows(
    "R3",
    fault="the disk of the record hangs; a card reports an error after which it has to be reset, "
    "then another card falls ill",
    happens="both are unhealthy at once, and the passes over the cards go on; the error is written "
    "when the disk answers",
)
def test_record_that_hangs_holds_no_pass_up(
    machine: Machine, stub: Stub, disk: threading.Event
) -> None:
    machine.passes(1)
    disk.clear()
    event = machine.error(1, 79)
    stub.show(event, "fail nvmlDeviceGetName 2 15")
    eventually(lambda: machine.health == [True, False, False])
    assert machine.backend.last_pass_age_s() < 30
    disk.set()
    stub.show(event)
    eventually(lambda: (machine.folder / "record" / "cards.record").exists())
    machine.restart()
    assert machine.passes() == [True, False, True]


@shows(
    "R3",
    fault="the disk of the record hangs when the daemon starts, with a card on it that has to be "
    "reset",
    happens="the cards are found and served; that one goes out as soon as the record can be read",
)
def test_record_that_hangs_at_the_start_is_read_later(
    machine: Machine, disk: threading.Event
) -> None:
    machine.error(1, 79)
    disk.clear()
    machine.restart()
    assert machine.passes() == [True, True, True]
    disk.set()
    eventually(lambda: machine.health == [True, False, True])
