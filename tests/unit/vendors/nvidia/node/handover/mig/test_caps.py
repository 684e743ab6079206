"""The driver's capabilities: their numbers by mig-minors, and their nodes on the host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.vendors.nvidia.driver import HOST, DriverRoot
from hami_node.vendors.nvidia.node.handover.cdi_spec import HostNode
from hami_node.vendors.nvidia.node.handover.handed import Instance
from hami_node.vendors.nvidia.node.handover.instances import (
    CapNodes,
    find_caps,
    find_major,
)
from tests.fakes.cards import uuid
from tests.fakes.made_instances import MAJOR, cap_of, lay_caps, mig_uuid, minors_text
from tests.reliability import shows


def instance(gpu_instance: int = 0, compute_instance: int = 0) -> Instance:
    return Instance(
        uuid=mig_uuid(1),
        card=uuid(0),
        gpu_instance_id=gpu_instance,
        compute_instance_id=compute_instance,
    )


# -- numbers ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("minor", "gi", "ci"), [(0, 0, 0), (0, 1, 0), (1, 0, 0), (7, 14, 7)])
def test_numbers_are_those_of_the_file(minor: int, gi: int, ci: int) -> None:
    found = find_caps(minors_text(), minor, instance(gi, ci))
    assert found == (cap_of(minor, gi), cap_of(minor, gi, ci))


def test_number_of_another_instance_with_a_longer_name_is_never_taken() -> None:
    text = "gpu0/gi11/access 5\ngpu0/gi1/ci10/access 6\ngpu10/gi1/access 7\nxgpu0/gi1/access 8\n"
    assert find_caps(text, 0, instance(1, 0)) is None
    text += "gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"
    assert find_caps(text, 0, instance(1, 0)) == (12, 13)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu0/gi0/access 3\n",
        "gpu0/gi0/ci0/access 4\n",
        "gpu0/gi0/access 3\ngpu0/gi0/ci0/access 3\n",
        "gpu0/gi0/access 3\ngpu0/gi0/access 9\ngpu0/gi0/ci0/access 4\n",
        "gpu0/gi0/access 3\ngpu0/gi0/ci0/access -4\n",
        "gpu0/gi0/access 3\ngpu0/gi0/ci0/access 1048576\n",
        "gpu0/gi0/access 3\ngpu0/gi0/ci0/access 99999999999999999999\n",
        "gpu0/gi0/access 3\ngpu0/gi0/ci0/access 4 5\n",
        "gpu0/gi0/access 3\ngpu0/gi0/ci0/access \u0664\n",
        "gpu0/gi0/access 3 gpu0/gi0/ci0/access 4",
    ],
    ids=[
        "empty", "no-compute-instance", "no-gpu-instance", "one-number-for-both", "two-numbers",
        "negative", "too-large-for-a-node", "huge", "two-words", "other-digits", "one-line",
    ],
)  # fmt: skip
def test_text_that_does_not_tell_both_for_certain_tells_nothing(text: str) -> None:
    assert find_caps(text, 0, instance()) is None


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("Character devices:\n234 nvidia-caps\n", 234),
        ("Character devices:\n  4 nvidia-caps\n\nBlock devices:\n", 4),
        ("Character devices:\n234 nvidia-caps-imex-channels\n", None),
        ("Character devices:\n\nBlock devices:\n234 nvidia-caps\n", None),
        ("Character devices:\n234 nvidia-caps\n235 nvidia-caps\n", None),
        ("Character devices:\n0 nvidia-caps\n", None),
        ("Character devices:\n9999 nvidia-caps\n", None),
        ("", None),
    ],
)
def test_major_number_is_the_character_drivers(text: str, major: int | None) -> None:
    assert find_major(text) == major


# -- nodes -----------------------------------------------------------------------------------------
class Host:
    """A host's /dev as the component mounts it, and this kernel's /proc."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mount = folder / "proc", folder / "host"
        self.folder = self.mount / "dev/nvidia-caps"
        self.folder.mkdir(parents=True)
        lay_caps(self.proc)
        self.caps = CapNodes(self.proc, self.mount)
        self.root = DriverRoot(host=HOST, inside=HOST, dev_host=HOST, dev_inside=HOST)

    def nodes(self) -> tuple[HostNode, HostNode]:
        return self.caps.of(self.root, 0, instance(1, 0))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def may_make_nodes(folder: Path) -> bool:
    try:
        os.mknod(folder / "probe", stat.S_IFCHR | 0o444, os.makedev(MAJOR, 1))
    except OSError:
        return False
    (folder / "probe").unlink()
    return True


