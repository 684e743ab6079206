"""kubelet never waits longer than the budget, and what follows it is written in the end."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from hami_node.errors import AllocationError, Conflict
from hami_node.record.file import Loaded, RecordFile
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import NODE, Box, Part, pod_body
from tests.fakes.waiting import eventually
from tests.integration.desk import World
from tests.integration.rig import GPU, LIMIT_S, Rig
from tests.reliability import shows

BOX = Box(memory_mib=1000)
PART = {"main": [Part(uuid=uuid(1), memory_mib=1000)]}
IDS = [f"{uuid(1)}-0"]
BUDGET_S = 10.0
"""What is promised for each call of kubelet."""
SLACK_S = 5.0
"""What a busy machine may add; the disk hangs for much longer."""


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        made.budget_s = 2.0
        yield made


# -- the budget ------------------------------------------------------------------------------------
@shows(
    "N4",
    fault="the API server accepts every request and answers none",
    happens="kubelet has its refusal, with the reason, within 10 s; phase and lock follow when the "
    "API server answers again",
    lost="our Event, if that takes longer than some seconds; kubelet's own has the sentence",
)
def test_api_server_hangs_kubelet_is_answered_within_the_budget(rig: Rig) -> None:
    pod = rig.place("p", [BOX], PART, is_locked=True)
    rig.wait_node_seen()
    rig.api.fail_next("*", "*", "hang", 1000)
    began_s = time.monotonic()
    answer = rig.kubelet.admit(pod, GPU)  # two calls: preferred IDs, then Allocate
    took_s = time.monotonic() - began_s
    assert "default/p/main" in answer.refusal
    assert "did not answer in time" in answer.refusal
    assert took_s < 2 * BUDGET_S
    rig.api.faults.clear()
    eventually(lambda: rig.bind_phase("p") == names.PHASE_FAILED, 2 * LIMIT_S)
    eventually(lambda: not rig.lock_text, 2 * LIMIT_S)
    eventually(lambda: rig.events("AllocationRefused"), 2 * LIMIT_S)


@shows(
    "N4",
    fault="the first patch of the pod hangs, and the API server answers the second",
    happens="the pod is served within the same call",
)
def test_first_patch_hangs_the_second_serves(rig: Rig) -> None:
    rig.place("p", [BOX], PART)
    rig.api.fail_next("patch", "pods", "hang", 1)
    assert rig.admit("p").is_admitted
    assert rig.bind_phase("p") == names.PHASE_SUCCESS


def test_pod_of_one_container_costs_one_request(rig: Rig) -> None:
    rig.place("p", [BOX], PART)
    rig.api.forget_requests()
    assert rig.admit("p").is_admitted
    ours = [
        request
        for request in rig.api.requests()
        if request.verb != "watch" and "hami-node" in request.user_agent
    ]
    assert [(request.verb, request.resource) for request in ours] == [("patch", "pods")]


def test_pod_that_the_watch_lacks_is_read_once_for_both_calls(world: World) -> None:
    desk = world.desk()
    world.hidden.add("p")
    world.place("p", [BOX], PART, is_locked=False)
    world.api.forget_requests()
    chosen = desk.allocator.prefer(IDS, (), 1, desk.deadline())
    world.allocate("p", chosen)
    made = [(r.verb, r.resource) for r in world.api.requests() if r.verb != "watch"]
    assert made == [("get", "pods"), ("patch", "pods")]


@shows(
    "N4",
    fault="the API server does not answer while the daemon starts",
    happens="an Allocate waits for the rest of its budget and no longer",
)
def test_start_without_an_api_server_does_not_hold_kubelet(node: Rig) -> None:
    pod = node.place("p", [BOX], PART)
    node.api.go_down()
    done: list[tuple[Admission, float]] = []

    def admit() -> None:
        node.wait_registered()
        assert node.daemon is not None
        node.daemon.resources[0].allocator._budget_s = 1.0  # the whole budget takes too long here
        began_s = time.monotonic()
        answer = node.kubelet.admit(pod, GPU)
        done.append((answer, time.monotonic() - began_s))
        node.api.start()

    admitting = threading.Thread(target=admit)
    admitting.start()
    node.start()
    admitting.join(2 * LIMIT_S)
    ((answer, took_s),) = done
    assert "has just started and the API server has not answered for 1 s" in answer.refusal
    assert "Unavailable" in answer.refusal
    assert took_s < BUDGET_S


@shows(
    "N4",
    fault="another call on the node takes all of the time",
    happens="the call behind it is refused when its own time is over",
)
def test_busy_node_the_second_call_does_not_wait_for_ever(world: World) -> None:
    desk = world.desk()
    world.place("p", [BOX], PART)
    with desk.one_at_a_time, pytest.raises(AllocationError, match="busy with another call"):
        world.allocate("p", IDS)
    world.allocate("p", IDS)


@shows(
    "N4",
    fault="the disk with the record, or the one with the limiter, hangs during the call",
    happens="kubelet has its refusal, with the reason; what follows is written later, and the next "
    "pod is served when the disk answers",
)
@pytest.mark.parametrize("disk", ["record", "limiter"])
def test_disk_hangs_kubelet_is_answered_and_the_next_pod_is_served(world: World, disk: str) -> None:
    desk, released = world.desk(), threading.Event()
    hangs = (world.record, world.hook)[disk == "limiter"]
    world.disk = lambda folder: folder != hangs or released.wait(60)
    world.place("p", [BOX], PART)
    began_s = time.monotonic()
    with pytest.raises(AllocationError, match="check the disk"):
        world.allocate("p", IDS)
    assert time.monotonic() - began_s < world.budget_s + SLACK_S
    assert world.bind_phase("p") == names.PHASE_FAILED
    released.set()
    world.kubelet_fails("p")
    world.place("q", [BOX], PART)
    eventually(lambda: not desk.ledger._disk.is_late)
    world.allocate("q", IDS)
    assert world.bind_phase("q") == names.PHASE_SUCCESS


@shows(
    "R3",
    fault="the disk of the record hangs when the daemon starts",
    happens="it registers, reports and refuses pods with the reason, until the disk answers",
)
def test_start_on_a_disk_that_hangs_refuses_with_the_reason(
    node: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, load = threading.Event(), RecordFile.load

    def load_late(file: RecordFile) -> Loaded:
        answers.wait(LIMIT_S)
        return load(file)

    monkeypatch.setattr(RecordFile, "load", load_late)
    slot = node.start().resources[0].allocator
    slot._budget_s = 1.0  # the whole budget takes too long here
    node.place("p", [BOX], PART)
    refusal = node.admit("p").refusal
    assert "has just started and the disk of its record has not answered for 1 s" in refusal
    answers.set()
    slot._budget_s = LIMIT_S
    node.place("q", [BOX], PART)
    assert node.admit("q").is_admitted


# -- what follows ----------------------------------------------------------------------------------
@shows(
    "N4",
    fault="the API server is away after a refusal, and the daemon restarts before it is back",
    happens="the next daemon finds the pod that kubelet has failed, writes its phase and frees the "
    "lock",
    lost="our Event; kubelet's own has the sentence",
)
def test_refusal_is_followed_up_by_the_next_daemon(world: World) -> None:
    world.desk()
    world.place("p", [BOX], PART)
    world.api.fail_next("patch", "*", "reset", 1000)
    with pytest.raises(AllocationError):
        world.allocate("p", IDS)
    world.kubelet_fails("p")
    world.api.faults.clear()
    assert (world.bind_phase("p"), bool(world.lock_text)) == (names.PHASE_ALLOCATING, True)
    desk = world.desk()
    desk.follow_up()
    assert world.bind_phase("p") == names.PHASE_FAILED
    desk.keeper.look()  # once the lock has stood a while
    assert world.lock_text == ""


@shows(
    "N4",
    fault="a refused pod is replaced by one of the same name, which is bound and locks the node, "
    "before its phase is written",
    happens="the new pod's phase and lock stay as they are",
)
def test_refusal_is_never_followed_up_at_a_namesake(world: World) -> None:
    desk = world.desk()
    world.place("p", [BOX], PART)
    world.api.fail_next("patch", "*", 503, 1000)
    with pytest.raises(AllocationError):
        world.allocate("p", IDS)
    world.api.faults.clear()
    notes = dict(world.pod("p").annotations)
    world.api.delete("pods", "p", "default")
    body = pod_body("p", [BOX], notes)
    body["metadata"]["uid"] = "uid-new"
    world.api.create("pods", body)
    lock = "2099-01-01T00:00:09Z,default,p"
    world.api.annotate("nodes", NODE, {names.NODE_LOCK: lock})
    desk.follow_up()
    assert (world.bind_phase("p"), world.lock_text) == (names.PHASE_ALLOCATING, lock)


@shows(
    "N4",
    fault="a patch that got no answer in time is applied after the pod was refused",
    happens="it does not apply: it tests the phase that the refusal has written",
)
def test_late_patch_does_not_turn_a_refusal_into_a_success(world: World) -> None:
    desk = world.desk()
    world.place("p", [BOX], PART)
    candidate = desk.allocator._identity.find(IDS, desk.deadline())
    late = desk.allocator._writer._served_patch(candidate, (), "")
    world.api.fail_next("patch", "pods", "reset", 1000)
    world.budget_s = 1.5
    with pytest.raises(AllocationError):
        world.allocate("p", IDS)
    world.api.faults.clear()
    desk.follow_up_until(lambda: world.bind_phase("p") == names.PHASE_FAILED)
    with pytest.raises(Conflict):
        desk.kube.json_patch_pod("default", "p", late)
    assert desk.ledger.entries() == ()


@shows(
    "N4",
    fault="the answer to the patch is lost each time, and then the time is over",
    happens="the pod is refused: its entry leaves the ledger and its phase becomes failed, "
    "although the patch was applied",
)
def test_lost_answers_until_the_end_leave_a_refused_pod(world: World) -> None:
    desk = world.desk()
    world.place("p", [BOX], PART)
    world.api.fail_next("patch", "pods", "reset-after", 1000)
    world.api.fail_next("get", "pods", "reset", 1000)
    with pytest.raises(AllocationError, match="default/p/main"):
        world.allocate("p", IDS)
    world.api.faults.clear()
    desk.follow_up_until(lambda: world.bind_phase("p") == names.PHASE_FAILED)
    assert nvidia_names.POD_TO_ALLOCATE in world.pod("p").annotations
    assert desk.ledger.entries() == ()


@shows(
    "N4",
    fault="the API server forbids writing the phase for a while",
    happens="it is tried again with growing pauses until it is written",
)
def test_phase_is_tried_again_until_it_is_written(rig: Rig) -> None:
    pod = rig.place("p", [BOX], {"main": [Part(uuid=uuid(1), memory_mib=5000)]})
    rig.api.fail_next("patch", "pods", 403, 3)
    assert "more memory than the container asks for" in rig.kubelet.admit(pod, GPU).refusal
    eventually(lambda: rig.bind_phase("p") == names.PHASE_FAILED, LIMIT_S)


@shows(
    "N4",
    fault="the disk with the record is full or gone when a pod is to be served",
    happens="the pod is refused with the reason; its phase, the lock and the Event are written",
)
def test_refusal_for_want_of_a_disk_is_followed_up(rig: Rig) -> None:
    rig.serve_one("first")  # which makes the folder
    rig.record.rename(rig.root / "aside")
    rig.record.write_text("no folder")
    rig.place("p", [BOX], PART, is_locked=True)
    rig.wait_node_seen()
    assert "can't be written" in rig.admit("p").refusal
    eventually(lambda: rig.bind_phase("p") == names.PHASE_FAILED, LIMIT_S)
    eventually(lambda: not rig.lock_text, LIMIT_S)
    eventually(lambda: rig.events("AllocationRefused"), LIMIT_S)


# -- the log ---------------------------------------------------------------------------------------
@shows(
    "N4",
    fault="nobody reads the daemon's standard error any more, and its pipe is full",
    happens="kubelet is answered as ever, and the daemon ends in good order; "
    "`hami_node_log_lines_dropped_total` counts what the queue no longer takes",
    lost="lines of the log beyond 1,000",
)
def test_log_that_nobody_reads_holds_nobody_up(node: Rig) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, bytes(4096))
    flags = [f"--{name}={value}" for name, value in node.flags().items()]
    command = [sys.executable, "-m", "hami_node", "run", *flags]
    process = subprocess.Popen(command, stderr=writer)
    try:
        os.close(writer)
        node.place("p", [BOX], PART)
        eventually(lambda: node.kubelet.allocatable(GPU), LIMIT_S)
        assert node.admit("p").is_admitted
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait(LIMIT_S)
        os.close(reader)
