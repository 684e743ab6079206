"""Our own CDI spec: what an engine adds to a container for each card. Pure.

Source: the CDI specification, 0.3.0 to 1.0.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.node.handover.choice import OWN_KIND

_OLDEST: Final = "0.3.0"
_WITH_HOST_PATH: Final = "0.5.0"
"""The first version in which a node may have another path on the host."""
_NODE_RIGHTS: Final = "rw"
CAPABILITY_MODE: Final = 0o444
"""What the driver itself gives to the capabilities of MIG instances."""
_MOUNT_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")

_CTK: Final = "nvidia-ctk"
LIMIT_TASK: Final = "apply-cuda-memory-limits"
"""The hook's task that sets the driver's memory limit, from 1.20.1 on."""

_AbsolutePath = Annotated[str, Meta(pattern=r"^/[^\x00]*\Z", max_length=4096)]


class DeviceEdit(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """A device node; `host_path` is "" where it is the same.

    With type and numbers the engine makes the node, and the host need not have it.
    """

    path: _AbsolutePath
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int = 0
    permissions: str = ""


class MountEdit(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """A bind mount of a file."""

    host_path: _AbsolutePath
    container_path: _AbsolutePath
    options: tuple[str, ...] = ()


class HookEdit(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """A program of the host that runs while the container is made."""

    hook_name: str
    path: _AbsolutePath
    args: tuple[str, ...] = ()


class Edits(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """What is changed in a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()
    hooks: tuple[HookEdit, ...] = ()


class CdiDevice(Struct, frozen=True, rename="camel", kw_only=True):
    """One card."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z")]
    container_edits: Edits


class CdiSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """A whole file; `container_edits` are made once for a container with any of the cards."""

    cdi_version: str
    kind: str
    devices: Annotated[tuple[CdiDevice, ...], Meta(min_length=1)]
    container_edits: Edits


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNode:
    """A device node: its path inside, and on the host.

    `numbers` are its major and minor number where they are known and the host may lack it.
    """

    path: str
    host_path: str
    numbers: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """A file of the driver: its paths inside (the first is its own name), and on the host."""

    paths: tuple[str, ...]
    host_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOnHost:
    """What the driver has put on the host.

    Attributes:
        nodes: device nodes that every container with a card needs.
        libraries: with all names under which programs look for them.
        programs: with one path each.
        folders: of the libraries, inside a container.
        hook: host path of nvidia-cdi-hook; "" where there is none.
        root: the driver's root on the host.
        limits_memory: the driver is to limit containers, by that hook (toolkit 1.20.1 and later).
    """

    nodes: tuple[HostNode, ...] = ()
    libraries: tuple[HostFile, ...] = ()
    programs: tuple[HostFile, ...] = ()
    folders: tuple[str, ...] = ()
    hook: str = ""
    root: str = "/"
    limits_memory: bool = False


def make_spec(
    cards: Mapping[str, HostNode | None], driver: DriverOnHost, kept: Sequence[CdiDevice] = ()
) -> CdiSpec | None:
    """The spec with a device for each card by UUID; None without any.

    Args:
        cards: their device nodes; None for a card without one, which is simulated.
        driver: what all of them need.
        kept: devices of an earlier file that containers still name; one whose node is another
            card's by now is left out.
    """
    devices = {uuid: _device(uuid, node, driver) for uuid, node in cards.items()}
    taken = {path for device in devices.values() for path in _paths(device)}
    for device in kept:
        if device.name not in devices and taken.isdisjoint(_paths(device)):
            devices[device.name] = device
    if not devices:
        return None
    return _spec(tuple(devices[name] for name in sorted(devices)), driver)


def make_instance_spec(name: str, nodes: Sequence[HostNode], driver: DriverOnHost) -> CdiSpec:
    """The spec with one MIG instance, by the nodes of its card and of its capabilities.

    The driver's own memory limit is not for instances: their size is the limit.
    """
    edits = Edits(env=(_HIDDEN,), device_nodes=tuple(map(_node, nodes)))
    return _spec((CdiDevice(name=name, container_edits=edits),), driver)


def _spec(ordered: tuple[CdiDevice, ...], driver: DriverOnHost) -> CdiSpec:
    edits = Edits(
        device_nodes=tuple(map(_node, driver.nodes)),
        mounts=tuple(_mounts(driver)),
        hooks=_hooks(driver),
    )
    every = (*edits.device_nodes, *(n for d in ordered for n in d.container_edits.device_nodes))
    needs_host_path = any(node.host_path for node in every)
    starts_with_digit = any(not device.name[0].isalpha() for device in ordered)
    return CdiSpec(
        cdi_version=_WITH_HOST_PATH if needs_host_path or starts_with_digit else _OLDEST,
        kind=OWN_KIND,
        devices=ordered,
        container_edits=edits,
    )


def encode_spec(spec: CdiSpec) -> bytes:
    """The file's content; equal specs give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def decode_spec(data: bytes) -> CdiSpec | None:
    """A file of ours; None for anything else."""
    try:
        spec = _SPECS.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return spec if spec.kind == OWN_KIND else None


