"""MIG instances through outages, with the whole daemon down to the driver's C library."""

from __future__ import annotations

import json
from typing import Final

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.node.handover.instances import file_name
from hami_node.wire import names
from tests.fakes.driver_root import lay_driver
from tests.fakes.made_instances import cap_of, lay_caps
from tests.fakes.waiting import eventually
from tests.integration.mig_rig import MigRig, Row, visible
from tests.integration.rig import GPU, LIMIT_S
from tests.nvml_stub.control import card
from tests.reliability import shows
from tests.unit.vendors.nvidia.node.handover.cdi_schema import check

LAST: Final = 13
"""The number of the GPU instance at slice 6."""


@shows(
    "G14",
    fault="the API server refuses the one patch of a pod whose MIG instance is made",
    happens="the pod is refused and its lock freed; the instance goes once the pod has failed, and "
    "its place serves the next one",
)
def test_instance_of_a_pod_that_can_not_be_patched_goes_with_it(mig: MigRig) -> None:
    mig.divide("p", {"main": [Row()]}, is_locked=True)
    mig.api.fail_next("patch", "pods", 500, 50)
    assert not mig.kubelet.admit(mig.pod("p"), GPU).is_admitted
    mig.api.faults.clear()
    mig.set_phase("p", "Failed")
    eventually(lambda: not mig.lock_text, LIMIT_S)
    mig.wait_places()
    assert mig.serve("next", Row()) == mig.at(6).uuid


@shows(
    "G15",
    fault="pods with MIG instances end while kubelet's list can't be read",
    happens="no instance goes until it is known again who is there; then those of ended pods go",
)
def test_nothing_is_destroyed_while_it_is_unknown_who_is_there(mig: MigRig) -> None:
    mig.serve("ended", Row())
    lives = mig.serve("lives", Row(start=5))
    mig.serve("deleted", Row(start=4))
    changes = mig.hardware.changes()
    mig.kubelet.failing_lists = 10_000
    mig.set_phase("ended", "Succeeded")
    mig.delete("deleted")
    read = mig.kubelet.failing_lists
    eventually(lambda: mig.kubelet.failing_lists < read - 3, LIMIT_S)
    assert mig.hardware.changes() == changes
    mig.kubelet.failing_lists = 0
    mig.wait_places(("1g.5gb", 5))
    assert mig.at(5).uuid == lives


@shows(
    "G16",
    fault="a pod with a MIG instance is deleted by force and made again under its name at once, "
    "while kubelet still has the old one",
    happens="the new one is refused as long as the old one has its place, and then served with an "
    "instance of its own",
)
def test_namesake_waits_for_the_old_pods_instance(mig: MigRig) -> None:
    first = mig.serve("p-0", Row())
    mig.delete_in_api("p-0")
    mig.divide("q", {"main": [Row()]})
    answer = mig.admit("q")
    assert not answer.is_admitted
    assert "default/q/main" in answer.refusal
    assert mig.at(6).uuid == first
    mig.kubelet.remove("default", "p-0")
    mig.divide("p-0", {"main": [Row()]}, uid="uid-of-the-next")  # at once
    answer = mig.admit("p-0")
    assert answer.is_admitted, answer.refusal
    assert visible(answer) == mig.at(6).uuid != first
    assert mig.bind_phase("p-0") == names.PHASE_SUCCESS


def test_pod_is_served_between_two_slow_removals(mig: MigRig) -> None:
    gone = [f"p{start}" for start in range(6)]
    for start, name in enumerate(gone):
        mig.serve(name, Row(start=start))
    mig.divide("next", {"main": [Row()]})
    mig.show("hang nvmlGpuInstanceDestroy 0 2")
    for name in gone:
        mig.delete(name)
    eventually(lambda: len(mig.instances()) < len(gone), LIMIT_S)
    answer = mig.admit("next")
    assert answer.is_admitted, answer.refusal
    assert len(mig.instances()) > 1
    mig.show()
    mig.wait_places(("1g.5gb", 6))


def test_next_pod_waits_while_the_driver_is_slow_to_let_go(mig: MigRig) -> None:
    first = mig.serve("gone", Row())
    lingering = card(0, mig="enabled", lingers=3)  # so often it says IN_USE
    mig.stub.write(lingering, card(1, mig="enabled"), card(2, mig="enabled"))
    mig.delete("gone")
    assert mig.serve("next", Row()) == mig.at(6).uuid != first


def test_refusal_says_what_the_driver_does_not_let_go(mig: MigRig) -> None:
    mig.serve("gone", Row())
    mig.show("fail nvmlGpuInstanceDestroy * 19")
    mig.delete("gone")
    mig.divide("next", {"main": [Row()]})
    assert "1g.5gb at slices 6+1 is being destroyed" in mig.admit("next").refusal


def test_wish_for_a_mode_is_kept(mig: MigRig) -> None:
    for start, modes in enumerate(("mig", "hami-core,mig", "hami-core")):
        mig.divide(f"p{start}", {"main": [Row(start=start)]})
        mig.api.annotate("pods", f"p{start}", {nvidia_names.VGPU_MODE: modes}, "default")
        mig.wait_seen(f"p{start}")
        assert mig.admit(f"p{start}").is_admitted is ("mig" in modes), modes
    assert [start for _, start in mig.places()] == [0, 1]


def test_engine_finds_the_instance_when_kubelet_has_the_answer(bare_mig: MigRig) -> None:
    """A node without a runtime of NVIDIA's: the name leads to a spec, which goes with the pod."""
    driver, specs = bare_mig.root / "driver", bare_mig.root / "cdi"
    lay_driver(driver, cards=3)
    lay_caps(driver / "proc")
    caps = [f"/dev/nvidia-caps/nvidia-cap{n}" for n in (cap_of(0, LAST), cap_of(0, LAST, 0))]
    (driver / "dev/nvidia-caps").mkdir()
    for cap in caps:
        driver.joinpath(cap[1:]).touch()
    bare_mig.launch(
        device_list_strategy="cdi-cri",
        driver_root="/run/nvidia/driver",
        driver_root_ctr_path=str(driver),
        cdi_spec_dir=str(specs),
        validations_dir=str(bare_mig.root / "validations"),
    )
    bare_mig.divide("p", {"main": [Row()]})
    answer = bare_mig.admit("p")
    assert answer.is_admitted, answer.refusal
    response = answer.responses["main"]
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    (device,) = response.cdi_devices
    assert device.name == f"hami-node.io/gpu={bare_mig.at(6).uuid}"
    file = specs / file_name(bare_mig.at(6).uuid)
    spec = json.loads(file.read_bytes())
    check(spec)
    nodes = [node["path"] for node in spec["devices"][0]["containerEdits"]["deviceNodes"]]
    assert nodes == ["/dev/nvidia0", *caps]
    assert spec["containerEdits"]["mounts"], "with the driver's libraries"
    bare_mig.delete("p")
    eventually(lambda: not file.exists(), LIMIT_S)
