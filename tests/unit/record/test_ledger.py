"""The ledger of grants: what `put` returned for is there, whatever comes after."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hami_node.errors import PodTooLarge, RecordError
from hami_node.record.file import RecordFile, State
from hami_node.record.ledger import MAX_POD_BYTES, Entry, Ledger, ResizeNote, Source
from hami_node.record.writer import RETRY_S
from hami_node.vendors.nvidia.mig.layout import MigDevice, MigInstance, TemplateSlot
from tests.fakes.clock import soon
from tests.fakes.ledgers import CODEC, MemoryFile, an_entry, ledger_in
from tests.fakes.waiting import eventually, remove
from tests.reliability import shows


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    entry = an_entry(answer='{"envs":[["A","ä"]]}', limiter="2.9.0", time_s=12.5)
    ledger_in(tmp_path).put(entry)
    loaded = ledger_in(tmp_path)
    assert loaded.entries() == (entry,)
    assert loaded.find("uid-p", "main", "NVIDIA") == entry
    assert loaded.find("uid-p", "main", "ACME") is None


def test_several_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    note = ResizeNote(id="a-1", before=an_entry().grants, refusal="why")
    both = [an_entry(resize=note), an_entry("q")]
    ledger.put_all(both)
    assert ledger_in(tmp_path).entries() == tuple(both)
    file = MemoryFile()
    broken = Ledger(file, CODEC)
    file.error = RecordError("full")
    with pytest.raises(RecordError):
        broken.put_all(both)
    assert broken.entries() == ()


OLD = Path(__file__).with_name("grants-5117190.record")
"""Written by that commit, with an entry of every form."""


@shows(
    "R7",
    fault="the daemon is upgraded from the first release of the record, or rolled back to it",
    happens="each reads what the other wrote: an entry that stays is written again to the byte",
)
def test_record_of_an_earlier_version_is_read_and_written_again_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "grants.record"
    path.write_bytes(OLD.read_bytes())
    ledger = ledger_in(tmp_path)
    entries = ledger.entries()
    held = {f"{entry.pod}/{entry.container}": entry.grants for entry in entries}
    assert [len(grants) for grants in held.values()].count(0) == 2, (
        "of others, and of no vendor here"
    )
    assert {type(grant.part) for grants in held.values() for grant in grants} == {
        type(None),
        TemplateSlot,
        MigInstance,
        MigDevice,
    }
    growing = next(entry for entry in entries if entry.resize is not None and entry.resize.is_open)
    assert growing.resize is not None
    assert [grant.memory_mib for grant in (*growing.resize.before, *growing.grants)] == [3000, 5000]
    ledger.put(an_entry())
    ledger.remove(*an_entry().key)
    assert path.read_bytes() == OLD.read_bytes()
    # and what is written from the decoded entries are the same bytes, which that commit reads
    ours = [entry for entry in entries if entry.vendor == "NVIDIA"]
    ledger.put_all([replace(entry, time_s=0.0) for entry in ours])
    assert path.read_bytes() != OLD.read_bytes()
    ledger.put_all(ours)
    assert path.read_bytes() == OLD.read_bytes()


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        (b'"grants":"GPU-', b'"grants":"rubbish,GPU-'),
        (b'"grants":"GPU-', b'"grants":"GPU-1,NVIDIA,1,1:;GPU-'),
        (b'"before":""', b'"before":"rubbish,,:"'),
    ],
    ids=["no-grants", "of-two-containers", "before-a-resize"],
)
def test_grants_that_can_not_be_read_stay_on_record_and_are_said_once(
    written: bytes, changed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = MemoryFile()
    Ledger(file, CODEC).put(an_entry(resize=ResizeNote(id="a-1")))
    assert file.loaded.payload is not None
    file.save(file.loaded.payload.replace(written, changed))
    ledger = Ledger(file, CODEC)
    ledger.load()
    assert [bool(entry.problem) for entry in ledger.entries()] == [True]
    ledger.put(an_entry("q"))
    assert changed in file.loaded.payload
    assert [record.message for record in caplog.records] == ["entry_unreadable"]


def test_entry_without_later_fields_or_of_a_later_kind_is_an_app_container() -> None:
    file = MemoryFile()
    Ledger(file, CODEC).put(an_entry())
    assert file.loaded.payload is not None
    old = file.loaded.payload.replace(b',"resize":null', b"").replace(b'"app"', b'"of the future"')
    file.save(old)
    ledger = Ledger(file, CODEC)
    ledger.load()
    assert ledger.entries() == (an_entry(),)


def test_entries_are_found_by_pod(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    init, app, other = an_entry(container="i"), an_entry(), an_entry("q")
    for entry in (init, app, other):
        ledger.put(entry)
    assert ledger.of_pod("uid-p") == (init, app)
    assert ledger.of_pod("uid-x") == ()


def test_container_has_one_entry_for_each_vendor_whatever_the_resource_is_called() -> None:
    ledger = Ledger(MemoryFile(), CODEC)
    ledger.put(an_entry())
    ledger.put(an_entry(resource="example.com/vgpu"))
    ledger.put(an_entry(vendor="ACME"))
    assert [(entry.vendor, entry.resource) for entry in ledger.entries()] == [
        ("NVIDIA", "example.com/vgpu"),
        ("ACME", "nvidia.com/gpu"),
    ]


def test_entry_that_can_not_be_written_is_refused_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("a file where the folder should be")
    failures: list[int] = []
    file = RecordFile(tmp_path / "r", "grants")
    ledger = Ledger(file, CODEC, on_failure=lambda: failures.append(1))
    with pytest.raises(RecordError, match="can't be written"):
        ledger.put(an_entry())
    assert ledger.entries() == ()
    assert failures == [1]


def test_replaced_entry_that_can_not_be_written_stays_as_it_was() -> None:
    file = MemoryFile()
    ledger = Ledger(file, CODEC)
    ledger.put(an_entry())
    file.error = RecordError("disk full")
    with pytest.raises(RecordError):
        ledger.put(an_entry(answer="{}"))
    assert ledger.entries() == (an_entry(),)


def test_one_pod_with_too_much_costs_no_other_pod_its_place(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    half = "x" * (MAX_POD_BYTES // 2)
    ledger.put(an_entry("greedy", "first", answer=half))
    with pytest.raises(PodTooLarge, match="fewer containers"):
        ledger.put(an_entry("greedy", "second", answer=half))
    assert ledger.adopt([an_entry("greedy", "third", answer=half), an_entry("b")]) == (
        an_entry("b"),
    )
    for number in range(40):
        ledger.put(an_entry(f"p{number}", answer=half))
    assert len(ledger_in(tmp_path).entries()) == 42


def test_entry_put_again_as_it_is_writes_nothing() -> None:
    file = MemoryFile()
    ledger = Ledger(file, CODEC)
    ledger.put(an_entry())
    ledger.put(an_entry())
    assert file.saves == 1


def test_freed_and_removed_entries_are_gone_after_a_restart(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    for entry in (an_entry("a"), an_entry("b"), an_entry("c")):
        ledger.put(entry)
    assert ledger.free({"uid-a", "uid-x"}) == (an_entry("a"),)
    ledger.remove("uid-b", "main", "NVIDIA")
    ledger.remove("uid-b", "main", "NVIDIA")
    assert ledger_in(tmp_path).entries() == (an_entry("c"),)


def test_what_is_adopted_replaces_nothing_and_counts_even_if_it_can_not_be_written() -> None:
    file = MemoryFile()
    ledger = Ledger(file, CODEC)
    served = an_entry(answer="{}")
    ledger.put(served)
    file.error = RecordError("disk full")
    adopted = an_entry("q", source=Source.ADOPTED)
    ledger.adopt([replace(served, answer="", source=Source.ADOPTED), adopted])
    assert set(ledger.entries()) == {served, adopted}
    file.error = None
    ledger.put(served)  # as it is
    again = Ledger(file, CODEC)
    again.load()
    assert set(again.entries()) == {served, adopted}


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.write_text("a file where the folder should be")
    failures: list[int] = []
    ledger = Ledger(RecordFile(folder, "grants"), CODEC, on_failure=lambda: failures.append(1))
    ledger.adopt([an_entry()])
    assert failures == [1]
    folder.unlink()
    eventually(lambda: (folder / "grants.record").exists(), 2 * RETRY_S)
    assert ledger_in(folder).entries() == (an_entry(),)


@pytest.mark.parametrize(
    ("payload", "state"),
    [
        (b'{"entries":[]}', State.WHOLE),
        (b'{"entries":[],"more":1}', State.WHOLE),
        (b'{"entries":[{"pod_uid":7}]}', State.DAMAGED),
        (b"[]", State.DAMAGED),
        (b"\xff", State.DAMAGED),
    ],
    ids=["empty", "unknown-field", "wrong-type", "other-form", "no-text"],
)
def test_whole_file_with_other_content_is_not_taken_for_a_record(
    tmp_path: Path, payload: bytes, state: State
) -> None:
    RecordFile(tmp_path, "grants").save(payload)
    found = Ledger(RecordFile(tmp_path, "grants"), CODEC).load()
    assert found.state == state
    assert bool(found.problem) is found.is_lost


def test_missing_record_is_said_but_nothing_was_lost(tmp_path: Path) -> None:
    ledger = Ledger(RecordFile(tmp_path, "grants"), CODEC)
    found = ledger.load()
    assert (found.state, found.is_lost, ledger.was_lost) == (State.MISSING, False, False)


def test_newer_record_is_lost(tmp_path: Path) -> None:
    RecordFile(tmp_path, "grants", version=2).save(b"whatever")
    ledger = Ledger(RecordFile(tmp_path, "grants"), CODEC)
    found = ledger.load()
    assert (found.state, ledger.was_lost) == (State.NEWER, True)


def test_entries_of_many_threads_are_all_there(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)

    def work(name: str) -> None:
        for i in range(20):
            ledger.put(an_entry(f"{name}-{i}"))
            ledger.free({f"uid-{name}-{i - 1}"})

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = {f"{name}-19" for name in "abcd"}
    assert {entry.pod for entry in ledger_in(tmp_path).entries()} == left


class _HangingFile(MemoryFile):
    """The disk does not answer until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.released.set()

    def save(self, payload: bytes) -> None:
        assert self.released.wait(30)
        super().save(payload)


