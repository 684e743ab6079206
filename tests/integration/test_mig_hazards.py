"""What makes HAMi's MIG nodes fragile, on the real chain down to the driver's C library."""

from __future__ import annotations

import json

from hami_node.node.report.part_errors import EVENT
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.wire import names
from tests.fakes.pods import Box, reservation
from tests.fakes.waiting import eventually
from tests.integration.mig_rig import BY_ROWS, BY_TEMPLATE, ROWS, SPARE, MigRig, Row, Slot
from tests.integration.rig import LIMIT_S
from tests.nvml_stub.control import UUIDS, sequence
from tests.reliability import shows

SMALL, LAST = ("1g.5gb", 6), ("1g.5gb", 5)
PID = 4242
"""Of a process that runs on an instance."""


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


# -- 19: an instance that fails --------------------------------------------------------------------
@shows(
    "M19",
    fault="the driver blames a reset XID on one MIG instance, 200 times",
    happens="its pod gets one Event with the remedy; the card stays healthy and serves others",
)
def test_hazard_19_an_error_of_an_instance_is_said_to_its_pod_alone(mig: MigRig) -> None:
    mig.serve("a", Row())
    mig.serve("b", Row(start=5))
    sick = mig.at(6)
    mig.show(*(f"xid {next(sequence)} {BY_ROWS} 95 {sick.gi} 0" for _ in range(200)))
    counted = {"pod": "a", "part": sick.uuid, "xid": "95"}
    eventually(lambda: mig.metric("container_part_xid_events_total", **counted) == 200, LIMIT_S)
    eventually(lambda: mig.events(EVENT) != [], LIMIT_S)
    (message,) = mig.events(EVENT)
    assert f"container main, 1g.5gb {sick.uuid} of card {BY_ROWS}: XID 95" in message
    assert "hami.io/device-cordon" in message
    assert all(card.healthy for card in decode_register(mig.register_text))
    mig.serve("c", Row(start=4))
