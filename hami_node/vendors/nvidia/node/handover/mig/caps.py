"""The driver's capabilities of MIG instances: their numbers, and their device nodes on the host.

A program can use an instance where it can open `/dev/nvidia-caps/nvidia-cap<n>` of the GPU instance
and of the compute instance. The driver says n; the nodes are there once somebody has made them.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.vendors.nvidia.driver.location import HOST, HOST_MOUNT, DriverRoot
from hami_node.vendors.nvidia.node.handover.cdi_spec import CAPABILITY_MODE, HostNode
from hami_node.vendors.nvidia.node.handover.driver_files import node
from hami_node.vendors.nvidia.node.handover.handed import Instance

PROC: Final = Path("/proc")
MINORS: Final = Path("driver/nvidia-caps/mig-minors")
FOLDER: Final = Path("dev/nvidia-caps")
_DRIVER_NAME: Final = "nvidia-caps"
_MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_MINOR: Final = (1 << 20) - 1
_MAX_MAJOR: Final = (1 << 12) - 1


def find_caps(text: str, minor: int, instance: Instance) -> tuple[int, int] | None:
    """The numbers of both capabilities by mig-minors; None unless each has exactly one."""
    gpu = f"gpu{minor}/gi{instance.gpu_instance_id}"
    found = (
        _only(text, f"{gpu}/access"),
        _only(text, f"{gpu}/ci{instance.compute_instance_id}/access"),
    )
    of_gpu, of_compute = found
    if of_gpu is None or of_compute is None or of_gpu == of_compute:
        return None
    return of_gpu, of_compute


def find_major(text: str) -> int | None:
    """The major number of the capabilities' nodes by /proc/devices; None where it has none."""
    major = _only(text.partition("Block devices:")[0], _DRIVER_NAME, is_first=False)
    return major if major is not None and 0 < major <= _MAX_MAJOR else None


def _only(text: str, name: str, *, is_first: bool = True) -> int | None:
    """The number beside a name, which stands in one line only."""
    word, number = re.escape(name), r"(\d{1,7})"
    line = rf"^{word} {number}[ \t]*$" if is_first else rf"^[ \t]*{number} {word}[ \t]*$"
    found = re.findall(line, text, re.ASCII | re.MULTILINE)
    return int(found[0]) if len(found) == 1 and int(found[0]) <= _MAX_MINOR else None


class CapNodes:
    """Finds the device nodes of instances, and makes those that are missing where it may."""

    def __init__(self, proc: Path = PROC, host: Path = HOST_MOUNT) -> None:
        """`proc` is this kernel's, `host` is where folders of the host may be mounted."""
        self._proc, self._host = proc, host

    def of(self, root: DriverRoot, minor: int, instance: Instance) -> tuple[HostNode, HostNode]:
        """The nodes of GPU instance and compute instance, whether the host has them or not.

        Raises:
            AllocationError: the driver does not report them.
        """
        caps = None
        for place in (self._proc, root.inside / "proc"):
            caps = caps or find_caps(_text(place / MINORS), minor, instance)
        if caps is None:
            raise AllocationError(
                f"{self._proc / MINORS} does not list the capabilities of MIG instance "
                f"{instance.uuid} (gpu{minor}/gi{instance.gpu_instance_id}/"
                f"ci{instance.compute_instance_id}): is the driver 450 or later, and this folder "
                "of /proc visible in the daemon's container?"
            )
        major = find_major(_text(self._proc / "devices"))
        of_gpu, of_compute = (self._node(root, number, major) for number in caps)
        return of_gpu, of_compute

    def ensure(self, root: DriverRoot, found: HostNode) -> bool | None:
        """Make a node that the host lacks; None where the host's folder can't be seen from here.

        Raises:
            AllocationError: it is not there and can't be made, or is another's.
        """
        folder = self._folder(root)
        if folder is None:
            return None
        path = folder / found.path.rpartition("/")[2]
        if self._is_there(path, found):
            return False
        try:
            _make(path, found)
        except OSError as e:
            if self._is_there(path, found):
                return False  # somebody else has just made it
            raise AllocationError(_missing(found, e.strerror or str(e))) from e
        return True

    def _folder(self, root: DriverRoot) -> Path | None:
        """The host's /dev/nvidia-caps as mounted here; our own container's is not the host's."""
        mounted = self._host / FOLDER
        if root.dev_host == HOST and mounted.is_dir():
            return mounted
        is_seen = root.dev_inside != HOST and (root.dev_inside / "dev").is_dir()
        return root.dev_inside / FOLDER if is_seen else None

    def _node(self, root: DriverRoot, number: int, major: int | None) -> HostNode:
        found = node(root, f"nvidia-caps/nvidia-cap{number}")
        numbers = (major, number) if major is not None else None
        return HostNode(path=found.path, host_path=found.host_path, numbers=numbers)

    @staticmethod
    def _is_there(path: Path, found: HostNode) -> bool:
        """With another number it belonged to an earlier load of the driver."""
        try:
            status = path.stat()
        except OSError:
            return False
        if found.numbers is None:
            return not stat.S_ISDIR(status.st_mode)
        is_node = stat.S_ISCHR(status.st_mode)
        return is_node and status.st_rdev == os.makedev(*found.numbers)


def unseen(instance: Instance) -> str:
    """Why kubelet can't be told the nodes of an instance, and what to do."""
    return (
        f"whether the host has the device nodes of MIG instance {instance.uuid} can't be seen: "
        f"mount the host's /{FOLDER} at {HOST_MOUNT / FOLDER} (daemonset/components/mig), or "
        "switch PASS_DEVICE_SPECS off"
    )


def _make(path: Path, found: HostNode) -> None:
    if found.numbers is None:
        raise FileNotFoundError(2, "the kernel names no driver nvidia-caps in /proc/devices")
    os.mknod(path, stat.S_IFCHR | CAPABILITY_MODE, os.makedev(*found.numbers))
    path.chmod(CAPABILITY_MODE)  # whatever the umask


def _missing(found: HostNode, why: str) -> str:
    return (
        f"the host has no usable {found.host_path}, without which the container can't open its "
        f"MIG instance, and it can't be made ({why}): run nvidia-smi once on the host, or "
        "nvidia-modprobe -f with the instance's file below /proc/driver/nvidia/capabilities; or "
        "give the daemon the rights for it (daemonset/components/mig)"
    )


def _text(path: Path) -> str:
    """The beginning of a file; "" where there is none."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("ascii", errors="replace")
    except OSError:
        return ""
