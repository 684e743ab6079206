"""Reservations that no longer count are taken off the pods: ours, and without a stall."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.extender.parts import ATTEMPTS
from hami_node.extender.sweeper import CLEARING_S
from hami_node.simulate.store import Json
from hami_node.vendors.holding import UNBOUND_S
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_rig import LIMIT_S, ExtenderRig, pod_manifest

pytestmark = pytest.mark.timeout(120)
COUNT = 4


@pytest.fixture
def rig() -> Iterator[ExtenderRig]:
    """Pods p0, p1, ... hold reservations on n0."""
    rig = ExtenderRig()
    rig.write_node("n0", has_identity=True)
    rig.start()
    for number in range(COUNT):
        pod = pod_manifest(f"p{number}", (Box(memory_mib=1000),), {})
        pod["metadata"]["labels"] = {names.POD_NODE: "earlier"}  # so the pod carries it at once
        rig.api.create("pods", pod)
        assert rig.filter(rig.api.read("pods", f"p{number}", "default"), ["n0"])["NodeNames"]
    rig.settle()
    yield rig
    rig.close()


def carriers(rig: ExtenderRig) -> list[str]:
    return sorted(pod.name for pod in rig.pods() if nvidia_names.POD_ALLOCATED in pod.annotations)


def test_leftover_of_another_scheduler_stays_on_its_pod(rig: ExtenderRig) -> None:
    # its own scheduler still means to bind it, and its plugin needs to find the grant then
    rig.edit("p1", lambda body: body["spec"].update(schedulerName="their-scheduler"))
    rig.settle()
    rig.pass_time(UNBOUND_S + 100.0)
    rig.sweep()
    assert carriers(rig) == ["p1"]


def test_slow_api_server_ends_the_clearing_until_the_next_sweep(rig: ExtenderRig) -> None:
    # the sweeper has nodes and time limits to look after as well
    rig.pass_time(UNBOUND_S + 100.0)
    rig.api.faults.latency_s = CLEARING_S / 2 + 0.2
    rig.sweep()
    rig.api.faults.latency_s = 0.0
    assert 0 < len(carriers(rig)) < COUNT
    rig.sweep()
    assert carriers(rig) == []


def test_pod_that_cant_be_written_keeps_no_other_from_being_cleared(rig: ExtenderRig) -> None:
    rig.pass_time(UNBOUND_S + 100.0)
    rig.api.faults.latency_s = CLEARING_S / 2 + 0.2
    rig.api.faults.add("patch", "pods", 500, ATTEMPTS)
    rig.sweep()
    assert len(carriers(rig)) == COUNT
    rig.sweep()
    rig.api.faults.latency_s = 0.0
    assert carriers(rig) == ["p0", "p3"]


def test_pod_that_its_scheduler_gives_up_loses_its_reservation_at_once(rig: ExtenderRig) -> None:
    def fail(body: Json) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}
        body["status"]["conditions"] = [condition]

    held = set(rig.state.charges())
    rig.edit("p1", fail)
    eventually(lambda: len(rig.state.charges()) == COUNT - 1, LIMIT_S)
    eventually(lambda: carriers(rig) == ["p0", "p2", "p3"], LIMIT_S)
    assert set(rig.state.charges()) < held
    rig.settle()
    assert rig.wrongs() == []
    assert rig.drift() == []
