"""MIG instances through restarts and outages, on the real chain down to the driver's C library."""

from __future__ import annotations

import json
import shutil

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.integration.mig_rig import (
    BY_ROWS,
    BY_TEMPLATE,
    ROWS,
    SPARE,
    MigRig,
    Row,
    Slot,
    visible,
)
from tests.integration.rig import GPU
from tests.nvml_stub.control import UUIDS, card
from tests.reliability import shows


@pytest.fixture
def rig(bare_mig: MigRig) -> MigRig:
    """A node in MIG mode that serves."""
    bare_mig.launch()
    return bare_mig


def test_restart_touches_no_instance_and_a_repeated_call_gets_the_same_bytes(rig: MigRig) -> None:
    rig.divide("new", {"main": [Row("2g.10gb", 4)]})
    rig.divide("old", {"main": [Slot(2)]})
    answers = [rig.admit(name) for name in ("new", "old")]
    changes = rig.hardware.changes()
    rig.kill()
    rig.launch()
    for answer in answers:
        again = rig.kubelet.call_again(GPU, answer.device_ids["main"])
        assert again.SerializeToString(deterministic=True) == answer.responses[
            "main"
        ].SerializeToString(deterministic=True)
    assert rig.hardware.changes() == changes
    assert visible(answers[1]) == rig.instances(BY_TEMPLATE)[0].uuid
    rig.delete("new")
    rig.delete("old")
    rig.wait_places()
    rig.wait_places(number=BY_TEMPLATE)


def test_pod_of_one_container_costs_one_request(rig: MigRig) -> None:
    """One patch; and a read of a pod only where kubelet was faster than the daemon's watch."""
    costs = []
    for start in range(4):
        rig.divide(f"p{start}", {"main": [Row(start=start)]})
        rig.api.forget_requests()
        assert rig.admit(f"p{start}").is_admitted
        ours = [
            (request.verb, request.resource)
            for request in rig.api.state.requests.all()
            if request.verb != "watch" and "hami-node" in request.user_agent
        ]
        assert {resource for _, resource in ours} <= {"pods", "nodes"}  # of nodes: its own report
        costs.append([verb for verb, resource in ours if resource == "pods"])
    assert all(cost in (["patch"], ["get", "patch"]) for cost in costs), costs
    assert ["patch"] in costs


def test_two_instances_in_one_container_and_three_containers_in_a_pod(rig: MigRig) -> None:
    grants = {"a": [Row(start=0), Row(start=1)], "b": [Row(start=2)], "c": [Row("2g.10gb", 4)]}
    rig.divide("p", grants)
    answer = rig.admit("p")
    assert answer.is_admitted, answer.refusal
    wanted = {"a": {0, 1}, "b": {2}, "c": {4}}
    for container, starts in wanted.items():
        uuids = {rig.at(start).uuid for start in starts}
        assert set(visible(answer, container).split(",")) == uuids
    shown = [(row["placement"]["start"], row["migUUID"]) for row in rig.rows("p")]
    assert shown == [(start, rig.at(start).uuid) for start in (0, 1, 2, 4)]
    rig.delete("p")
    rig.wait_places()


@shows(
    "G14",
    fault="the API server refuses the one patch of a pod whose MIG instance is made",
    happens="the pod is refused and its lock freed; the instance goes once the pod has failed, and "
    "its place serves the next one",
)
@pytest.mark.parametrize("fault", [500, "hang"], ids=str)
def test_instance_of_a_pod_that_can_not_be_patched_goes_with_it(
    rig: MigRig, fault: int | str
) -> None:
    rig.divide("p", {"main": [Row()]}, is_locked=True)
    rig.api.fail_next("patch", "pods", fault, 50)
    assert not rig.admit("p").is_admitted
    rig.api.faults.clear()
    rig.wait(lambda: not rig.lock_text)
    rig.wait_places()
    assert rig.serve("next", Row()) == rig.at(6).uuid


@shows(
    "G15",
    fault="pods with MIG instances end while kubelet's list can't be read",
    happens="no instance goes until it is known again who is there; then those of ended pods go",
)
def test_nothing_is_destroyed_while_it_is_unknown_who_is_there(rig: MigRig) -> None:
    rig.serve("ended", Row())
    lives = rig.serve("lives", Row(start=5))
    rig.serve("deleted", Row(start=4))
    changes = rig.hardware.changes()
    rig.kubelet.failing_lists = 10_000
    rig.set_phase("ended", "Succeeded")
    rig.delete("deleted")
    read = rig.kubelet.failing_lists
    rig.wait(lambda: rig.kubelet.failing_lists < read - 3)
    assert rig.hardware.changes() == changes
    rig.kubelet.failing_lists = 0
    rig.wait_places(("1g.5gb", 5))
    assert rig.at(5).uuid == lives


