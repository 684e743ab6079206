"""What stands on the node, and what is answered, through cards, drivers and faults."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container, Device, Grant, Node
from hami_node.vendors.nvidia.cards import (
    NVIDIA,
)
from hami_node.vendors.nvidia.choices import DeviceListStrategy
from hami_node.vendors.nvidia.mig.layout import (
    DriverCard,
)
from hami_node.vendors.nvidia.node.handover.choice import Named
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.handover.spec_file import NAME
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, NodeSituation, Slice
from tests.fakes.cards import card, uuid
from tests.fakes.driver_root import lay_driver
from tests.reliability import shows
from tests.unit.vendors.nvidia.node.handover.cdi_schema import check

NODE = Node(name="n1", kubelet_version="v1.34.0", engine_version="containerd://2.1.4")
HOST = Path("/run/nvidia/driver")


def real(index: int, minor: int | None = None) -> Device:
    """A card as the driver shows it."""
    return card(index, detail=DriverCard(minor=index if minor is None else minor))


CARDS = tuple(real(i) for i in range(3))


class Desk:
    """A node without a runtime of NVIDIA's, and its folder of specs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.specs, self.driver = folder / "cdi", folder / "driver-root"
        self.process = folder / "process"
        self.process.mkdir()
        lay_driver(self.driver)
        self.settings = NvidiaSettings(
            driver_root_ctr_path=self.driver,
            driver_root=HOST,
            cdi_spec_dir=self.specs,
            validations_dir=folder / "validations",
        )
        self.restart()

    def restart(self) -> None:
        """Another daemon."""
        self.way = NodeHandOver(lambda: self.settings, self.process)

    def change(self, **values: Any) -> None:
        self.settings = replace(self.settings, **values)

    def keep(
        self,
        *cards: Device,
        node: Node | None = NODE,
        answers: tuple[ContainerResponse, ...] | None = (),
    ) -> None:
        self.way.keep(NodeSituation(node=node, cards=cards, answers=answers))

    def name(
        self, *indexes: int, cards: tuple[Device, ...] = CARDS, env: dict[str, str] | None = None
    ) -> Named:
        """What a container with these cards is answered."""
        grants = tuple(Grant(uuid=uuid(i), vendor=NVIDIA, memory_mib=1, cores=0) for i in indexes)
        by_uuid = {device.uuid: device for device in cards}
        box = Container(name="c", env=env or {})
        part = Slice(pod_uid="u", container=box, grants=grants, cards=by_uuid)
        return self.way.name(part)

    @property
    def file(self) -> Path:
        return self.specs / NAME

    def spec(self) -> dict[str, str]:
        """Device node by card, of the file that engines read; it is valid."""
        found = json.loads(self.file.read_bytes())
        check(found)
        return {
            device["name"]: device["containerEdits"]["deviceNodes"][0]["path"]
            for device in found["devices"]
        }


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def nodes(*indexes: int) -> dict[str, str]:
    return {uuid(i): f"/dev/nvidia{i}" for i in indexes}


def answered(*indexes: int) -> ContainerResponse:
    """What a container on record was given."""
    return ContainerResponse(
        envs=(), cdi_devices=tuple(f"hami-node.io/gpu={uuid(i)}" for i in indexes)
    )


