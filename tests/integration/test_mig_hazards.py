"""What makes HAMi's MIG nodes fragile, on the real chain down to the driver's C library."""

from __future__ import annotations

import json

import pytest

from hami_node.wire import names
from tests.fakes.pods import Box, reservation
from tests.fakes.waiting import eventually
from tests.integration.mig_rig import BY_ROWS, BY_TEMPLATE, ROWS, SPARE, MigRig, Row, Slot, visible
from tests.integration.rig import GPU, LIMIT_S
from tests.nvml_stub.control import UUIDS
from tests.reliability import shows

SMALL, LAST = ("1g.5gb", 6), ("1g.5gb", 5)
PID = 4242
"""Of a process that runs on an instance."""
DESTROYS = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")


def refusal(mig: MigRig, name: str) -> str:
    answer = mig.admit(name)
    assert not answer.is_admitted
    return answer.refusal


# -- 1: a busy instance ----------------------------------------------------------------------------
@shows(
    "M1",
    fault="a pod is gone, and a process is left on its MIG instance",
    happens="the instance stays and blocks its own place alone: pods on other places and cards are "
    "served, an Event names the process, and the instance goes once the process has ended",
)
def test_hazard_01_busy_instance_of_a_gone_pod_blocks_its_own_place_only(mig: MigRig) -> None:
    stale = mig.serve("gone", Row())
    mig.hardware.run(stale, PID)
    mig.delete("gone")
    assert mig.serve("beside", Row(start=5)) == mig.at(5).uuid
    assert mig.serve("elsewhere", Row(card=SPARE)) == mig.at(6, SPARE).uuid
    assert mig.serve("older", Slot(0)) == mig.instances(BY_TEMPLATE)[0].uuid
    mig.divide("same", {"main": [Row()]})
    why = refusal(mig, "same")
    assert "default/same/main" in why
    eventually(lambda: any(str(PID) in text for text in mig.events("MigInstanceBusy")), LIMIT_S)
    assert mig.at(6).uuid == stale
    mig.hardware.end(stale)
    mig.wait_places(LAST)
    eventually(lambda: SMALL in mig.offered(), LIMIT_S)
    again = mig.serve("later", Row())
    assert again == mig.at(6).uuid != stale


# -- 2: a terminating pod --------------------------------------------------------------------------
@shows(
    "M2",
    fault="a pod with an idle MIG instance is deleted and uses its grace period",
    happens="its instance stays until the pod is gone from the API server and from kubelet's list",
)
def test_hazard_02_terminating_pod_keeps_its_idle_instance(mig: MigRig) -> None:
    own = mig.serve("p", Row())
    mig.begin_deletion("p")
    mig.serve("next", Row(start=5))  # a whole call, and passes around it
    mig.delete_in_api("p")
    mig.serve("third", Row(start=4))
    assert mig.at(6).uuid == own, "kubelet has it still"
    mig.kubelet.remove("default", "p")
    mig.wait_places(LAST, ("1g.5gb", 4))


# -- 3: an instance of somebody before -------------------------------------------------------------
@shows(
    "M3",
    fault="a pod is gone, its process is not, and a new pod is to have the same place at once",
    happens="the new pod is refused and told of the process; with no process left it gets an "
    "instance of its own, under another UUID",
)
def test_hazard_03_new_pod_never_gets_an_instance_with_a_strangers_process(mig: MigRig) -> None:
    first = mig.serve("a", Row())
    mig.hardware.run(first, PID)
    mig.delete("a")
    mig.divide("b", {"main": [Row()]})
    why = refusal(mig, "b")
    assert str(PID) in why, why
    mig.hardware.end(mig.at(6).uuid)
    mig.wait_places()
    second = mig.serve("c", Row())
    mig.delete("c")
    third = mig.serve("d", Row())  # at once
    assert len({first, second, third}) == 3
    assert third == mig.at(6).uuid


# -- 7: rows that anybody may write ----------------------------------------------------------------
@shows(
    "M7",
    fault="pods with unreadable or foreign MIG rows are on the node, some without any card",
    happens="nothing is read of a pod that asks for no card; one that does is refused by name; "
    "every other pod is served, and instances are made and removed as before",
)
def test_hazard_07_unreadable_rows_of_one_pod_touch_nobody_else(mig: MigRig) -> None:
    first = mig.serve("first", Row(start=5))
    texts = ("garbage", "[", '[{"gpuUUID":1}]', "[" * 100_000, "[{}]")
    for number, text in enumerate(texts):
        mig.bind(f"stranger{number}", [Box(cards=0)], {ROWS: text})
        mig.set_phase(f"stranger{number}", "Running")
        asks = f"asks{number}"
        mig.bind(asks, [Box(memory_mib=4000)], reservation(f"{Row(start=4).part};") | {ROWS: text})
        why = refusal(mig, asks)
        assert f"default/{asks}/main" in why
        assert ROWS in why
    assert mig.serve("next", Row()) == mig.at(6).uuid
    mig.stop()
    mig.launch()
    assert mig.serve("third", Row(start=4)) == mig.at(4).uuid
    assert mig.at(5).uuid == first
    mig.delete("next")
    mig.wait_places(LAST, ("1g.5gb", 4))


