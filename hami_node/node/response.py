"""What a container gets: environment and mounts. `build` is pure; `HookFolder` touches the disk.

Source: HAMi-core's contract with its device plugin (environment, mounts and cache folder).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.model import ContainerGrants, Device, Uuid
from hami_node.wire import names

LIBRARY: Final = "libvgpu.so"
PRELOAD: Final = "ld.so.preload"
LOCK_FOLDER: Final = Path("/tmp/vgpulock")  # noqa: S108 - the limiter's own fixed path
CDI_KIND: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount of a host path into the container."""

    container_path: str
    host_path: str
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResponse:
    """kubelet's answer for one container, sorted so that equal slices are equal bytes."""

    envs: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStyle:
    """Settings that shape a response."""

    hook_path: Path = Path("/usr/local")
    is_oversubscribed: bool = False
    log_level: str = ""
    is_core_limit_disabled: bool = False
    is_limiter_required: bool = True
    uses_cdi: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiter:
    """The in-container limiter's files on this node; absent ones are None."""

    library: Path | None = None
    preload: Path | None = None
    license: Path | None = None
    validator: Path | None = None

    @property
    def is_complete(self) -> bool:
        """True when a container can be limited."""
        return self.library is not None and self.preload is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One container's grants on this node's cards, with what decides about its response."""

    pod_uid: str
    container: str
    grants: ContainerGrants
    cards: Mapping[Uuid, Device] = field(default_factory=dict)
    is_control_disabled: bool = False

    @property
    def folder_name(self) -> str:
        """`<pod uid>_<container>`: neither part can hold an underscore."""
        return f"{self.pod_uid}_{self.container}"


def build(part: Slice, limiter: Limiter, style: ResponseStyle) -> ContainerResponse:
    """Make the response: limits `_0.._n` and visible devices in one order, by card index.

    A memory grant of 0 would mean "no limit" inside: the card's own size is written instead.
    """
    grants = sorted(part.grants, key=lambda grant: (part.cards[grant.uuid].index, grant.uuid))
    uuids = [str(grant.uuid) for grant in grants]
    envs = {names.ENV_VISIBLE_DEVICES: ",".join(uuids)}
    if style.uses_cdi:
        envs = {}
    for i, grant in enumerate(grants):
        limit_mib = grant.memory_mib or part.cards[grant.uuid].memory_mib
        envs[f"{names.ENV_MEMORY_LIMIT}_{i}"] = f"{limit_mib}m"
    inside = style.hook_path / "vgpu"
    # one limit counts for all cards of a container: the least that any grant allows
    envs[names.ENV_CORE_LIMIT] = str(min((grant.cores for grant in grants), default=0))
    envs[names.ENV_CACHE] = str(inside / f"{part.folder_name}.cache")
    if style.is_oversubscribed:
        envs[names.ENV_OVERSUBSCRIBE] = "true"
    if style.log_level:
        envs[names.ENV_LOG_LEVEL] = style.log_level
    if style.is_core_limit_disabled:
        envs[names.ENV_CORE_POLICY] = "disable"
    cdi = tuple(f"{CDI_KIND}={uuid}" for uuid in uuids) if style.uses_cdi else ()
    return ContainerResponse(
        envs=tuple(sorted(envs.items())), mounts=_mounts(part, limiter, style), cdi_devices=cdi
    )


def _mounts(part: Slice, limiter: Limiter, style: ResponseStyle) -> tuple[Mount, ...]:
    inside = style.hook_path / "vgpu"
    cache = inside / "containers" / part.folder_name
    mounts = [
        Mount(container_path=str(inside), host_path=str(cache), is_read_only=False),
        Mount(container_path=str(LOCK_FOLDER), host_path=str(LOCK_FOLDER), is_read_only=False),
    ]
    if limiter.library is not None:
        mounts.append(_read_only(inside / LIBRARY, limiter.library))
    if limiter.preload is not None and not part.is_control_disabled:
        mounts.append(_read_only(Path("/etc") / PRELOAD, limiter.preload))
    if limiter.license is not None:
        mounts.append(_read_only(Path("/tmp/license"), limiter.license))  # noqa: S108 - fixed path
    if limiter.validator is not None:
        mounts.append(_read_only(Path("/usr/bin/vgpuvalidator"), limiter.validator))
    return tuple(mounts)


def _read_only(inside: Path, host: Path) -> Mount:
    return Mount(container_path=str(inside), host_path=str(host), is_read_only=True)


class HookFolder:
    """The limiter's folder on this node, `<hook path>/vgpu`, and what it holds."""

    def __init__(self, hook_path: Path, lock_folder: Path = LOCK_FOLDER) -> None:
        self._root = hook_path / "vgpu"
        self._lock_folder = lock_folder

    def limiter(self) -> Limiter:
        """Look for the limiter's files; only regular files count, never links."""
        license_file = self._regular(self._root / "license")
        return Limiter(
            library=self._library(),
            preload=self._regular(self._root / PRELOAD),
            license=license_file,
            validator=self._regular(self._root / "vgpuvalidator") if license_file else None,
        )

    def missing_limiter(self) -> AllocationError:
        """The refusal of a container that would run unlimited, with the cure."""
        return AllocationError(
            f"{self._root}/{LIBRARY} or {self._root}/{PRELOAD} is not on this node, so the "
            "container would run without its limits: install the limiter's files there, or start "
            "hami-node with --limiter optional"
        )

    def has_served(self, part_name: str) -> bool:
        """True if the container with that `<uid>_<name>` was served here before."""
        return _is_folder(self._root / "containers" / part_name)

    def prepare(self, part: Slice) -> None:
        """Make the container's own cache folder; one that is there already is left as it is.

        Raises:
            AllocationError: the disk refuses, or something else than a folder stands there.
        """
        cache = self._root / "containers" / part.folder_name
        try:
            cache.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            for folder in (cache, self._lock_folder):
                _open_folder(folder)
        except OSError as e:
            raise AllocationError(
                f"folder {e.filename or cache} can't be made: {e.strerror or e}: check the disk "
                "and the mounts of the daemon"
            ) from e

    def _library(self) -> Path | None:
        plain = self._regular(self._root / LIBRARY)
        if plain is not None:
            return plain
        versions = [
            path for path in self._root.glob(f"{LIBRARY}.*") if self._regular(path) is not None
        ]
        return max(versions, key=lambda path: path.name, default=None)

    @staticmethod
    def _regular(path: Path) -> Path | None:
        try:
            mode = path.lstat().st_mode
        except OSError:
            return None
        return path if stat.S_ISREG(mode) else None


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _open_folder(path: Path) -> None:
    """Make a folder that any user in a container may write; never follow a link."""
    try:
        path.mkdir(mode=0o777)
    except FileExistsError:
        if not _is_folder(path):
            raise
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) != 0o777:
            os.fchmod(handle, 0o777)
    finally:
        os.close(handle)