_SPECS: Final = msgspec.json.Decoder(CdiSpec)


_HIDDEN: Final = f"{names.ENV_VISIBLE_DEVICES}={names.HIDES_ALL_CARDS}"
"""Makes NVIDIA's runtime add nothing, should the container have that, too."""


def _device(uuid: str, node: HostNode | None, driver: DriverOnHost) -> CdiDevice:
    nodes = (_node(node),) if node is not None else ()
    hooks = (_limit_hook(uuid, driver),) if driver.limits_memory else ()
    edits = Edits(env=(_HIDDEN,), device_nodes=nodes, hooks=hooks)
    return CdiDevice(name=uuid, container_edits=edits)


def _limit_hook(uuid: str, driver: DriverOnHost) -> HookEdit:
    """It does nothing for a container without the variables of the driver's limit."""
    args = (LIMIT_TASK, "--driver-root", driver.root, "--gpu-id", uuid)
    command = _command(driver.hook)
    return HookEdit(hook_name="createRuntime", path=driver.hook, args=(*command, *args))


def _paths(device: CdiDevice) -> set[str]:
    return {node.path for node in device.container_edits.device_nodes}


def _node(node: HostNode) -> DeviceEdit:
    if node.numbers is not None:
        major, minor = node.numbers
        return DeviceEdit(
            path=node.path,
            type="c",
            major=major,
            minor=minor,
            file_mode=CAPABILITY_MODE,
            permissions=_NODE_RIGHTS,
        )
    host_path = "" if node.host_path == node.path else node.host_path
    return DeviceEdit(path=node.path, host_path=host_path, permissions=_NODE_RIGHTS)


def _mounts(driver: DriverOnHost) -> list[MountEdit]:
    """With a hook each library under its own name only: the hook makes the others as links."""
    found = []
    for file in (*driver.libraries, *driver.programs):
        for path in file.paths[:1] if driver.hook else file.paths:
            found.append(
                MountEdit(host_path=file.host_path, container_path=path, options=_MOUNT_OPTIONS)
            )
    return sorted(found, key=lambda mount: mount.container_path)


def _hooks(driver: DriverOnHost) -> tuple[HookEdit, ...]:
    if not driver.hook or not driver.folders:
        return ()
    links = [
        f"{file.paths[0].rpartition('/')[2]}::{path}"
        for file in driver.libraries
        for path in file.paths[1:]
        if path.endswith(".so")
    ]
    hooks = []
    if links:
        hooks.append(_hook(driver.hook, "create-symlinks", "--link", sorted(links)))
    hooks.append(_hook(driver.hook, "update-ldcache", "--folder", driver.folders))
    return tuple(hooks)


def _hook(path: str, task: str, option: str, values: Sequence[str]) -> HookEdit:
    args = [*_command(path), task]
    for value in values:
        args += [option, value]
    return HookEdit(hook_name="createContainer", path=path, args=tuple(args))


def _command(path: str) -> tuple[str, ...]:
    """How the program's arguments begin: in nvidia-ctk the hooks are one command of several."""
    name = path.rpartition("/")[2]
    return (name, "hook") if name == _CTK else (name,)
