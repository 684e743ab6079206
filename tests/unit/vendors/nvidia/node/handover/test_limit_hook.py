"""Our own CDI specs name the hook of the driver's memory limit where, and only where, it helps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hami_node.vendors.nvidia.choices import MemoryLimitBy
from hami_node.vendors.nvidia.node.driver_limit import Toolkit
from hami_node.vendors.nvidia.settings import NvidiaSettings
from tests.fakes.cards import uuid
from tests.unit.vendors.nvidia.node.handover.cdi_schema import check
from tests.unit.vendors.nvidia.node.handover.test_node_hand_over import CARDS, HOST, Desk

TASK = b"apply-cuda-memory-limits"


class LimitDesk(Desk):
    """A node with NVIDIA's hook."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.hook = folder / "nvidia-cdi-hook"
        self.install(TASK)
        self.change(nvidia_cdi_hook_path=self.hook, memory_limit_by=MemoryLimitBy.DRIVER)

    def install(self, content: bytes) -> None:
        """A hook whose program has this content."""
        new = self.hook.with_suffix(".new")
        new.write_bytes(b"\x7fELF" + bytes(5000) + content + bytes(5000))
        new.replace(self.hook)

    def limited(self) -> dict[str, list[str]]:
        """Arguments of the limit's hook by card, of the file that engines read."""
        found = json.loads(self.file.read_bytes())
        check(found)
        return {
            device["name"]: hook["args"]
            for device in found["devices"]
            for hook in device["containerEdits"].get("hooks", ())
            if hook["hookName"] == "createRuntime" and hook["path"] == str(self.hook)
        }


@pytest.fixture
def desk(tmp_path: Path) -> LimitDesk:
    return LimitDesk(tmp_path)


@pytest.mark.parametrize("by", [MemoryLimitBy.DRIVER, MemoryLimitBy.BOTH])
def test_each_card_has_its_own_hook_with_the_hosts_paths(
    desk: LimitDesk, by: MemoryLimitBy
) -> None:
    desk.change(memory_limit_by=by)
    desk.keep(*CARDS)
    assert desk.limited() == {
        uuid(i): ["nvidia-cdi-hook", TASK.decode(), "--driver-root", str(HOST), "--gpu-id", uuid(i)]
        for i in range(3)
    }
    assert desk.way.toolkit() is Toolkit.APPLIES


def test_hook_that_does_not_know_the_task_is_not_asked_for_it(desk: LimitDesk) -> None:
    desk.install(b"update-ldcache")
    desk.keep(*CARDS)
    assert desk.limited() == {}
    assert desk.way.toolkit() is Toolkit.NO_HOOK
    desk.install(TASK)
    desk.keep(*CARDS)
    assert len(desk.limited()) == 3, "another program was installed"
    assert desk.way.toolkit() is Toolkit.APPLIES


def test_hook_that_can_not_be_seen_is_trusted(desk: LimitDesk) -> None:
    desk.hook = Path("/opt/toolkit/nvidia-cdi-hook")
    desk.change(nvidia_cdi_hook_path=desk.hook)
    desk.keep(*CARDS)
    assert len(desk.limited()) == 3
    assert desk.way.toolkit() is Toolkit.UNKNOWN


@pytest.mark.parametrize(
    ("environment", "is_injected", "toolkit"),
    [
        (b"NVIDIA_VISIBLE_DEVICES=void\0", True, Toolkit.APPLIES),
        (b"NVIDIA_VISIBLE_DEVICES=all\0NVIDIA_VISIBLE_DEVICES=void\0", True, Toolkit.TOO_OLD),
        (b"NVIDIA_VISIBLE_DEVICES=all\0", True, Toolkit.LEGACY),
        (b"NVIDIA_VISIBLE_DEVICES=all\0", False, Toolkit.UNKNOWN),
        (b"NVIDIA_VISIBLE_DEVICES=void\0", False, Toolkit.UNKNOWN),
        (b"", True, Toolkit.UNKNOWN),
    ],
)
def test_runtime_tells_by_what_it_wrote_into_our_environment(
    tmp_path: Path, environment: bytes, is_injected: bool, toolkit: Toolkit
) -> None:
    desk = Desk(tmp_path)
    desk.process.joinpath("environ").write_bytes(environment)
    if is_injected:
        desk.process.joinpath("mountinfo").write_text(
            "1 2 8:1 /x /usr/lib64/libnvidia-ml.so.615.1 ro - ext4 /dev/sda rw\n"
        )
    desk.settings = NvidiaSettings(driver_root_ctr_path=tmp_path / "none")
    desk.restart()
    assert desk.way.toolkit() is toolkit
