"""Containers with MIG instances: what they are answered, by each strategy, and by which files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container, Device, Grant, Node
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.choices import (
    DeviceListStrategy,
    MemoryLimitBy,
    VisibleDevicesForm,
)
from hami_node.vendors.nvidia.mig.layout import DriverCard
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.driver_limit import DriverLimits, Toolkit
from hami_node.vendors.nvidia.node.handover.instances import CapNodes, file_name
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.handover.spec_file import NAME
from hami_node.vendors.nvidia.node.limiter.hook_folder import HookFolder
from hami_node.vendors.nvidia.node.response import NvidiaResponder
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, MadePart, NodeSituation, Slice
from hami_node.vendors.on_node.limiter import LimiterState
from tests.fakes.cards import card, uuid
from tests.fakes.driver_root import lay_driver
from tests.fakes.made_instances import MAJOR, cap_of, divided, lay_caps, mig_grant, mig_uuid, part
from tests.reliability import shows
from tests.unit.vendors.nvidia.node.handover.cdi_schema import check

NODE = Node(name="n1", kubelet_version="v1.34.0", engine_version="containerd://2.1.4")
ENVVAR = DeviceListStrategy.ENVVAR
CRI, NOTES = DeviceListStrategy.CDI_CRI, DeviceListStrategy.CDI_ANNOTATIONS
OWN = "hami-node.io/gpu="
FULL = card(2, detail=DriverCard(minor=2))
CARDS = (divided(0), divided(1), FULL)


class Desk:
    """A node whose cards are in MIG mode, with the driver's files at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.specs, self.driver = folder, folder / "cdi", folder / "driver-root"
        lay_driver(self.driver)
        lay_caps(folder / "proc")
        self.settings = NvidiaSettings(
            driver_root_ctr_path=self.driver,
            driver_root=Path("/run/nvidia/driver"),
            cdi_spec_dir=self.specs,
            validations_dir=folder / "validations",
            hook_path=folder / "hook",
        )
        self.restart()

    def restart(self) -> None:
        """Another daemon."""
        caps = CapNodes(self.folder / "proc", self.folder / "host")
        way = NodeHandOver(lambda: self.settings, self.folder, caps)
        driver = DriverLimits(lambda: Toolkit.APPLIES, knows=lambda _: True, cgroups=self.folder)
        hook = HookFolder(self.settings.hook_path)
        self.responder = NvidiaResponder(hook, lambda: self.settings, way, driver)

    def change(self, **values: Any) -> None:
        self.settings = replace(self.settings, **values)

    def keep(self, *cards: Device, answers: Iterable[ContainerResponse] | None = ()) -> None:
        known = tuple(answers) if answers is not None else None
        self.responder.keep(NodeSituation(node=NODE, cards=cards or CARDS, answers=known))

    def answer(
        self, *made: MadePart, cards: tuple[Device, ...] = CARDS, env: dict[str, str] | None = None
    ) -> ContainerResponse:
        """What a container with these instances of the first card is answered."""
        grants = tuple(mig_grant(0, i) for i in range(len(made)))
        return self.responder.respond(granted(grants, made, cards, env))

    def lay_nodes(self, *numbers: int, folder: str = "driver-root") -> None:
        """Stand-ins of nodes; /proc/devices names no driver, so that they are taken."""
        lay_caps(self.folder / "proc", has_major=False)
        at = self.folder / folder / "dev/nvidia-caps"
        at.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            (at / f"nvidia-cap{number}").touch()

    def files(self) -> list[str]:
        """The instances that have a file."""
        return sorted(path.name for path in self.specs.iterdir() if path.name != NAME)

    def spec(self, number: int) -> Any:
        found = json.loads((self.specs / file_name(mig_uuid(number))).read_bytes())
        check(found)
        return found

    def nodes(self, number: int) -> list[str]:
        (device,) = self.spec(number)["devices"]
        return [node["path"] for node in device["containerEdits"]["deviceNodes"]]


def granted(
    grants: tuple[Grant, ...],
    made: tuple[MadePart | None, ...],
    cards: tuple[Device, ...] = CARDS,
    env: dict[str, str] | None = None,
) -> Slice:
    return Slice(
        pod_uid="u",
        container=Container(name="c", env=env or {}),
        grants=grants,
        cards={each.uuid: each for each in cards},
        made=made,
    )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    found = Desk(tmp_path)
    found.keep()
    return found