def test_disk_that_hangs_is_an_error_and_what_was_refused_is_not_on_record_later() -> None:
    file = _HangingFile()
    ledger = Ledger(file, CODEC, disk_timeout_s=0.05)
    ledger.put(an_entry("a"))
    file.released.clear()
    for _ in range(2):
        with pytest.raises(RecordError, match="has not answered"):
            ledger.put(an_entry("b"))
    assert ledger.entries() == (an_entry("a"),)
    file.released.set()
    eventually(lambda: not ledger._disk.is_late)
    again = Ledger(file, CODEC)
    again.load()
    assert again.entries() == (an_entry("a"),)


def test_disk_that_hangs_is_waited_for_once_by_what_may_be_written_later() -> None:
    file = _HangingFile()
    ledger = Ledger(file, CODEC, disk_timeout_s=2.0)
    ledger.put(an_entry("a"))
    file.released.clear()
    ledger.adopt([an_entry("b")])
    began_s = time.monotonic()
    for name in "cdefgh":
        ledger.adopt([an_entry(name)])
    ledger.free({"uid-c"})
    assert time.monotonic() - began_s < 2.0
    assert [entry.pod for entry in ledger.entries()][-1] == "a"
    file.released.set()
    eventually(
        lambda: file.loaded.payload is not None and file.loaded.payload.count(b"pod_uid") == 7
    )


