"""What makes HAMi's MIG nodes fragile, on the real chain down to the driver's C library."""

from __future__ import annotations

import json

import pytest

from hami_node.wire import names
from tests.fakes.pods import Box, reservation
from tests.integration.mig_rig import BY_ROWS, BY_TEMPLATE, ROWS, SPARE, MigRig, Row, Slot, visible
from tests.integration.rig import GPU
from tests.nvml_stub.control import UUIDS
from tests.reliability import shows

SMALL, LAST = ("1g.5gb", 6), ("1g.5gb", 5)
PID = 4242
"""Of a process that runs on an instance."""
DESTROYS = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")


@pytest.fixture
def rig(bare_mig: MigRig) -> MigRig:
    """A node in MIG mode that serves."""
    bare_mig.launch()
    return bare_mig


def refusal(rig: MigRig, name: str) -> str:
    answer = rig.admit(name)
    assert not answer.is_admitted
    return answer.refusal


def test_pods_of_both_generations_get_instances_of_their_own(rig: MigRig) -> None:
    new, old = rig.serve("new", Row("2g.10gb", 4)), rig.serve("old", Slot(2))
    assert new == rig.at(4).uuid
    assert rig.rows("new")[0]["migUUID"] == new
    assert rig.places() == [("2g.10gb", 4)]
    ((profile, _),) = rig.places(BY_TEMPLATE)
    assert profile == "2g.10gb"
    assert old == rig.instances(BY_TEMPLATE)[0].uuid
    rig.delete("new")
    rig.delete("old")
    rig.wait_places()
    rig.wait_places(number=BY_TEMPLATE)


# -- 1: a busy instance ----------------------------------------------------------------------------
@shows(
    "M1",
    fault="a pod is gone, and a process is left on its MIG instance",
    happens="the instance stays and blocks its own place alone: pods on other places and cards are "
    "served, an Event names the process, and the instance goes once the process has ended",
)
def test_hazard_01_busy_instance_of_a_gone_pod_blocks_its_own_place_only(rig: MigRig) -> None:
    stale = rig.serve("gone", Row())
    rig.hardware.run(stale, PID)
    rig.delete("gone")
    assert rig.serve("beside", Row(start=5)) == rig.at(5).uuid
    assert rig.serve("elsewhere", Row(card=SPARE)) == rig.at(6, SPARE).uuid
    assert rig.serve("older", Slot(0)) == rig.instances(BY_TEMPLATE)[0].uuid
    rig.divide("same", {"main": [Row()]})
    why = refusal(rig, "same")
    assert "default/same/main" in why
    rig.wait(lambda: any(str(PID) in text for text in rig.events("MigInstanceBusy")))
    assert rig.at(6).uuid == stale
    rig.hardware.end(stale)
    rig.wait_places(LAST)
    rig.wait(lambda: SMALL in rig.offered())
    again = rig.serve("later", Row())
    assert again == rig.at(6).uuid != stale


# -- 2: a terminating pod --------------------------------------------------------------------------
@shows(
    "M2",
    fault="a pod with an idle MIG instance is deleted and uses its grace period",
    happens="its instance stays until the pod is gone from the API server and from kubelet's list",
)
def test_hazard_02_terminating_pod_keeps_its_idle_instance(rig: MigRig) -> None:
    own = rig.serve("p", Row())
    rig.begin_deletion("p")
    rig.serve("next", Row(start=5))  # a whole call, and passes around it
    rig.delete_in_api("p")
    rig.serve("third", Row(start=4))
    assert rig.at(6).uuid == own, "kubelet has it still"
    rig.kubelet.remove("default", "p")
    rig.wait_places(LAST, ("1g.5gb", 4))


# -- 3: an instance of somebody before -------------------------------------------------------------
@shows(
    "M3",
    fault="a pod is gone, its process is not, and a new pod is to have the same place at once",
    happens="the new pod is refused and told of the process; with no process left it gets an "
    "instance of its own, under another UUID",
)
def test_hazard_03_new_pod_never_gets_an_instance_with_a_strangers_process(rig: MigRig) -> None:
    first = rig.serve("a", Row())
    rig.hardware.run(first, PID)
    rig.delete("a")
    rig.divide("b", {"main": [Row()]})
    why = refusal(rig, "b")
    assert str(PID) in why, why
    rig.hardware.end(rig.at(6).uuid)
    rig.wait_places()
    second = rig.serve("c", Row())
    rig.delete("c")
    third = rig.serve("d", Row())  # at once
    assert len({first, second, third}) == 3
    assert third == rig.at(6).uuid