def caps(*numbers: int) -> list[str]:
    return [f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers]


# -- every strategy --------------------------------------------------------------------------------


def test_cdi_names_instances_of_our_own_kind(desk: Desk) -> None:
    desk.change(device_list_strategy=(CRI, NOTES))
    found = desk.answer(part(2, 9), part(1, 0))
    wanted = (f"{OWN}{mig_uuid(2)}", f"{OWN}{mig_uuid(1)}")
    assert found.cdi_devices == wanted
    assert found.annotations == ((f"cdi.k8s.io/hami-node_{mig_uuid(2)}", ",".join(wanted)),)
    assert dict(found.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_device_nodes_are_the_cards_and_both_capabilities_of_each_instance(desk: Desk) -> None:
    desk.change(device_list_strategy=(ENVVAR,), pass_device_specs=True)
    wanted = [cap_of(0, 9), cap_of(0, 9, 0), cap_of(0, 0), cap_of(0, 0, 0)]
    desk.lay_nodes(*wanted)
    found = [node.container_path for node in desk.answer(part(2, 9), part(1, 0)).devices]
    assert found == [
        *("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl", "/dev/nvidia0"),
        *caps(*wanted),
    ]


@pytest.mark.parametrize("by", MemoryLimitBy)
@pytest.mark.parametrize("strategy", [ENVVAR, CRI])
def test_nothing_limits_a_container_of_instances(
    desk: Desk, by: MemoryLimitBy, strategy: DeviceListStrategy
) -> None:
    """No limiter is on this node, and the driver can't limit: neither matters."""
    desk.change(memory_limit_by=by, device_list_strategy=(strategy,))
    found = desk.answer(part(1))
    assert [name for name, _ in found.envs] == ["NVIDIA_VISIBLE_DEVICES"]
    assert found.mounts == ()
    assert found.limiter_version == ""
    assert not desk.settings.hook_path.exists(), "no folder, no cache file"
    assert desk.responder.warning(granted((mig_grant(0),), (part(1),))) == ""


def test_node_that_divides_its_cards_misses_neither_limiter(desk: Desk) -> None:
    desk.change(limiter_sha256=("0" * 64,))
    assert desk.responder.limiter().is_missing
    assert desk.responder.limiter().unready
    for by in MemoryLimitBy:
        desk.change(operating_mode=Mode.MIG, memory_limit_by=by)
        assert desk.responder.limiter() == LimiterState()


def test_runtime_in_a_cdi_mode_is_not_asked_for_an_instance_without_its_nodes(desk: Desk) -> None:
    desk.change(device_list_strategy=(ENVVAR,), visible_devices_form=VisibleDevicesForm.RUNTIME)
    desk.lay_nodes(cap_of(0, 9))
    with pytest.raises(AllocationError, match=f"nvidia-cap{cap_of(0, 9, 0)}, without which"):
        desk.answer(part(1, 9))


@pytest.mark.parametrize("hidden", ["proc", "driver-root/dev"])
def test_kubelet_is_not_told_nodes_that_this_daemon_can_not_see(desk: Desk, hidden: str) -> None:
    desk.change(device_list_strategy=(ENVVAR,), pass_device_specs=True)
    shutil.rmtree(desk.folder / hidden)
    with pytest.raises(AllocationError, match=rf"MIG instance {mig_uuid(1)}"):
        desk.answer(part(1))


# -- cards beside instances ------------------------------------------------------------------------
BOTH = (Grant(uuid=FULL.uuid, vendor=NVIDIA, memory_mib=1000, cores=30), mig_grant(0))


@shows(
    "G19",
    fault="a pod that takes cards of any mode gets a full card and an instance in one container",
    happens="it is refused by name where the limiter would have to number both; where the driver "
    "limits, the card has its limit and the instance is its own",
)
@pytest.mark.parametrize("by", MemoryLimitBy)
def test_full_card_beside_an_instance_is_served_only_where_it_can_be_limited(
    desk: Desk, by: MemoryLimitBy
) -> None:
    desk.change(memory_limit_by=by)
    desk.folder.joinpath("cgroup.controllers").touch()
    item = granted(BOTH, (None, part(1)))
    if by is not MemoryLimitBy.DRIVER:
        with pytest.raises(AllocationError, match=f"{mig_uuid(1)} of {uuid(0)}.*vgpu-mode"):
            desk.responder.respond(item)
        return
    found = desk.responder.respond(item)
    assert found.cdi_devices == (f"{OWN}{FULL.uuid}", f"{OWN}{mig_uuid(1)}")
    assert dict(found.envs)[names.ENV_DRIVER_MEMORY_LIMIT] == "1000"
    assert "30 percent" in desk.responder.warning(item)


# -- specs -----------------------------------------------------------------------------------------
@shows(
    "M13",
    fault="an instance is made after the CDI specs were written, while others come and go",
    happens="it has a spec file of its own before the answer names it; no other file is written; "
    "the file goes after the instance, and what a killed daemon left goes at the next start",
)
def test_hazard_13_each_instance_has_its_spec_from_the_answer_to_the_destruction(
    desk: Desk,
) -> None:
    cards_file = (desk.specs / NAME).stat().st_ino
    first = desk.answer(part(1, 9))
    assert desk.files() == [file_name(mig_uuid(1))]
    before = (desk.specs / file_name(mig_uuid(1))).stat()
    second = desk.answer(part(2, 0))
    assert (desk.specs / file_name(mig_uuid(1))).stat().st_mtime_ns == before.st_mtime_ns
    assert desk.nodes(1) == ["/dev/nvidia0", *caps(cap_of(0, 9), cap_of(0, 9, 0))]
    assert desk.nodes(2) == ["/dev/nvidia0", *caps(cap_of(0, 0), cap_of(0, 0, 0))]
    desk.keep(answers=())  # nothing is on record yet, and the last scan is older than both
    both = divided(0, part(1, 9), part(2, 0))
    desk.keep(both, *CARDS[1:], answers=(first, second))
    desk.keep(both, *CARDS[1:], answers=(second,))
    assert desk.files() == [file_name(mig_uuid(1)), file_name(mig_uuid(2))], "it still exists"
    desk.keep(divided(0, part(2, 0)), *CARDS[1:], answers=(second,))
    assert desk.files() == [file_name(mig_uuid(2))]
    assert (desk.specs / NAME).stat().st_ino == cards_file, "that of the cards is as it was"
    desk.answer(part(1, 9))
    desk.restart()
    desk.keep(answers=None)
    assert desk.files() == [], "neither is there any more"


@shows(
    "G17",
    fault="an instance is gone while a container on record names it, and the driver gives its "
    "numbers to the next one",
    happens="no CDI spec leads the container to the other's instance when it starts again: the "
    "engine refuses it",
)
@pytest.mark.parametrize("is_scanned", [True, False])
def test_container_of_a_lost_instance_is_never_led_to_the_next_one(
    desk: Desk, is_scanned: bool
) -> None:
    first = desk.answer(part(1, 9))
    old = (divided(0, part(1, 9)), *CARDS[1:])
    desk.keep(*old, answers=(first,))
    if is_scanned:
        desk.keep(*CARDS, answers=(first,))
        assert desk.files() == []
    second = desk.answer(part(2, 9))
    assert desk.files() == [file_name(mig_uuid(2))]
    desk.keep(*old, answers=(first, second))  # a scan from before
    assert desk.files() == [file_name(mig_uuid(2))]
    desk.keep(divided(0, part(2, 9)), *CARDS[1:], answers=(first, second))
    assert desk.files() == [file_name(mig_uuid(2))]


def test_spec_has_what_every_container_needs_and_no_limit(desk: Desk) -> None:
    desk.change(memory_limit_by=MemoryLimitBy.DRIVER)
    desk.keep()
    desk.answer(part(1, 9))
    found = desk.spec(1)
    assert found["containerEdits"] == json.loads((desk.specs / NAME).read_bytes())["containerEdits"]
    (device,) = found["devices"]
    assert device["name"] == mig_uuid(1)
    assert "hooks" not in device["containerEdits"]
    assert device["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    parent, *its = device["containerEdits"]["deviceNodes"]
    assert parent == {
        "path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia0", "permissions": "rw"
    }  # fmt: skip
    assert its == [
        {
            "path": path, "type": "c", "major": MAJOR, "minor": number,
            "fileMode": 0o444, "permissions": "rw",
        }
        for number, path in zip(
            (cap_of(0, 9), cap_of(0, 9, 0)), caps(cap_of(0, 9), cap_of(0, 9, 0)), strict=True
        )
    ]  # fmt: skip


def test_node_on_the_host_does_where_the_kernel_tells_no_major_number(desk: Desk) -> None:
    desk.lay_nodes(cap_of(0, 9), cap_of(0, 9, 0))
    desk.answer(part(1, 9))
    nodes = desk.spec(1)["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes[1]["hostPath"] == f"/run/nvidia/driver{caps(cap_of(0, 9))[0]}"
    with pytest.raises(AllocationError, match=f"no usable .*nvidia-cap{cap_of(0, 3)}"):
        desk.answer(part(2, 3))
    assert desk.files() == [file_name(mig_uuid(1))], "a refused container leaves no file"


def test_specs_of_held_instances_are_back_after_a_reboot_and_follow_driver_and_numbers(
    desk: Desk,
) -> None:
    answer = desk.answer(part(1, 9))
    shutil.rmtree(desk.specs)
    desk.restart()
    desk.keep(divided(0, part(1, 3), part(2, 0), minor=5), *CARDS[1:], answers=(answer,))
    assert desk.files() == [file_name(mig_uuid(1))], "nobody holds the other"
    assert desk.nodes(1) == ["/dev/nvidia5", *caps(cap_of(5, 3), cap_of(5, 3, 0))]
    lay_driver(desk.driver, "570.1.2")
    desk.keep(divided(0, part(1, 3)), answers=(answer,))
    assert ".so.570.1.2" in json.dumps(desk.spec(1))


def left_behind(desk: Desk, number: int, minor: int) -> Path:
    """A file as another daemon would have left it."""
    desk.answer(part(number), cards=(divided(0, minor=minor), *CARDS[1:]))
    desk.restart()
    return desk.specs / file_name(mig_uuid(number))


@pytest.mark.parametrize(
    "now",
    [
        (divided(0, part(1), minor=5), *CARDS[1:]),
        (divided(0, minor=5, problem="the driver does not answer"), *CARDS[1:]),
        (card(0), *CARDS[1:]),
        CARDS[1:],
        (divided(0, minor=6), *CARDS[1:]),
        (divided(0, minor=5), divided(1, minor=5), FULL),
    ],
    ids=["exists", "unreadable", "lost", "card-not-ours", "node-not-ours", "node-of-two"],
)
def test_file_goes_only_where_its_card_is_ours_and_says_that_the_instance_is_gone(
    desk: Desk, now: tuple[Device, ...]
) -> None:
    file = left_behind(desk, 1, 5)
    desk.keep(*now, answers=())
    assert file.exists()
    desk.keep(divided(0, minor=5), *CARDS[1:], answers=())
    assert not file.exists()


def test_files_of_others_are_never_removed(desk: Desk) -> None:
    file = left_behind(desk, 1, 0)
    content = file.read_bytes()
    others = {
        "nvidia.com-gpu.json": content,
        "hami-node.io-gpu-MIG-x.yaml": content,
        file_name(mig_uuid(2)): content,  # names another instance
        file_name(mig_uuid(3)): content.replace(b"hami-node.io/gpu", b"somebody.io/gpu"),
        file_name(mig_uuid(4)): b"{",
    }
    for name, text in others.items():
        desk.specs.joinpath(name).write_bytes(text)
    desk.specs.joinpath(file_name(mig_uuid(5))).mkdir()
    desk.specs.joinpath(file_name(mig_uuid(6))).symlink_to(file)
    desk.keep()
    left = {path.name for path in desk.specs.iterdir()} - {NAME}
    assert left == {*others, file_name(mig_uuid(5)), file_name(mig_uuid(6))}


@pytest.mark.parametrize("hidden", ["proc", "driver-root/dev"])
def test_runtime_makes_what_this_daemon_can_not_see_and_that_is_said_once(
    desk: Desk, hidden: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk.change(device_list_strategy=(ENVVAR,), visible_devices_form=VisibleDevicesForm.RUNTIME)
    shutil.rmtree(desk.folder / hidden)
    for number in (1, 2):
        assert dict(desk.answer(part(number)).envs) == {
            "NVIDIA_VISIBLE_DEVICES": f"runtime.nvidia.com/gpu={mig_uuid(number)}"
        }
    assert [r.message for r in caplog.records].count("mig_device_nodes_not_seen") == 1


def test_file_that_can_not_be_written_refuses_the_container_and_names_the_folder(
    desk: Desk,
) -> None:
    desk.specs.joinpath(file_name(mig_uuid(1))).mkdir()
    with pytest.raises(AllocationError, match=r"Is a directory.*delete and recreate the pod"):
        desk.answer(part(1))
    assert desk.answer(part(2)).cdi_devices, "others are served"
