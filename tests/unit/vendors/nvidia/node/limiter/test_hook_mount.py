"""The hook folder has to be the node's, and writable."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.vendors.nvidia.choices import LimiterMode
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.limiter.hook_folder import (
    HookFolder,
    Surroundings,
    folder_problem,
)
from hami_node.vendors.nvidia.node.response import NvidiaResponder
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import Slice
from tests.reliability import shows

ROOT = "21 1 0:30 / / rw - overlay overlay rw"


def around(folder: Path, *mounts: str, is_container: bool = True) -> Surroundings:
    mountinfo = folder / "mountinfo"
    mountinfo.write_text("\n".join((ROOT, *mounts)) + "\n")
    return Surroundings(mountinfo=mountinfo, is_container=is_container)


def mount(root: str, point: Path | str, kind: str = "ext4") -> str:
    return f"30 21 8:1 {root} {point} rw,relatime master:1 - {kind} /dev/sda1 rw"


def test_mounted_folder_is_fine(tmp_path: Path) -> None:
    found = around(tmp_path, mount("/var/lib/hami/vgpu", tmp_path / "vgpu"))
    assert folder_problem(tmp_path / "vgpu", found) == ""


def test_outside_a_container_the_machine_itself_is_the_node(tmp_path: Path) -> None:
    assert folder_problem(tmp_path / "vgpu", around(tmp_path, is_container=False)) == ""


@shows(
    "D9",
    fault="HOOK_PATH names a folder that is not the one mounted into the daemon",
    happens="log and every refusal say so, with both settings to change; no pod runs unlimited",
)
@pytest.mark.parametrize("elsewhere", ["/usr/local/vgpu", "/"])
def test_folder_of_the_daemons_own_container_is_refused(tmp_path: Path, elsewhere: str) -> None:
    mounts = [] if elsewhere == "/" else [mount("/usr/local/vgpu", elsewhere)]
    problem = folder_problem(tmp_path / "vgpu", around(tmp_path, *mounts))
    assert problem == f"{tmp_path}/vgpu is in the daemon's own container, not on the node"
    folder = HookFolder(tmp_path, problem=problem)
    assert not folder.limiter().is_complete
    assert "HOOK_PATH" in folder.limiter().hint
    with pytest.raises(AllocationError, match=r"own container.*--hook-path"):
        folder.prepare(Slice(pod_uid="u", container=None, grants=()), folder.limiter())  # type: ignore[arg-type]
    assert not tmp_path.joinpath("vgpu").exists()


def test_node_without_its_hook_folder_is_not_ready(tmp_path: Path) -> None:
    settings = NvidiaSettings(hook_path=tmp_path, limiter=LimiterMode.OPTIONAL)
    folder = HookFolder(tmp_path, problem="it is not the node's")
    state = NvidiaResponder(folder, lambda: settings, NodeHandOver(lambda: settings)).limiter()
    assert state.is_missing
    assert state.unready.startswith("it is not the node's: --hook-path (HOOK_PATH)")


def test_deepest_mount_counts_and_names_may_have_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "vgpu"
    shown = str(tmp_path / "a b").replace(" ", "\\040")
    found = around(tmp_path, mount("/", tmp_path, "overlay"), mount("/x", shown))
    assert folder_problem(folder, found) == ""


@pytest.mark.parametrize(
    ("root", "is_warned"),
    [("/usr/local/vgpu", False), ("/@/usr/local/vgpu", False), ("/", False), ("/data", True)],
)
def test_mount_from_a_folder_of_another_name_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, root: str, is_warned: bool
) -> None:
    found = around(tmp_path, mount(root, tmp_path / "vgpu"))
    with caplog.at_level(logging.WARNING):
        assert folder_problem(tmp_path / "vgpu", found) == ""
    assert [record.message for record in caplog.records] == ["hook_folder_from_elsewhere"] * (
        is_warned
    )


def test_folder_that_can_not_be_written_says_so(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    assert folder_problem(file / "vgpu") == f"{file}/vgpu can't be made"
    assert folder_problem(file) == f"{file} can't be written"


@pytest.mark.parametrize("text", ["", "x", "1 2 3", "30 21 8:1 / /a rw - ", "\udcff"])
def test_mountinfo_of_another_form_decides_nothing(tmp_path: Path, text: str) -> None:
    found = around(tmp_path)
    found.mountinfo.write_text(text, errors="surrogateescape")
    assert folder_problem(tmp_path / "vgpu", found) == ""
