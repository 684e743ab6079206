"""Allocate of MIG instances through to what the container engine reads: names, files, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Device, Node
from hami_node.node.holdings.recorded import answer_of
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.choices import DeviceListStrategy
from hami_node.vendors.nvidia.mig.details import DriverCard
from hami_node.vendors.nvidia.mig.layout import MigLayout, MigPlacement, MigProfile
from hami_node.vendors.nvidia.node.handover.mig.caps import CapNodes
from hami_node.vendors.nvidia.node.handover.mig.spec_files import file_name
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.limiter.hook_folder import HookFolder
from hami_node.vendors.nvidia.node.response import NvidiaResponder
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import MadePart, NodeSituation
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.driver_root import lay_driver
from tests.fakes.made_instances import cap_of, divided, lay_caps, mig_uuid
from tests.fakes.parts import FakeParts
from tests.fakes.pods import Box, Part
from tests.integration.desk import Fate, Killed, World
from tests.unit.vendors.nvidia.node.handover.cdi_schema import check

NODE = Node(name="n1", kubelet_version="v1.34.0", engine_version="containerd://2.1.4")
SMALL = MigProfile(
    name="1g.5gb",
    memory_mib=4864,
    cores=15,
    slice_count=1,
    placements=tuple(MigPlacement(start=start, size=1) for start in range(7)),
)
IDS = [f"{uuid(0)}-0"]


class Handing:
    """A node with one card in MIG mode, and the folder of specs that its engine reads."""

    def __init__(self, world: World) -> None:
        self.world, self.specs = world, world.root / "cdi"
        lay_driver(world.root / "driver")
        lay_caps(world.root / "proc")
        self.settings = NvidiaSettings(
            driver_root=Path("/run/nvidia/driver"),
            driver_root_ctr_path=world.root / "driver",
            cdi_spec_dir=self.specs,
            validations_dir=world.root / "validations",
            hook_path=world.root / "nothing",
        )
        world.parts = self.parts = FakeParts(name_of=mig_uuid)
        world.cards = (self.card(),)

    def card(self, *made: MadePart) -> Device:
        """The card as the driver shows it with these instances."""
        found = divided(0, *made)
        assert isinstance(found.detail, DriverCard)
        return replace(found, detail=replace(found.detail, layout=MigLayout(profiles=(SMALL,))))

    def start(self, fate: Fate | None = None, *made: MadePart) -> None:
        """A daemon starts and makes its first pass, after a scan that found these instances."""
        caps = CapNodes(self.world.root / "proc", self.world.root / "host")
        way = NodeHandOver(lambda: self.settings, self.world.root, caps)
        hook = HookFolder(self.settings.hook_path)
        self.world.responder = NvidiaResponder(hook, lambda: self.settings, way)
        self.desk = self.world.desk(fate)
        self.keep(*made)

    def keep(self, *made: MadePart) -> None:
        """A pass after a scan that found these instances."""
        answers = [answer_of(entry) for entry in self.desk.ledger.entries()]
        known = tuple(answer for answer in answers if answer is not None)
        assert self.world.responder is not None
        self.world.responder.keep(
            NodeSituation(node=NODE, cards=(self.card(*made),), answers=known)
        )

    def place(self, name: str, start: int = 0) -> None:
        row = {
            "containerIndex": 0,
            "deviceIndex": 0,
            "gpuUUID": uuid(0),
            "profile": "1g.5gb",
            "placement": {"start": start, "size": 1},
        }
        part = Part(uuid=uuid(0), memory_mib=4864, cores=15)
        notes = {nvidia_names.POD_MIG_ALLOCATIONS: json.dumps([row])}
        self.world.place(name, [Box(memory_mib=4000)], {"main": [part]}, annotations=notes)

    def files(self) -> set[str]:
        return {path.name for path in self.specs.glob("*MIG*")}


@pytest.fixture
def handing() -> Iterator[Handing]:
    with World() as world:
        yield Handing(world)


def test_engine_finds_the_instance_when_kubelet_has_the_answer(handing: Handing) -> None:
    handing.start()
    handing.place("p")
    answer = handing.world.allocate("p", IDS)
    assert answer.cdi_devices == (f"hami-node.io/gpu={mig_uuid(1)}",)
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert answer.mounts == ()
    spec = json.loads((handing.specs / file_name(mig_uuid(1))).read_bytes())
    check(spec)
    nodes = [node["path"] for node in spec["devices"][0]["containerEdits"]["deviceNodes"]]
    assert nodes == [
        "/dev/nvidia0",
        *(f"/dev/nvidia-caps/nvidia-cap{n}" for n in (cap_of(0, 1), cap_of(0, 1, 0))),
    ]
    assert handing.world.allocate("p", IDS) == answer, "asked again, the same bytes"


def test_refusal_for_a_missing_node_reaches_pod_and_kubelet_and_frees_the_lock(
    handing: Handing,
) -> None:
    handing.settings = replace(
        handing.settings,
        device_list_strategy=(DeviceListStrategy.ENVVAR,),
        pass_device_specs=True,
    )
    lay_caps(handing.world.root / "proc", has_major=False)
    handing.start()
    handing.place("p")
    with pytest.raises(AllocationError, match=r"nvidia-cap\d+, without which.*nvidia-modprobe"):
        handing.world.allocate("p", IDS)
    assert handing.world.pod("p").annotations[names.POD_BIND_PHASE] == names.PHASE_FAILED
    assert handing.world.lock_text == ""
    folder = handing.world.root / "driver/dev/nvidia-caps"
    folder.mkdir()
    for number in (cap_of(0, 2), cap_of(0, 2, 0)):
        folder.joinpath(f"nvidia-cap{number}").touch()
    handing.place("again", 1)
    found = handing.world.allocate("again", IDS)
    assert dict(found.envs) == {"NVIDIA_VISIBLE_DEVICES": mig_uuid(2)}
    assert [node.container_path for node in found.devices][-2:] == [
        f"/dev/nvidia-caps/nvidia-cap{number}" for number in (cap_of(0, 2), cap_of(0, 2, 0))
    ]


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
def test_daemon_killed_at_any_step_leaves_no_file_and_loses_none(
    handing: Handing, at: int, is_after: bool
) -> None:
    handing.start(Fate(at=at, is_after=is_after))
    handing.place("p")
    made = MadePart(uuid=mig_uuid(1), numbers=(1, 0))
    try:
        handing.world.allocate("p", IDS)
    except Killed:
        handing.start(None, made)
        handing.world.kubelet_fails("p")
    else:
        handing.start(None, made)
        assert handing.files() == {file_name(mig_uuid(1))}, "the container may be made again"
        handing.world.api.delete("pods", "p", "default")
        del handing.world.listed.held["default", "p"]
    handing.desk.wait_seen()
    for entry in handing.desk.ledger.entries():
        handing.desk.ledger.remove(*entry.key)
    handing.keep(made)
    handing.keep()
    assert handing.files() == set()