def test_nodes_have_the_numbers_of_the_driver(host: Host) -> None:
    paths = [found.path for found in host.nodes()]
    assert paths == [f"/dev/nvidia-caps/nvidia-cap{n}" for n in (cap_of(0, 1), cap_of(0, 1, 0))]
    assert [found.numbers for found in host.nodes()] == [
        (MAJOR, cap_of(0, 1)),
        (MAJOR, cap_of(0, 1, 0)),
    ]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"gpu0/gi1/access 3\ngpu0/g"])
def test_capabilities_that_the_driver_does_not_tell_are_refused(
    host: Host, content: bytes | None
) -> None:
    file = host.proc / "driver/nvidia-caps/mig-minors"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(AllocationError, match=r"mig-minors.*gpu0/gi1/ci0") as caught:
        host.nodes()
    assert mig_uuid(1) in str(caught.value)


def test_capabilities_may_be_seen_below_the_drivers_root_where_proc_is_hidden(
    host: Host, tmp_path: Path
) -> None:
    inside = tmp_path / "driver"
    (inside / "proc").mkdir(parents=True)
    (host.proc / "driver").rename(inside / "proc/driver")
    host.root = DriverRoot(host=HOST, inside=inside, dev_host=HOST, dev_inside=inside)
    assert host.nodes()[0].path.endswith(f"cap{cap_of(0, 1)}")


def test_missing_nodes_are_made_with_the_drivers_numbers(host: Host) -> None:
    if not may_make_nodes(host.folder):
        pytest.skip("no right to make device nodes here")
    for found in host.nodes():
        assert host.caps.ensure(host.root, found) is True
        assert host.caps.ensure(host.root, found) is False
        status = (host.folder / found.path.rpartition("/")[2]).stat()
        assert stat.S_ISCHR(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o444
        assert found.numbers is not None
        assert status.st_rdev == os.makedev(*found.numbers)


@shows(
    "G18",
    fault="the host has no device node of an instance's capability, and the daemon can't make it; "
    "or there is one of an earlier load of the driver",
    happens="the container is refused, and told how the node comes to be; what is there stays",
)
@pytest.mark.parametrize("thing", ["nothing", "file", "folder", "stale"])
def test_node_that_is_missing_or_wrong_is_refused_with_the_remedy(host: Host, thing: str) -> None:
    found = host.nodes()[0]
    path = host.folder / found.path.rpartition("/")[2]
    if thing == "file":
        path.touch()
    elif thing == "folder":
        path.mkdir()
    elif thing == "stale":
        if not may_make_nodes(host.folder):
            pytest.skip("no right to make device nodes here")
        os.mknod(path, stat.S_IFCHR | 0o444, os.makedev(MAJOR + 1, 1))
    else:
        found = HostNode(path=found.path, host_path=found.host_path)
    before = path.lstat() if thing != "nothing" else None
    with pytest.raises(AllocationError, match=r"nvidia-modprobe -f.*daemonset/components/mig"):
        host.caps.ensure(host.root, found)
    assert (path.lstat() if thing != "nothing" else None) == before


def test_own_dev_of_the_container_is_not_taken_for_the_hosts(host: Host) -> None:
    found = host.nodes()[0]
    assert CapNodes(host.proc, host.mount / "nothing").ensure(host.root, found) is None


def test_dev_of_a_drivers_container_counts_only_where_it_is_mounted(
    host: Host, tmp_path: Path
) -> None:
    found, inside = host.nodes()[0], tmp_path / "driver"
    root = DriverRoot(host=inside, inside=inside, dev_host=inside, dev_inside=inside)
    assert host.caps.ensure(root, found) is None, "the host's own folder is another one"
    (inside / "dev").mkdir(parents=True)
    with pytest.raises(AllocationError, match="No such file"):
        host.caps.ensure(root, found)