# -- 6: kill -9 ------------------------------------------------------------------------------------
@shows(
    "M6",
    fault="the daemon is killed between the GPU instance and the compute instance",
    happens="the next one removes what is left, releases its pod's node lock, and serves the place",
    lost="the pod of that call: kubelet fails it",
)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("change", [1, 2], ids=["gpu-instance", "compute-instance"])
def test_hazard_06_kill_between_two_calls_leaves_neither_instance_nor_lock(
    rig: MigRig, change: int, moment: str
) -> None:
    other = rig.serve("other", Row(start=0))
    rig.show(f"nth kill changes * {change} {moment} kill")
    rig.divide("p", {"main": [Row()]}, is_locked=True)
    refusal(rig, "p")
    rig.wait_dead()
    rig.show()
    assert rig.lock_text
    rig.launch()
    rig.wait(lambda: not rig.lock_text)
    rig.wait_places(("1g.5gb", 0))
    assert rig.at(0).uuid == other
    assert rig.serve("next", Row()) == rig.at(6).uuid


@shows(
    "G2",
    fault="the daemon is killed at a call that destroys the MIG instance of a pod that has ended",
    happens="the next one goes on with it and serves the place; instances of living pods are as "
    "they were",
)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("change", [1, 2], ids=["compute-instance", "gpu-instance"])
def test_hazard_06_kill_while_an_instance_is_destroyed_the_next_daemon_goes_on(
    rig: MigRig, change: int, moment: str
) -> None:
    other = rig.serve("other", Row(start=0))
    rig.serve("p", Row())
    rig.show(f"nth kill changes * {change} {moment} kill")
    rig.delete("p")
    rig.wait_dead()
    rig.show()
    rig.launch()
    rig.wait_places(("1g.5gb", 0))
    assert rig.at(0).uuid == other
    assert rig.serve("next", Row()) == rig.at(6).uuid


# -- 7: rows that anybody may write ----------------------------------------------------------------
@shows(
    "M7",
    fault="pods with unreadable or foreign MIG rows are on the node, some without any card",
    happens="nothing is read of a pod that asks for no card; one that does is refused by name; "
    "every other pod is served, and instances are made and removed as before",
)
@pytest.mark.parametrize("text", ["garbage", "[", '[{"gpuUUID":1}]', "[" * 100_000, "[{}]"])
def test_hazard_07_unreadable_rows_of_one_pod_touch_nobody_else(rig: MigRig, text: str) -> None:
    first = rig.serve("first", Row(start=5))
    stranger = Box(cards=0)
    rig.bind("stranger", [stranger], {ROWS: text})
    rig.set_phase("stranger", "Running")
    grants = f"{Row(start=4).part};"
    notes = reservation(grants) | {ROWS: text}
    rig.bind("asks", [Box(memory_mib=4000)], notes)
    why = refusal(rig, "asks")
    assert "default/asks/main" in why
    assert ROWS in why
    assert rig.serve("next", Row()) == rig.at(6).uuid
    rig.kill()
    rig.launch()
    assert rig.serve("third", Row(start=4)) == rig.at(4).uuid
    assert rig.at(5).uuid == first
    rig.delete("next")
    rig.wait_places(LAST, ("1g.5gb", 4))


def test_hazard_07_rows_that_claim_a_neighbours_instance_get_nothing_of_it(rig: MigRig) -> None:
    victim = rig.serve("victim", Row())
    row = rig.rows("victim")[0]
    rig.bind("thief", [Box(cards=0)], {ROWS: json.dumps([row])})
    rig.set_phase("thief", "Running")
    notes = reservation(f"{Row().part};") | {ROWS: json.dumps([row])}
    rig.bind("bold", [Box(memory_mib=4000)], notes)
    assert "default/bold/main" in refusal(rig, "bold")
    rig.delete("thief")
    rig.delete("bold")
    assert rig.serve("next", Row(start=5)) == rig.at(5).uuid
    assert rig.at(6).uuid == victim
    rig.delete("victim")
    rig.wait_places(LAST)


@pytest.mark.parametrize("is_garbage", [True, False], ids=["garbage", "a neighbour's"])
def test_hazard_07_rows_that_a_running_pod_rewrites_are_not_believed(
    rig: MigRig, *, is_garbage: bool
) -> None:
    own, other = rig.serve("p", Row()), rig.serve("neighbour", Row(start=5))
    text = "garbage" if is_garbage else rig.pod("neighbour").annotations[ROWS]
    rig.api.annotate("pods", "p", {ROWS: text}, "default")
    rig.kill()
    rig.launch()
    rig.serve("next", Row(start=4))
    assert (rig.at(6).uuid, rig.at(5).uuid) == (own, other)
    rig.delete("neighbour")
    rig.wait_places(SMALL, ("1g.5gb", 4))
    rig.delete("p")
    rig.wait_places(("1g.5gb", 4))