@pytest.mark.parametrize("is_locked", [True, False], ids=["another-write", "own-write"])
def test_write_ends_by_the_deadline_of_its_call(is_locked: bool) -> None:
    file = _HangingFile()
    ledger = Ledger(file, CODEC, disk_timeout_s=60.0)
    file.released.clear()
    if is_locked:
        threading.Thread(target=ledger.put, args=(an_entry("a"),), daemon=True).start()
        eventually(lambda: ledger._disk.is_late)
    began_s = time.monotonic()
    with pytest.raises(RecordError, match="check the disk"):
        ledger.put(an_entry("b"), soon(0.1))
    assert time.monotonic() - began_s < 30
    file.released.set()


class _DyingFile(RecordFile):
    """The process ends in the middle of a save: the new file is cut, or not yet renamed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "grants")
        self.folder, self.dies_after_bytes, self.is_dead = folder, -1, False

    def save(self, payload: bytes) -> None:
        if self.is_dead:
            raise SystemExit
        if self.dies_after_bytes < 0:
            super().save(payload)
            return
        self.folder.mkdir(exist_ok=True)
        (self.folder / "grants.new").write_bytes(payload[: self.dies_after_bytes])
        raise SystemExit  # nothing of the process runs after this


class LedgerLives(RuleBasedStateMachine):
    """Any sequence of changes, kills and starts keeps every entry whose `put` returned."""

    @initialize()
    def begin(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="hn-"))
        self.folder = self.scratch / "r"
        self.kept: dict[str, Entry] = {}
        self.file = _DyingFile(self.folder)
        self.start()

    def start(self) -> None:
        self.file.is_dead = True
        self.file = _DyingFile(self.folder)
        self.ledger = Ledger(self.file, CODEC)
        self.ledger.load()

    @rule(pod=st.sampled_from("abcde"), answer=st.text(max_size=20))
    def put(self, pod: str, answer: str) -> None:
        entry = an_entry(pod, answer=answer)
        self.ledger.put(entry)
        self.kept[pod] = entry

    @rule(pods=st.sets(st.sampled_from("abcde")))
    def free(self, pods: set[str]) -> None:
        self.ledger.free({f"uid-{pod}" for pod in pods})
        self.kept = {pod: entry for pod, entry in self.kept.items() if pod not in pods}

    @rule()
    def kill(self) -> None:
        self.start()

    @rule(pod=st.sampled_from("abcde"), after=st.integers(0, 300))
    def kill_while_putting(self, pod: str, after: int) -> None:
        self.file.dies_after_bytes = after
        with pytest.raises(SystemExit):
            self.ledger.put(an_entry(pod, answer=f"never given {after} {os.urandom(4).hex()}"))
        self.start()

    @rule(pod=st.sampled_from("abcde"))
    def refuse(self, pod: str) -> None:
        aside = self.folder.with_name("aside")
        if self.folder.exists():
            self.folder.rename(aside)
        self.folder.write_text("no folder")
        with pytest.raises(RecordError):
            self.ledger.put(an_entry(pod, answer=os.urandom(4).hex()))
        self.folder.unlink()
        if aside.exists():
            aside.rename(self.folder)

    @invariant()
    def everything_is_there(self) -> None:
        assert {entry.pod: entry for entry in self.ledger.entries()} == self.kept

    def teardown(self) -> None:
        self.file.is_dead = True
        try:
            assert {entry.pod: entry for entry in ledger_in(self.folder).entries()} == self.kept
        finally:
            remove(self.scratch)


TestLedgerLives = LedgerLives.TestCase
TestLedgerLives.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
