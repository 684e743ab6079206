"""Faults of the record of grants, against the real daemon: what runs keeps its cards."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.node.holdings.recorded import answer_of
from hami_node.record.file import RecordFile, State
from hami_node.record.ledger import Ledger
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.cards import MEMORY_MIB, uuid
from tests.fakes.ledgers import CODEC, grants_text, ledger_in
from tests.fakes.pods import Box, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig, inside, launch
from tests.reliability import shows

MOST_MIB = MEMORY_MIB - 1000
"""Of a card on which nothing as large fits beside."""


@pytest.fixture
def rig(node: Rig) -> Rig:
    """A node whose daemon runs and has served the pod `old` most of card 1."""
    node.start()
    assert_serves(node, "old", 1)
    return node


def place(rig: Rig, name: str, card: int, memory_mib: int = MOST_MIB) -> None:
    part = Part(uuid=uuid(card), memory_mib=memory_mib)
    rig.place(name, [Box(memory_mib=memory_mib)], {"main": [part]})


def assert_serves(rig: Rig, name: str, card: int) -> None:
    """A pod of most of this card gets exactly that."""
    place(rig, name, card)
    answer = rig.admit(name)
    assert answer.is_admitted, answer.refusal
    assert inside(answer)[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(card)
    assert inside(answer)["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{MOST_MIB}m"


def assert_old_keeps_its_card(rig: Rig) -> None:
    """Nothing as large is served on card 1 beside `old`; the other cards are served as ever."""
    place(rig, "greedy", 1)
    answer = rig.admit("greedy")
    assert not answer.is_admitted
    assert "free" in answer.refusal, answer.refusal
    assert_serves(rig, "other", 2)
    rig.end("old")
    assert_serves(rig, "next", 1)


def entries(rig: Rig) -> dict[str, str]:
    """The source of each pod's entry in the file, read without touching it."""
    with tempfile.TemporaryDirectory() as copy:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(file_of(rig), copy)
        ledger = ledger_in(Path(copy))
    return {entry.pod: entry.source.value for entry in ledger.entries()}


def wait_recorded(rig: Rig, **wanted: str) -> None:
    """Wait until the file has just these pods, by source."""
    eventually(lambda: entries(rig) == wanted, LIMIT_S)


def eventual_events(rig: Rig) -> list[str]:
    """What the Events about a lost record say, once there are some."""
    eventually(lambda: rig.events("RecordRebuilt"), LIMIT_S)
    return rig.events("RecordRebuilt")


def file_of(rig: Rig) -> Path:
    return rig.record / "grants.record"


def test_record_is_what_kubelet_was_answered(node: Rig) -> None:
    node.take_limiter()
    node.lay_limiter("v2.9.0")
    node.start()
    place(node, "p", 1)
    answer = node.admit("p")
    (entry,) = ledger_in(node.record).entries()
    assert (entry.pod_uid, entry.name, entry.lender) == ("uid-p", "default/p/main", "main")
    assert entry.device_ids == answer.device_ids["main"]
    assert grants_text(entry) == f"{uuid(1)},NVIDIA,{MOST_MIB},0:;"
    assert entry.limiter == "v2.9.0"
    recorded = answer_of(entry)
    assert recorded is not None
    assert dict(recorded.envs) == inside(answer)
    again = node.kubelet.call_again(node.resource, entry.device_ids)
    assert again == answer.responses["main"]


@shows(
    "R1",
    fault="the record is damaged while the daemon is down",
    happens="it is kept aside, and rebuilt from kubelet's list and the pods before anything is "
    "served; log, metric and an Event about the node say so",
)
def test_damaged_record_is_rebuilt(rig: Rig) -> None:
    rig.stop()
    path = file_of(rig)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    rig.start()
    wait_recorded(rig, old="rebuilt")
    eventually(lambda: rig.metric("record_rebuilt_total", reason="damaged") == 1, LIMIT_S)
    aside = rig.record / "grants.damaged"
    assert aside.read_bytes() == bytes(raw)
    assert f"it is kept as {aside}: " in eventual_events(rig)[0]
    assert_old_keeps_its_card(rig)


