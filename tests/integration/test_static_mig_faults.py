"""MIG instances that others change while they are offered, with the whole daemon."""

from __future__ import annotations

import pytest

from tests.fakes.waiting import eventually
from tests.integration.instance_rig import (
    LARGE,
    SMALL,
    Ahead,
    InstanceRig,
    seen,
)
from tests.integration.rig import GPU, LIMIT_S
from tests.integration.share_rig import Shares
from tests.nvml_stub.control import UUIDS
from tests.reliability import shows


@pytest.fixture
def rig(instances_of_others: InstanceRig) -> InstanceRig:
    """Card 0 in MIG mode, without instances; the daemon is not started yet."""
    return instances_of_others


@shows(
    "G24",
    fault="strategy single, and somebody makes an instance of another size",
    happens="the instances are closed, for one name would mean two sizes; the reason says which "
    "sizes there are; equal ones again open them",
)
def test_single_with_unequal_instances_closes_them_and_says_why(rig: InstanceRig) -> None:
    rig.divide(3)
    made = {rig.make("3g.20gb", 0, number).uuid for number in range(3)}
    rig.serve("single")
    eventually(lambda: rig.healthy(GPU) == made, LIMIT_S)
    odd = rig.make("1g.5gb", 6)
    eventually(lambda: rig.healthy(GPU) == set(), LIMIT_S)
    reason = rig.cards[0].unhealthy_reason
    assert "1g.5gb, 3g.20gb" in reason
    assert "mig-strategy mixed" in reason
    rig.driver.mig.destroy(UUIDS[0], odd.gi)
    eventually(lambda: rig.healthy(GPU) == made, LIMIT_S)


@shows(
    "G25",
    fault="an instance that a container holds is destroyed, and another is made in its place",
    happens="kubelet is shown the held device as unhealthy, the other instances go on; what was "
    "made anew is closed until the pod has ended, for its container could reach it",
    lost="that container's instance",
)
def test_instance_that_vanishes_while_it_is_held_costs_its_holder_alone(rig: InstanceRig) -> None:
    first, other = rig.make("1g.5gb", 6), rig.make("1g.5gb", 5)
    rig.serve()
    held = seen(rig.ask("p"))
    gone, left = (first, other) if first.uuid == held else (other, first)
    rig.driver.mig.destroy(UUIDS[0], gone.gi)
    eventually(lambda: rig.healthy(SMALL) == {left.uuid}, LIMIT_S)
    eventually(lambda: rig.kubelet.devices(SMALL).get(held) == "Unhealthy", LIMIT_S)
    anew = rig.make("1g.5gb", gone.start)
    assert anew.gi == gone.gi
    eventually(lambda: rig.kubelet.devices(SMALL).get(anew.uuid) == "Unhealthy", LIMIT_S)
    assert rig.ask("q").is_admitted
    rig.end("p")
    eventually(lambda: rig.healthy(SMALL) == {left.uuid, anew.uuid}, LIMIT_S)
    eventually(lambda: held not in rig.kubelet.devices(SMALL), LIMIT_S)


@shows(
    "G26",
    fault="the driver comes up, or an instance of a new profile is made, after the daemon's start",
    happens="the daemon ends itself and its container starts again: its resources are those of now",
    lost="a second; running pods go on",
)
def test_new_kind_of_instance_is_served_by_the_next_process(rig: InstanceRig) -> None:
    small = rig.make("1g.5gb", 6).uuid
    rig.clock = clock = Ahead()
    rig.serve()
    daemon = rig.daemon
    assert daemon is not None
    held = seen(rig.ask("p"))
    large = rig.make("3g.20gb", 0).uuid
    (owner,) = daemon.vendor_cards
    eventually(lambda: large in str(owner.physical), LIMIT_S)
    assert owner.why_restart() == ""
    clock.by_s += 60
    eventually(lambda: LARGE in owner.why_restart(), LIMIT_S)
    rig.daemon = None
    assert daemon.wait() == 1
    rig.serve()
    eventually(lambda: rig.healthy(LARGE) == {large}, LIMIT_S)
    assert held == small
    assert "Available: 0" in rig.ask("q").refusal


def test_instance_that_another_plugin_gave_out_is_counted_for_its_pod(rig: InstanceRig) -> None:
    made = rig.make("1g.5gb", 6).uuid
    other = rig.make("1g.5gb", 5).uuid
    rig.create("old", [Shares(resource=SMALL)])
    rig.kubelet.hold(rig.pod("old"), SMALL, made)
    rig.set_phase("old", "Running")
    rig.serve()
    eventually(lambda: rig.metric("card_slots_used", uuid=UUIDS[0]) == 1, LIMIT_S)
    assert seen(rig.ask("new")) == other