@shows(
    "G16",
    fault="a pod with a MIG instance is deleted by force and made again under its name at once, "
    "while kubelet still has the old one",
    happens="the new one is refused as long as the old one has its place, and then served with an "
    "instance of its own",
)
def test_namesake_waits_for_the_old_pods_instance(rig: MigRig) -> None:
    first = rig.serve("p-0", Row())
    rig.delete_in_api("p-0")
    rig.divide("q", {"main": [Row()]})
    answer = rig.admit("q")
    assert not answer.is_admitted
    assert "default/q/main" in answer.refusal
    assert rig.at(6).uuid == first
    rig.kubelet.remove("default", "p-0")
    rig.divide("p-0", {"main": [Row()]}, uid="uid-of-the-next")  # at once
    answer = rig.admit("p-0")
    assert answer.is_admitted, answer.refusal
    assert visible(answer) == rig.at(6).uuid != first
    assert rig.bind_phase("p-0") == names.PHASE_SUCCESS


def test_rows_after_a_call_are_readable_for_whoever_wrote_them(rig: MigRig) -> None:
    rig.divide("p", {"main": [Row()]})
    before = json.loads(rig.pod("p").annotations[ROWS])
    assert rig.admit("p").is_admitted
    (row,) = rig.rows("p")
    instance = rig.at(6)
    assert row == before[0] | {
        "migUUID": instance.uuid,
        "gpuInstanceID": instance.gi,
        "computeInstanceID": instance.compute[0].id,
    }


def test_pod_is_served_between_two_slow_removals(rig: MigRig) -> None:
    gone = [f"p{start}" for start in range(6)]
    for start, name in enumerate(gone):
        rig.serve(name, Row(start=start))
    rig.divide("next", {"main": [Row()]})
    rig.show("hang nvmlGpuInstanceDestroy 0 2")
    for name in gone:
        rig.delete(name)
    rig.wait(lambda: len(rig.instances()) < len(gone))
    answer = rig.admit("next")
    assert answer.is_admitted, answer.refusal
    assert len(rig.instances()) > 1
    rig.show()
    rig.wait_places(("1g.5gb", 6))


def test_slow_removals_on_one_card_leave_another_time_to_make(rig: MigRig) -> None:
    gone = [f"p{start}" for start in range(6)]
    for start, name in enumerate(gone):
        rig.serve(name, Row(start=start, card=SPARE))
    rig.divide("next", {"main": [Row()]})
    slow = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")
    made = ("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance")
    rig.show(*(f"hang {call} * 2" for call in slow), *(f"hang {call} * 1" for call in made))
    for name in gone:
        rig.delete(name)
    rig.wait(lambda: not rig.at(0, SPARE).compute)
    answer = rig.admit("next")
    assert answer.is_admitted, answer.refusal
    assert len(rig.instances(SPARE)) > 1
    rig.show()
    rig.wait_places(number=SPARE)


def test_next_pod_waits_while_the_driver_is_slow_to_let_go(rig: MigRig) -> None:
    first = rig.serve("gone", Row())
    lingering = card(0, mig="enabled", lingers=12)  # IN_USE for about 3 s
    rig.stub.write(lingering, card(1, mig="enabled"), card(2, mig="enabled"))
    rig.delete("gone")
    assert rig.serve("next", Row()) == rig.at(6).uuid != first


def test_refusal_says_what_the_driver_does_not_let_go(rig: MigRig) -> None:
    rig.serve("gone", Row())
    rig.show("fail nvmlGpuInstanceDestroy * 19")
    rig.delete("gone")
    rig.divide("next", {"main": [Row()]})
    assert "1g.5gb at slices 6+1 is being destroyed" in rig.admit("next").refusal


def test_instances_of_an_earlier_plugin_are_known_by_their_pods_rows(rig: MigRig) -> None:
    """As HAMi's plugin of 2.10 leaves a node: its rows, kubelet's list, and no record of ours."""
    theirs = rig.serve("p", Row())
    rig.kill()
    unclaimed = rig.hardware.make(UUIDS[BY_ROWS], "1g.5gb", 0)
    shutil.rmtree(rig.record)
    rig.launch()
    taken = {("1g.5gb", 0), ("1g.5gb", 6)}
    rig.wait(lambda: rig.offered() & taken == {("1g.5gb", 6)})  # whose it is was found
    rig.divide("same", {"main": [Row()]})
    assert "contradicts other" in rig.admit("same").refusal
    assert rig.serve("beside", Row(start=5)) == rig.at(5).uuid
    assert rig.at(6).uuid == theirs
    rig.delete("p")
    rig.wait_places(("1g.5gb", 0), ("1g.5gb", 5))
    assert rig.at(0).uuid == unclaimed.uuid


@pytest.mark.parametrize(
    ("modes", "is_served"), [("mig", True), ("hami-core,mig", True), ("hami-core", False)]
)
def test_wish_for_a_mode_is_kept(rig: MigRig, modes: str, *, is_served: bool) -> None:
    rig.divide("p", {"main": [Row()]})
    rig.api.annotate("pods", "p", {nvidia_names.VGPU_MODE: modes}, "default")
    answer = rig.admit("p")
    assert answer.is_admitted is is_served, answer.refusal
    assert len(rig.instances()) == int(is_served)