# -- 9: other writers ------------------------------------------------------------------------------
@shows(
    "M9",
    fault="others write to the pod while its instance is made: labels, and the rows themselves",
    happens="the pod is served with the one patch; only where its own rows were rewritten it is "
    "tried again, and what others have written stays",
)
@pytest.mark.parametrize("is_about_rows", [False, True], ids=["anything", "rows"])
def test_hazard_09_other_writers_of_the_pod_do_not_fail_it(
    rig: MigRig, *, is_about_rows: bool
) -> None:
    rig.divide("p", {"main": [Row()]})
    rig.show("nth slow nvmlGpuInstanceCreateComputeInstanceWithPlacement * 1 before hang 30")
    wait = rig.admit_meanwhile("p")
    rig.wait(lambda: len(rig.instances()) == 1)
    rows = json.loads(rig.pod("p").annotations[ROWS])
    theirs = [{**rows[0], "note": "theirs"}] if is_about_rows else rows
    rig.api.annotate("pods", "p", {"their/word": "x", ROWS: json.dumps(theirs)}, "default")
    rig.api.forget_requests()
    rig.show()
    answer = wait()
    assert answer.is_admitted, answer.refusal
    (row,) = rig.rows("p")
    assert row["migUUID"] == visible(answer) == rig.at(6).uuid
    assert row.get("note") == ("theirs" if is_about_rows else None)
    assert rig.pod("p").annotations["their/word"] == "x"
    assert rig.bind_phase("p") == names.PHASE_SUCCESS


# -- 10: percentages -------------------------------------------------------------------------------
def test_hazard_10_pod_of_the_whole_card_by_percent_is_served(rig: MigRig) -> None:
    whole = Row("7g.40gb", 0)
    rig.divide("p", {"main": [whole]}, [Box(memory_percent=100)])
    answer = rig.admit("p")
    assert answer.is_admitted, answer.refusal
    assert visible(answer) == rig.at(0).uuid
    assert rig.places() == [("7g.40gb", 0)]


# -- 16: a reboot ----------------------------------------------------------------------------------
def test_hazard_16_instances_that_are_gone_at_the_start_are_made_again_and_said(
    rig: MigRig,
) -> None:
    lost, old = rig.serve("p", Row("2g.10gb", 4)), rig.serve("old", Slot(0))
    templated = rig.places(BY_TEMPLATE)
    rig.kill()
    for number in (BY_ROWS, BY_TEMPLATE):
        for instance in rig.instances(number):
            rig.hardware.destroy(UUIDS[number], instance.gi)
    rig.launch()
    rig.wait_places(("2g.10gb", 4))
    rig.wait_places(*templated, number=BY_TEMPLATE)
    rig.wait(lambda: len(rig.events("MigInstanceReplaced")) == 2)
    told = "".join(rig.events("MigInstanceReplaced"))
    for before, now in ((lost, rig.at(4).uuid), (old, rig.instances(BY_TEMPLATE)[0].uuid)):
        assert before != now
        assert before in told
        assert now in told
    assert told.count("delete the pod") == 2


# -- 18: one of two containers ---------------------------------------------------------------------
@shows(
    "M18",
    fault="the instance of a pod's first container is made, that of the second can't be",
    happens="the pod is refused with the reason; the first one's instance goes once the pod has "
    "failed, and not before",
)
def test_hazard_18_instance_of_the_first_container_goes_when_the_pod_has_failed(
    rig: MigRig,
) -> None:
    boxes = [Box(name="a", memory_mib=4000), Box(name="b", memory_mib=4000)]
    rig.divide("p", {"a": [Row()], "b": [Row(start=5)]}, boxes, is_locked=True)
    rig.show("nth no nvmlDeviceCreateGpuInstanceWithPlacement * 2 before fail 999")
    answer = rig.kubelet.admit(rig.pod("p"), GPU)
    assert not answer.is_admitted
    assert "default/p/b" in answer.refusal
    assert set(answer.responses) == {"a"}
    rig.wait(lambda: rig.bind_phase("p") == names.PHASE_FAILED and not rig.lock_text)
    rig.serve("next", Row(start=0))  # with passes before and after
    assert rig.places() == [("1g.5gb", 0), SMALL], "its pod has not failed yet"
    rig.set_phase("p", "Failed")
    rig.wait_places(("1g.5gb", 0))
    assert not [it for it in rig.hardware.changes() if it.function in DESTROYS and it.result]