@shows(
    "R2",
    fault="the record is missing, or was never there because another plugin has served the pods",
    happens="running pods are taken over from their annotations and kubelet's list",
)
def test_missing_record_running_pods_are_adopted(rig: Rig) -> None:
    rig.stop()
    shutil.rmtree(rig.record)
    rig.start()
    wait_recorded(rig, old="adopted")
    eventually(lambda: rig.metric("record_rebuilt_total", reason="missing") == 1, LIMIT_S)
    assert not rig.events("RecordRebuilt"), "nothing was lost"
    assert_old_keeps_its_card(rig)


@pytest.fixture
def process(node: Rig) -> Iterator[subprocess.Popen[bytes]]:
    """The real process, which has served the pod `old`."""
    found = launch(node)
    try:
        assert_serves(node, "old", 1)
        yield found
    finally:
        found.kill()
        found.wait(LIMIT_S)


@shows(
    "R3",
    fault="the disk of the record is full",
    happens="pods with cards are refused with the reason and what to do; as soon as there is room "
    "again they are served, and running pods keep their cards",
)
def test_full_disk_refuses_until_there_is_room(node: Rig, process: subprocess.Popen[bytes]) -> None:
    most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (64, most))  # no file may become larger
    place(node, "refused", 2)
    answer = node.admit("refused")
    assert not answer.is_admitted
    assert "can't be written" in answer.refusal
    assert "check the disk" in answer.refusal
    assert entries(node) == {"old": "served"}
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
    assert_old_keeps_its_card(node)
    assert process.poll() is None


@shows(
    "R4",
    fault="the folder of the record can't be written",
    happens="pods with cards are refused with the reason; a restart in that state starts, reports "
    "and counts what runs",
)
def test_unwritable_folder_refuses_and_the_daemon_starts_all_the_same(rig: Rig) -> None:
    rig.record.rename(rig.root / "aside")
    rig.record.write_text("no folder")
    place(rig, "refused", 2)
    answer = rig.admit("refused")
    assert not answer.is_admitted
    assert "can't be written" in answer.refusal
    assert rig.metric("record_write_failures_total") == 1
    rig.restart()
    assert rig.register_text
    eventually(lambda: (rig.metric("card_memory_granted_bytes", uuid=uuid(1)) or 0) > 0, LIMIT_S)
    rig.record.unlink()  # the record is written as a whole, into a new folder
    eventually((rig.record / "grants.record").exists, LIMIT_S)
    assert_old_keeps_its_card(rig)


@shows(
    "R5",
    fault="the clock goes back by years, or forward",
    happens="nothing: times in the record are for people only",
)
@pytest.mark.parametrize("time_s", [0.0, 4e9])
def test_clock_jumps_and_entries_stay(rig: Rig, time_s: float) -> None:
    rig.stop()
    ledger = ledger_in(rig.record)
    for entry in ledger.entries():
        ledger.put(replace(entry, time_s=time_s))
    rig.start()
    assert entries(rig) == {"old": "served"}
    assert_old_keeps_its_card(rig)


WRITER = """
    import sys
    from pathlib import Path
    from tests.fakes.ledgers import an_entry, ledger_in

    ledger = ledger_in(Path(sys.argv[1]))
    first = int(sys.argv[2])
    for n in range(first, first + 100_000):
        ledger.put(an_entry(f"p{n}", answer="x" * 2000))
        ledger.free({f"uid-p{n - 50}"})
        print(n, flush=True)
"""


@shows(
    "R6",
    fault="the daemon is killed at any moment while it writes the record",
    happens="every grant whose answer could leave is on record; there is no half-written file",
)
def test_killed_at_any_moment_every_answer_is_on_record(tmp_path: Path) -> None:
    first = 0
    for kill in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path / "r"), str(first)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        with writer.stdout as answers:
            for _ in range(1 + kill * 3):
                last = int(answers.readline())
            writer.send_signal(signal.SIGKILL)
            rest = [line for line in answers if line.endswith("\n")]
        writer.wait(LIMIT_S)
        last = int(rest[-1]) if rest else last
        ledger = Ledger(RecordFile(tmp_path / "r", "grants"), CODEC)
        assert ledger.load().state is State.WHOLE
        pods = {entry.pod for entry in ledger.entries()}
        assert {
            f"p{n}" for n in range(max(last - 48, 0), last + 1)
        } <= pods  # the next write frees another
        first = last + 1


