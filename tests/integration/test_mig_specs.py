"""CDI specs of instances with the whole daemon: there with the answer, gone with the instance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from hami_node.vendors.nvidia.node.handover.mig.spec_files import file_name
from tests.fakes.driver_root import lay_driver
from tests.fakes.made_instances import lay_caps
from tests.fakes.waiting import eventually
from tests.integration.mig_rig import SLOTS, MigRig, Row
from tests.integration.rig import LIMIT_S
from tests.nvml_stub.control import Stub
from tests.unit.vendors.nvidia.node.handover.cdi_schema import check


class SpecRig(MigRig):
    """A node without a runtime of NVIDIA's: the engine resolves the names by the daemon's specs."""

    def __init__(self, driver: Stub) -> None:
        super().__init__(driver)
        self.specs = self.root / "cdi"
        lay_driver(self.root / "driver", cards=3)
        lay_caps(self.root / "driver/proc")
        caps = self.root / "driver/dev/nvidia-caps"
        caps.mkdir()
        for number in range(3 * 15 * 9 + 3):
            (caps / f"nvidia-cap{number}").touch()

    def launch(self, slots: int = SLOTS, **flags: str) -> None:
        """Where the driver is, and the engine's folder."""
        given = {
            "device_list_strategy": "cdi-cri",
            "driver_root": "/run/nvidia/driver",
            "driver_root_ctr_path": str(self.root / "driver"),
            "cdi_spec_dir": str(self.specs),
            "validations_dir": str(self.root / "validations"),
        }
        super().launch(slots, **given | flags)

    def named(self, pod: str, *rows: Row) -> list[str]:
        """The instances that a pod's container is given by name, each with its spec on the disk."""
        self.divide(pod, {"main": rows})
        answer = self.admit(pod)
        assert answer.is_admitted, answer.refusal
        there = self.files()
        response = answer.responses["main"]
        assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
        found = [device.name.partition("=")[2] for device in response.cdi_devices]
        assert {file_name(name) for name in found} <= there
        for name in found:
            spec = json.loads((self.specs / file_name(name)).read_bytes())
            check(spec)
            parent, *its = spec["devices"][0]["containerEdits"]["deviceNodes"]
            assert parent["path"] == "/dev/nvidia0"
            assert len({node["path"] for node in its}) == 2
            assert spec["containerEdits"]["mounts"], "with the driver's libraries"
        return found

    def files(self) -> set[str]:
        return {path.name for path in self.specs.glob("*MIG*")}

    def wait_files(self, *instances: str) -> None:
        eventually(lambda: self.files() == set(map(file_name, instances)), LIMIT_S)


@pytest.fixture
def rig(driver: Stub) -> Iterator[SpecRig]:
    with closing(SpecRig(driver)) as made:
        made.launch()
        yield made


def test_spec_is_there_with_the_answer_and_goes_with_its_instance(rig: SpecRig) -> None:
    (first,) = rig.named("a", Row(start=6))
    assert first == rig.at(6).uuid
    second, third = rig.named("b", Row(profile="2g.10gb", start=0), Row(start=5))
    assert {second, third} == {rig.at(0).uuid, rig.at(5).uuid}
    rig.wait_files(first, second, third)
    rig.delete("b")
    rig.wait_files(first)
    rig.wait_places(("1g.5gb", 6))


def test_specs_of_an_ended_daemon_are_kept_for_the_living_and_removed_for_the_dead(
    rig: SpecRig,
) -> None:
    (lives,) = rig.named("lives", Row(start=6))
    (dies,) = rig.named("dies", Row(start=5))
    rig.stop()
    rig.delete("dies")
    (rig.specs / file_name(lives)).unlink()
    assert rig.files() == {file_name(dies)}
    rig.launch()
    rig.wait_files(lives)