class OperatorsDesk(Desk):
    """A node whose driver is where the GPU Operator's validator says; the host has an old one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        lay_driver(folder / "host", "470.1.1")
        self.mark = folder / "validations/driver-ready"
        self.mark.parent.mkdir()
        self.change(driver_root=None, driver_root_ctr_path=folder / "host")

    def say(self) -> None:
        self.mark.write_text(
            f"NVIDIA_DRIVER_ROOT={HOST}\nDRIVER_ROOT_CTR_PATH={self.driver}\nNVIDIA_DEV_ROOT=/\n"
        )


# -- specs -----------------------------------------------------------------------------------------


def test_specs_wait_for_the_operators_driver_instead_of_taking_remains_of_another(
    tmp_path: Path,
) -> None:
    desk = OperatorsDesk(tmp_path)
    desk.say()
    desk.keep(*CARDS, answers=(answered(0),))
    before = desk.file.read_bytes()
    desk.mark.unlink()
    desk.restart()
    desk.keep(*CARDS, answers=(answered(0),))
    assert desk.file.read_bytes() == before, "containers that start again find what they had"
    with pytest.raises(AllocationError, match=r"driver-ready is missing.*--driver-root"):
        desk.name(0)
    desk.say()
    desk.keep(*CARDS, answers=(answered(0),))
    desk.name(0)
    assert desk.file.read_bytes() == before


def test_specs_are_there_before_anybody_asks_and_before_the_api_server_answers(desk: Desk) -> None:
    desk.keep(*CARDS, node=None, answers=None)
    assert desk.spec() == nodes(0, 1, 2)
    assert os.stat(desk.file).st_mode & 0o777 == 0o644
    assert [path.name for path in desk.specs.iterdir()] == [NAME]
    assert desk.way.state().summary == "", "nothing is chosen while the node is unknown"


def test_specs_follow_cards_and_driver(desk: Desk) -> None:
    desk.keep(*CARDS)
    before = desk.file.stat().st_ino
    desk.keep(*CARDS)
    assert desk.file.stat().st_ino == before, "nothing changed, nothing is written"
    desk.keep(CARDS[1])
    assert desk.spec() == nodes(1)
    lay_driver(desk.driver, "570.1.2")
    desk.keep(CARDS[1])
    assert ".so.570.1.2" in desk.file.read_text()


@shows(
    "H1",
    fault="the folder of our CDI specs is emptied (a reboot, a clean-up) while containers run",
    happens="the specs are there again before the next Allocate is answered, and at the next look",
)
def test_specs_that_somebody_removed_are_back_before_the_answer(desk: Desk) -> None:
    desk.keep(*CARDS)
    desk.file.unlink()
    desk.name(1)
    assert desk.spec() == nodes(0, 1, 2)
    desk.file.unlink()
    desk.keep(*CARDS)
    assert desk.spec() == nodes(0, 1, 2)


@shows(
    "H2",
    fault="a card falls off the driver, or a daemon starts without it, while a container holds it",
    happens="its spec stays for the container's next start, until the record has freed it; one "
    "whose device node is another card's by now goes at once",
)
def test_spec_of_a_card_that_is_gone_stays_while_it_is_held(desk: Desk) -> None:
    desk.keep(*CARDS)
    desk.restart()
    desk.keep(CARDS[0], answers=None)
    assert desk.spec() == nodes(0, 1, 2), "who holds what is not known yet"
    desk.keep(CARDS[0], answers=(answered(2),))
    assert desk.spec() == nodes(0, 2)
    desk.keep(real(0, minor=2), answers=(answered(2),))
    assert desk.spec() == {uuid(0): "/dev/nvidia2"}
    desk.keep(CARDS[0])
    assert desk.spec() == nodes(0)


def test_specs_stay_after_another_strategy_was_set_until_nobody_holds_them(desk: Desk) -> None:
    desk.keep(*CARDS)
    desk.change(device_list_strategy=(DeviceListStrategy.ENVVAR,), driver_root=None)
    by_note = ContainerResponse(
        envs=(), annotations=(("cdi.k8s.io/x", f"hami-node.io/gpu={uuid(1)}"),)
    )
    for answers in ((answered(0),), (by_note,), None):
        desk.keep(*CARDS, answers=answers)
        assert desk.file.exists()
    desk.keep(*CARDS, answers=(ContainerResponse(envs=()),))
    assert not desk.file.exists()


def test_daemon_that_ends_leaves_specs_that_are_in_an_answer_and_not_on_record_yet(
    desk: Desk,
) -> None:
    desk.keep(*CARDS)
    desk.name(1)
    desk.keep(CARDS[0])
    assert desk.spec() == nodes(0, 1)
    desk.way.close()
    assert desk.file.exists()
    desk.keep(CARDS[0], answers=(answered(1),))
    desk.keep(CARDS[0])
    desk.way.close()
    assert not desk.file.exists()


def test_link_in_the_specs_place_is_replaced_and_not_followed(desk: Desk) -> None:
    desk.specs.mkdir()
    victim = desk.folder / "victim"
    victim.write_text("mine")
    desk.file.symlink_to(victim)
    (desk.specs / f".{NAME}.new").symlink_to(victim)
    desk.keep(*CARDS)
    assert victim.read_text() == "mine"
    assert not desk.file.is_symlink()
    assert desk.spec() == nodes(0, 1, 2)


@shows(
    "H9",
    fault="the driver numbers its device nodes differently, and an Allocate comes before the next "
    "look at the node",
    happens="the specs are right before the answer leaves, or the container is refused: none gets "
    "its neighbour's device node",
)
def test_answer_never_leaves_with_a_spec_of_an_older_numbering(desk: Desk) -> None:
    desk.keep(*CARDS)
    swapped = (real(0, minor=1), real(1, minor=0), real(2))
    desk.name(0, cards=swapped)
    assert desk.spec() == {
        uuid(0): "/dev/nvidia1", uuid(1): "/dev/nvidia0", uuid(2): "/dev/nvidia2"
    }  # fmt: skip
    unknown = (card(0, detail=DriverCard(minor=None)), real(1), real(2))
    with pytest.raises(AllocationError, match=uuid(0)):
        desk.name(0, cards=unknown)


# -- refusals --------------------------------------------------------------------------------------
def closed(desk: Desk) -> None:
    desk.specs.write_text("a file, not a folder")


def no_driver(desk: Desk) -> None:
    for path in desk.driver.rglob("*.so*"):
        path.unlink()


def no_root(desk: Desk) -> None:
    desk.change(driver_root_ctr_path=desk.folder / "nothing")


@shows(
    "H3",
    fault="our CDI specs can't be written, or the driver's files are not where they should be",
    happens="Allocate refuses with the reason and what to mount; /readyz, the log, /config and the "
    "node's hand-over annotation say it; it works again as soon as they are there",
)
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (closed, "is for our CDI specs, but it can't be written in: mount that folder"),
        (no_driver, "the driver's libraries are not below"),
        (no_root, "mount the driver's folder of the host (/run/nvidia/driver"),
    ],
)
def test_own_cdi_that_cant_work_refuses_with_the_remedy(
    desk: Desk, harm: Callable[[Desk], None], words: str
) -> None:
    harm(desk)
    desk.keep(*CARDS)
    assert words in desk.way.state().problem
    assert desk.way.state().summary.startswith("refused: ")
    with pytest.raises(AllocationError, match="can't be handed over on this node") as caught:
        desk.name(0)
    assert words in str(caught.value)
    if desk.specs.is_file():
        desk.specs.unlink()
    lay_driver(desk.driver)
    desk.change(driver_root_ctr_path=desk.driver)
    desk.keep(*CARDS)
    assert desk.way.state().problem == ""
    assert desk.name(0).cdi_devices == (f"hami-node.io/gpu={uuid(0)}",)


@shows(
    "H4",
    fault="the driver does not tell a card's device node, or tells the same one for two cards",
    happens="neither has a spec or a device node, and a container with it is refused by name; "
    "other cards are served",
)
def test_card_whose_device_node_is_not_certain_is_refused_alone(desk: Desk) -> None:
    unknown = card(0, detail=DriverCard(minor=None))
    cards = (unknown, real(1, minor=7), real(2, minor=7), real(3))
    desk.keep(*cards)
    assert desk.spec() == nodes(3)
    desk.name(3, cards=cards)
    for index in (0, 1, 2):
        with pytest.raises(AllocationError, match=uuid(index)):
            desk.name(index, cards=cards)
    desk.change(device_list_strategy=(DeviceListStrategy.ENVVAR,), pass_device_specs=True)
    for index in (0, 1, 2):
        with pytest.raises(AllocationError, match=uuid(index)):
            desk.name(index, cards=cards)


@shows(
    "H5",
    fault="the container engine or kubelet is too old for CDI names, or may have CDI off",
    happens="Allocate refuses and says which engine, version or setting helps; an old kubelet gets "
    "the names as annotations",
)
@pytest.mark.parametrize(
    ("kubelet", "engine", "summary"),
    [
        ("v1.28.3", "containerd://2.0.0", "cdi-annotations hami-node.io/gpu=UUID"),
        ("v1.30.0", "containerd://1.7.9", "refused: containerd://1.7.9 may have CDI switched off"),
        ("v1.30.0", "containerd://1.6.9", "refused: containerd://1.6.9 knows no CDI"),
        ("v1.30.0", "", "refused: the node does not say which container engine it has"),
    ],
)
def test_versions_of_the_node_decide(desk: Desk, kubelet: str, engine: str, summary: str) -> None:
    desk.keep(*CARDS, node=replace(NODE, kubelet_version=kubelet, engine_version=engine))
    assert desk.way.state().summary.startswith(summary)


@shows(
    "H6",
    fault="a pod that no webhook has seen sets NVIDIA_VISIBLE_DEVICES itself, which in kubelet "
    "wins over the node's answer",
    happens="Allocate refuses the container and names the variable",
)
@pytest.mark.parametrize("value", ["all", "0", "none", "", uuid(0)])
def test_variable_of_the_pods_own_is_refused(desk: Desk, value: str) -> None:
    desk.keep(*CARDS)
    with pytest.raises(AllocationError, match="container c sets NVIDIA_VISIBLE_DEVICES itself"):
        desk.name(1, env={"NVIDIA_VISIBLE_DEVICES": value})
    assert desk.name(1, env={"NVIDIA_VISIBLE_DEVICES": "void"}).cdi_devices