@shows(
    "R6",
    fault="the daemon is killed after its record is written and before kubelet has the answer",
    happens="kubelet fails the pod, whose slice is free again with its phase",
)
def test_killed_between_record_and_answer_the_slice_is_free_again(
    node: Rig, process: subprocess.Popen[bytes]
) -> None:
    place(node, "lost", 2)
    node.lock("lost")
    node.api.fail_next("patch", "pods", "hang")
    answers: list[Admission] = []
    admission = threading.Thread(target=lambda: answers.append(node.admit("lost")))
    admission.start()
    eventually(lambda: "lost" in entries(node), LIMIT_S)  # next comes the patch, then the answer
    process.send_signal(signal.SIGKILL)
    process.wait(LIMIT_S)
    admission.join(LIMIT_S)
    assert not answers[0].is_admitted
    node.api.faults.clear()
    assert node.lock_text
    again = launch(node)
    try:
        eventually(lambda: not node.lock_text, LIMIT_S)
        eventually(lambda: entries(node) == {"old": "served"}, LIMIT_S)
        assert_serves(node, "next", 2)
        place(node, "greedy", 1)
        assert not node.admit("greedy").is_admitted
        assert len(list(node.plugins.glob("hami-*.sock"))) == 1
    finally:
        again.kill()
        again.wait(LIMIT_S)


@shows(
    "R7",
    fault="the record is of a newer version: the daemon was rolled back",
    happens="it is kept aside, and rebuilt; log, metric and an Event about the node say so, and "
    "the newer version finds it again",
)
def test_newer_record_is_kept_aside_and_rebuilt(rig: Rig) -> None:
    rig.stop()
    RecordFile(rig.record, "grants", version=2).save(b"of the future")
    newer = file_of(rig).read_bytes()
    rig.start()
    eventually(lambda: rig.metric("record_rebuilt_total", reason="newer") == 1, LIMIT_S)
    aside = rig.record / "grants.v2.newer"
    assert aside.read_bytes() == newer
    (why,) = eventual_events(rig)
    assert f"is of the newer format 2; it is kept as {aside}: what containers hold was read" in why
    wait_recorded(rig, old="rebuilt")
    assert_old_keeps_its_card(rig)


@shows(
    "R8",
    fault="power is lost before the record is on the disk",
    happens="the file is cut, or lacks the last second; what is missing is added from kubelet's "
    "list and the pods",
)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_power_loss_cuts_the_file(rig: Rig, share: float) -> None:
    rig.stop()
    raw = file_of(rig).read_bytes()
    file_of(rig).write_bytes(raw[: int(len(raw) * share)])
    rig.start()
    wait_recorded(rig, old="rebuilt")
    assert_old_keeps_its_card(rig)


def test_power_loss_leaves_the_record_of_before(rig: Rig) -> None:
    before = file_of(rig).read_bytes()
    assert_serves(rig, "late", 3)
    rig.stop()
    file_of(rig).write_bytes(before)
    rig.start()
    wait_recorded(rig, old="served", late="adopted")
    place(rig, "greedy", 3)
    assert not rig.admit("greedy").is_admitted


@shows(
    "R9",
    fault="somebody edits the annotations of a running pod",
    happens="the record counts: its cards stay taken; log and metric show the difference",
)
@pytest.mark.parametrize("text", [None, "", f"{uuid(1)},NVIDIA,1,0:;", "rubbish,,:"])
def test_edited_annotations_free_nothing(rig: Rig, text: str | None) -> None:
    keys = (nvidia_names.POD_ALLOCATED, nvidia_names.POD_TO_ALLOCATE)
    rig.api.annotate("pods", "old", dict.fromkeys(keys, text), "default")
    rig.wait_seen("old")
    eventually(lambda: rig.metric("record_drift_pods") == 1, LIMIT_S)
    rig.restart()
    assert_old_keeps_its_card(rig)