def test_hazard_07_rows_that_claim_what_is_not_theirs_get_nothing_of_it(mig: MigRig) -> None:
    """A neighbour's instance, somebody else's, and one that is not there."""
    victim = mig.serve("victim", Row())
    foreign = mig.hardware.make(UUIDS[BY_ROWS], "1g.5gb", 4)
    row = mig.rows("victim")[0]
    mig.bind("thief", [Box(cards=0)], {ROWS: json.dumps([row])})
    mig.set_phase("thief", "Running")
    notes = reservation(f"{Row().part};") | {ROWS: json.dumps([row])}
    mig.bind("bold", [Box(memory_mib=4000)], notes)
    assert "default/bold/main" in refusal(mig, "bold")
    forged = (Row(start=4), foreign.uuid, foreign.gi), (Row(start=3), "MIG-none", 11)
    for at, uuid, number in forged:
        identity = {"migUUID": uuid, "gpuInstanceID": number, "computeInstanceID": 0}
        notes = reservation(f"{at.part};", to_allocate=";") | {
            ROWS: json.dumps([at.json(0, 0) | identity]),
            names.POD_BIND_PHASE: names.PHASE_SUCCESS,
        }
        mig.bind(f"forged{at.start}", [Box(memory_mib=4000)], notes)
    assert mig.serve("next", Row(start=5)) == mig.at(5).uuid
    for name in ("thief", "bold", "forged4", "forged3", "next"):
        mig.delete(name)
    mig.wait_places(SMALL, ("1g.5gb", 4))
    assert (mig.at(6).uuid, mig.at(4)) == (victim, foreign)
    assert mig.events("MigInstanceReplaced") == []
    mig.delete("victim")
    mig.wait_places(("1g.5gb", 4))


def test_hazard_07_rows_that_running_pods_rewrite_are_not_believed(mig: MigRig) -> None:
    own = {start: mig.serve(f"p{start}", Row(start=start)) for start in (4, 5, 6)}
    mig.api.annotate("pods", "p4", {ROWS: "garbage"}, "default")
    mig.api.annotate("pods", "p5", {ROWS: mig.pod("p6").annotations[ROWS]}, "default")
    mig.stop()
    mig.launch()
    mig.serve("next", Row(start=3))
    assert {start: mig.at(start).uuid for start in own} == own
    left = {3, *own}
    for start in (6, 5, 4):
        mig.delete(f"p{start}")
        left.discard(start)
        mig.wait_places(*(("1g.5gb", at) for at in left))


# -- 9: other writers ------------------------------------------------------------------------------
@shows(
    "M9",
    fault="others write to the pod while its instance is made: labels, and the rows themselves",
    happens="the pod is served with the one patch; only where its own rows were rewritten it is "
    "tried again, and what others have written stays",
)
@pytest.mark.parametrize("is_about_rows", [False, True], ids=["anything", "rows"])
def test_hazard_09_other_writers_of_the_pod_do_not_fail_it(
    mig: MigRig, *, is_about_rows: bool
) -> None:
    mig.divide("p", {"main": [Row()]})
    mig.show("nth slow nvmlGpuInstanceCreateComputeInstanceWithPlacement * 1 before hang 30")
    wait = mig.admit_meanwhile("p")
    eventually(lambda: len(mig.instances()) == 1, LIMIT_S)
    rows = json.loads(mig.pod("p").annotations[ROWS])
    theirs = [{**rows[0], "note": "theirs"}] if is_about_rows else rows
    mig.api.annotate("pods", "p", {"their/word": "x", ROWS: json.dumps(theirs)}, "default")
    mig.api.forget_requests()
    mig.show()
    answer = wait()
    assert answer.is_admitted, answer.refusal
    (row,) = mig.rows("p")
    assert row["migUUID"] == visible(answer) == mig.at(6).uuid
    assert row.get("note") == ("theirs" if is_about_rows else None)
    assert mig.pod("p").annotations["their/word"] == "x"
    assert mig.bind_phase("p") == names.PHASE_SUCCESS


# -- 18: one of two containers ---------------------------------------------------------------------
@shows(
    "M18",
    fault="the instance of a pod's first container is made, that of the second can't be",
    happens="the pod is refused with the reason; the first one's instance goes once the pod has "
    "failed, and not before",
)
def test_hazard_18_instance_of_the_first_container_goes_when_the_pod_has_failed(
    mig: MigRig,
) -> None:
    boxes = [Box(name="a", memory_mib=4000), Box(name="b", memory_mib=4000)]
    mig.divide("p", {"a": [Row()], "b": [Row(start=5)]}, boxes, is_locked=True)
    mig.show("nth no nvmlDeviceCreateGpuInstanceWithPlacement * 2 before fail 999")
    answer = mig.kubelet.admit(mig.pod("p"), GPU)
    assert not answer.is_admitted
    assert "default/p/b" in answer.refusal
    assert set(answer.responses) == {"a"}
    eventually(lambda: mig.bind_phase("p") == names.PHASE_FAILED and not mig.lock_text, LIMIT_S)
    mig.serve("next", Row(start=0))  # with passes before and after
    assert mig.places() == [("1g.5gb", 0), SMALL], "its pod has not failed yet"
    mig.set_phase("p", "Failed")
    mig.wait_places(("1g.5gb", 0))
    assert not [it for it in mig.hardware.changes() if it.function in DESTROYS and it.result]
