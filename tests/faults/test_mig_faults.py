"""The daemon's own process on divided cards: killed, kept waiting and refused by the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.daemon_rig import RESOURCE
from tests.fakes.waiting import eventually
from tests.faults.divided_node import (
    FILTERED,
    OTHER,
    SERVED,
    DividedNode,
    divided_node,
)
from tests.faults.process import LIMIT_S
from tests.nvml_stub.build import NoCompiler, build
from tests.nvml_stub.control import UUIDS

MAKE = ("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance")
DESTROY = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")
PID = 4711


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[DividedNode]:
    try:
        build(tmp_path_factory.getbasetemp() / "nvml-probe")
    except NoCompiler as error:
        pytest.skip(str(error))
    with divided_node(tmp_path) as running:
        yield running
        assert running.is_foreign_whole()
        assert running.changes(FILTERED) == []


def test_pods_get_instances_and_leave_nothing(node: DividedNode) -> None:
    node.place("a", "2g.10gb", 0)
    node.place("b", "1g.5gb", 2)
    given = {name: node.admit(name) for name in ("a", "b")}
    assert node.made() == {"2g.10gb@0": given["a"], "1g.5gb@2": given["b"]}
    assert node.agrees()
    for name in ("a", "b"):
        node.delete(name)
    eventually(lambda: node.made() == {} == node.on_record(), LIMIT_S)


@pytest.mark.parametrize("call", MAKE)
@pytest.mark.parametrize("when", ["before", "after"])
def test_daemon_killed_while_it_makes_an_instance(node: DividedNode, call: str, when: str) -> None:
    node.place("living", "1g.5gb", 3)
    kept = node.admit("living")
    node.stub.mig.run(kept, PID)
    node.befall(call, 1, when, "kill")
    node.place("unlucky", "2g.10gb", 0)
    assert "MIG-" not in node.admit("unlucky"), "kubelet refuses a pod whose plugin went away"
    node.wait_dead()
    node.say()
    node.restart()
    eventually(lambda: node.made() == {"1g.5gb@3": kept} == node.on_record(), LIMIT_S)
    node.place("next", "2g.10gb", 0)
    given = node.admit("next")
    assert node.made() == {"1g.5gb@3": kept, "2g.10gb@0": given}


@pytest.mark.parametrize("call", DESTROY)
@pytest.mark.parametrize("when", ["before", "after"])
def test_daemon_killed_while_it_destroys_an_instance(
    node: DividedNode, call: str, when: str
) -> None:
    node.place("living", "1g.5gb", 3)
    node.place("leaving", "2g.10gb", 0)
    kept = node.admit("living")
    node.admit("leaving")
    node.stub.mig.run(kept, PID)
    node.befall(call, 1, when, "kill")
    node.delete("leaving")
    node.wait_dead()
    node.say()
    node.restart()
    eventually(lambda: node.made() == {"1g.5gb@3": kept} == node.on_record(), LIMIT_S)


def test_hang_costs_its_card_and_no_other(node: DividedNode) -> None:
    node.befall(MAKE[1], 1, "after", "hang 600")
    node.place("stuck", "2g.10gb", 0)
    waiting = node.admit_aside("stuck")
    node.place("beside", "3g.20gb", 4, OTHER)
    assert node.admit("beside") in node.made(OTHER).values()
    waiting.join(60)
    assert not waiting.is_alive(), "Allocate is answered long before kubelet's patience ends"
    assert node.rig.api.read("pods", "stuck", "default")["status"]["phase"] == "Failed"
    health = node.rig.kubelet.devices(RESOURCE)
    assert {state for name, state in health.items() if name.startswith(UUIDS[OTHER])} == {"Healthy"}
    eventually(
        lambda: (
            "Unhealthy"
            in {s for n, s in node.rig.kubelet.devices(RESOURCE).items() if UUIDS[SERVED] in n}
        ),
        LIMIT_S,
    )
    node.say()
    eventually(lambda: node.made() == {}, 2 * LIMIT_S)
    node.place("after", "2g.10gb", 0)
    eventually(lambda: node.rig.kubelet.allocatable(RESOURCE) > 7, LIMIT_S)
    assert node.admit("after") in node.made().values()


def test_driver_that_refuses_is_named_and_nothing_stays(node: DividedNode) -> None:
    node.say(f"fail {MAKE[1]} * 999")
    node.place("refused", "2g.10gb", 0)
    assert MAKE[1] in node.admit("refused")
    eventually(lambda: node.made() == {} == node.on_record(), LIMIT_S)
    node.say()
    node.place("next", "2g.10gb", 0)
    assert node.admit("next") in node.made().values()
