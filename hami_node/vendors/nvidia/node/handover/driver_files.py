"""What the driver has put on the host: libraries, programs, device nodes, NVIDIA's CDI hook.

All of it is looked for where the driver's root is mounted here. Links in there mean the driver's
root, not this container's.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hami_node.vendors.nvidia.choices import MemoryLimitBy
from hami_node.vendors.nvidia.driver import FOLDERS, HOST, HOST_MOUNT, DriverRoot, resolve_in
from hami_node.vendors.nvidia.node.handover.cdi_spec import (
    LIMIT_TASK,
    DriverOnHost,
    HostFile,
    HostNode,
)
from hami_node.vendors.nvidia.node.limiter.versions import MACHINES
from hami_node.vendors.nvidia.settings import NvidiaSettings

CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_GDS_NODES: Final = ("nvidia-fs*",)
_MOFED_NODES: Final = ("infiniband/uverbs*", "infiniband/rdma_cm")
_GDRCOPY_NODES: Final = ("gdrdrv",)
_DEBIANS: Final = (
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
)
"""Where Debian's own packages keep the libraries that its links lead to."""
_FIRMWARE: Final = ("usr/lib/firmware", "lib/firmware")
_PROGRAMS: Final = ("usr/bin/nvidia-smi", "bin/nvidia-smi", "opt/bin/nvidia-smi")
_SMI_INSIDE: Final = "/usr/bin/nvidia-smi"
_HOOKS: Final = ("/usr/local/nvidia/toolkit/nvidia-cdi-hook", "/usr/bin/nvidia-cdi-hook")
_VERSIONED: Final = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{1,4}(?:\.\d{1,4}){1,2})")
_LINKED: Final = ("libcuda.so.1", "libnvidia-ml.so.1")


class DriverFiles:
    """Finds the driver's files; looks again when a folder of libraries has changed."""

    def __init__(self, machine: str | None = None) -> None:
        self._machine = machine or os.uname().machine
        self._seen: object = None
        self._libraries: tuple[HostFile, ...] = ()
        self._version = ""
        self._limit_hook = LimitHook()

    def find(self, root: DriverRoot, settings: NvidiaSettings) -> DriverOnHost | str:
        """Everything that containers need, or why it is not there, in a sentence."""
        if not root.inside.is_dir():
            return (
                "CDI specs of our own need the driver's files: mount the driver's folder of the "
                f"host ({root.host}, see --driver-root) at {root.inside} in this daemon's container"
            )
        try:
            self._look(root)
        except OSError as e:
            return f"the driver's files below {root.inside} can't be read: {e.strerror or e}"
        if not self._libraries:
            return (
                f"the driver's libraries are not below {root.inside} (no libcuda.so.<version> in "
                f"{', '.join(FOLDERS)}): install the driver, or check --driver-root {root.host} "
                "and its mount there"
            )
        hook = find_hook(root, settings)
        is_limiting = settings.memory_limit_by is not MemoryLimitBy.LIMITER
        can_limit = is_limiting and self.can_limit(hook, root) is not False
        return DriverOnHost(
            nodes=nodes(root, *CONTROL_NODES, *_further(settings)),
            libraries=self._libraries,
            # not remembered: they may come later than the libraries, and their folders tell nothing
            programs=tuple(_programs(root, self._version)),
            folders=tuple(sorted({file.paths[0].rpartition("/")[0] for file in self._libraries})),
            hook=hook,
            root=str(root.host),
            limits_memory=can_limit,
        )

    def can_limit(self, hook: str, root: DriverRoot) -> bool | None:
        """Whether the hook can set the driver's memory limit; None if that can't be seen."""
        return self._limit_hook.can_limit(hook, root) if hook else False

    def _look(self, root: DriverRoot) -> None:
        folders = tuple(_folders(root.inside))
        state = (root, tuple((folder, _mark(folder)) for folder in folders))
        if state == self._seen:
            return
        version = _version(root.inside, folders)
        self._libraries = self._of_version(root, folders, version) if version else ()
        self._seen, self._version = state, version

    def _of_version(
        self, root: DriverRoot, folders: tuple[Path, ...], version: str
    ) -> tuple[HostFile, ...]:
        """Every library of that version, once, with the links to it in its folder."""
        files: dict[Path, HostFile] = {}
        for folder in folders:
            names = sorted(n for n in os.listdir(folder) if n.startswith("lib") and ".so" in n)
            leads = {name: _real(root.inside, folder / name) for name in names}
            for name, target in leads.items():
                if target is None or target in files or not name.endswith(f".so.{version}"):
                    continue
                if self._is_foreign(target):
                    continue
                links = [n for n, other in leads.items() if other == target and n != name]
                within = folder.relative_to(root.inside)
                files[target] = HostFile(
                    paths=tuple(str(HOST / within / n) for n in (name, *links)),
                    host_path=_on_host(root, target),
                )
        return tuple(files.values())

    def _is_foreign(self, path: Path) -> bool:
        """A library for other programs: of 32 bits, or for another processor; or no file at all."""
        if not path.is_file():
            return True  # a pipe would be waited for
        try:
            with path.open("rb") as file:
                head = file.read(20)
        except OSError:
            return True
        if not head.startswith(b"\x7fELF") or len(head) < 20:
            return False
        machine = int.from_bytes(head[18:20], "little")
        return head[4] != 2 or machine != MACHINES.get(self._machine, machine)


def nodes(root: DriverRoot, *patterns: str) -> tuple[HostNode, ...]:
    """The device nodes that are there, by name; a name may have `*`."""
    folder = root.dev_inside / "dev"
    found = (path for pattern in patterns for path in folder.glob(pattern))
    names = sorted({str(path.relative_to(folder)) for path in found if not path.is_dir()})
    return tuple(node(root, name) for name in names)


def node(root: DriverRoot, name: str) -> HostNode:
    """A device node by its name below `dev/`."""
    return HostNode(path=f"/dev/{name}", host_path=str(root.dev_host / "dev" / name))


def no_minor(uuid: str) -> str:
    """Why a card has no device node, and what to do."""
    return (
        f"the driver does not report which device node card {uuid} has "
        "(nvidia-smi -q, Minor Number): hand over cards by environment alone "
        "(--device-list-strategy envvar)"
    )


def find_hook(root: DriverRoot, settings: NvidiaSettings) -> str:
    """Host path of nvidia-cdi-hook: as set, or where it can be seen; "" for none."""
    if settings.nvidia_cdi_hook_path is not None:
        return str(settings.nvidia_cdi_hook_path)
    seen_at = {HOST, HOST_MOUNT, *((root.inside,) if root.host == HOST else ())}
    for path in _HOOKS:
        if any(_real(place, place / path[1:]) is not None for place in seen_at):
            return path
    return ""


def _folders(root: Path) -> Iterator[Path]:
    """The folders of libraries that there are, each once."""
    found = (_real(root, root / name) for name in (*FOLDERS, *_DEBIANS))
    yield from dict.fromkeys(path for path in found if path is not None and path.is_dir())


def _real(root: Path, path: Path) -> Path | None:
    """Where a path below `root` leads; None where nothing is."""
    try:
        return resolve_in(root, str(path.relative_to(root)))
    except OSError:
        return None


def _on_host(root: DriverRoot, path: Path) -> str:
    return str(root.host / path.relative_to(root.inside))


def _mark(folder: Path) -> tuple[int, int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _version(root: Path, folders: tuple[Path, ...]) -> str:
    """The driver's version, from the names of its libraries: the linked one, else the highest."""
    found: set[str] = set()
    for folder in folders:
        for link in _LINKED:
            target = _real(root, folder / link)
            if target is not None and (named := _VERSIONED.fullmatch(target.name)):
                return named[1]
        names = map(_VERSIONED.fullmatch, os.listdir(folder))
        found.update(named[1] for named in names if named)
    return max(found, key=lambda text: tuple(map(int, text.split("."))), default="")


def _programs(root: DriverRoot, version: str) -> Iterator[HostFile]:
    """nvidia-smi, and the firmware of this version, which the libraries look for."""
    paths = (_real(root.inside, root.inside / name) for name in _PROGRAMS)
    program = next(filter(None, paths), None)
    if program is not None:
        yield HostFile(paths=(_SMI_INSIDE,), host_path=_on_host(root, program))
    places = (
        _real(root.inside, root.inside / name / "nvidia" / (version or "-")) for name in _FIRMWARE
    )
    folder = next(filter(None, places), None)
    for path in sorted(folder.glob("gsp*.bin")) if folder is not None else ():
        inside = f"/lib/firmware/nvidia/{version}/{path.name}"
        yield HostFile(paths=(inside,), host_path=_on_host(root, path))


def _further(settings: NvidiaSettings) -> tuple[str, ...]:
    """Device nodes that the settings ask for besides those of the driver."""
    return (
        *(_GDS_NODES if settings.gds_enabled else ()),
        *(_MOFED_NODES if settings.mofed_enabled else ()),
        *(_GDRCOPY_NODES if settings.gdrcopy_enabled else ()),
    )


# -- whether NVIDIA's CDI hook can set the driver's memory limit, by what is in its program --------
_WORD: Final = LIMIT_TASK.encode()

_FileState = tuple[int, int, int, int]


class LimitHook:
    """Looks into the hook's program, and again when it is another one."""

    def __init__(self) -> None:
        self._seen: tuple[str, _FileState] | None = None
        self._knows = False

    def can_limit(self, hook: str, root: DriverRoot) -> bool | None:
        """True if it has the task, which came with 1.20.1; None if it can't be seen from here.

        A hook that does not know the task keeps every container that names it from being made.
        """
        for path in _seen_at(hook, root):
            try:
                return self._look(path)
            except (OSError, ValueError):  # not there, or empty
                continue
        return None

    def _look(self, path: Path) -> bool:
        status = path.stat()
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen != (str(path), state):
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program,
            ):
                self._knows = program.find(_WORD) >= 0
            self._seen = str(path), state
        return self._knows


def _seen_at(hook: str, root: DriverRoot) -> Iterator[Path]:
    """Where the host's file may be seen in this container."""
    for host, inside in ((HOST, HOST), (HOST, HOST_MOUNT), (root.host, root.inside)):
        try:
            yield resolve_in(inside, str(Path(hook).relative_to(host)))
        except (ValueError, OSError):
            continue  # it is not below that folder, or not there
