"""What a container with NVIDIA cards gets: environment and mounts.

`build` is pure; `HookFolder` touches the disk. Source: HAMi-core's contract with its device plugin
(environment, mounts and cache folder).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.vendors.answer import ContainerResponse, Mount, Slice
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.settings import (
    CorePolicy,
    DeviceListStrategy,
    LimiterMode,
    NvidiaSettings,
)
from hami_node.wire.values.scalars import is_true_word

LIBRARY: Final = "libvgpu.so"
PRELOAD: Final = "ld.so.preload"
LOCK_FOLDER: Final = Path("/tmp/vgpulock")  # noqa: S108 - the limiter's own fixed path
CDI_KIND: Final = "nvidia.com/gpu"


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
    """The files of the in-container limiter on this node; None for a missing file."""

    library: Path | None = None
    preload: Path | None = None
    license: Path | None = None
    validator: Path | None = None

    @property
    def is_complete(self) -> bool:
        """True when a container can be limited."""
        return self.library is not None and self.preload is not None


def build(granted: Slice, limiter: Limiter, style: ResponseStyle) -> ContainerResponse:
    """Build the response: limits `_0.._n` and visible devices in the same order, by card index.

    A memory grant of 0 would mean "no limit" inside: the card's size is written instead.
    """
    grants = sorted(granted.grants, key=lambda grant: (granted.cards[grant.uuid].index, grant.uuid))
    uuids = [str(grant.uuid) for grant in grants]
    envs = {names.ENV_VISIBLE_DEVICES: ",".join(uuids)}
    if style.uses_cdi:
        envs = {}
    for i, grant in enumerate(grants):
        limit_mib = grant.memory_mib or granted.cards[grant.uuid].memory_mib
        envs[f"{names.ENV_MEMORY_LIMIT}_{i}"] = f"{limit_mib}m"
    inside = style.hook_path / "vgpu"
    # the same limit applies to all cards of a container: the lowest that any grant allows
    envs[names.ENV_CORE_LIMIT] = str(min((grant.cores for grant in grants), default=0))
    envs[names.ENV_CACHE] = str(inside / f"{granted.folder_name}.cache")
    if style.is_oversubscribed:
        envs[names.ENV_OVERSUBSCRIBE] = "true"
    if style.log_level:
        envs[names.ENV_LOG_LEVEL] = style.log_level
    if style.is_core_limit_disabled:
        envs[names.ENV_CORE_POLICY] = "disable"
    cdi = tuple(f"{CDI_KIND}={uuid}" for uuid in uuids) if style.uses_cdi else ()
    return ContainerResponse(
        envs=tuple(sorted(envs.items())), mounts=_mounts(granted, limiter, style), cdi_devices=cdi
    )


def _is_control_disabled(granted: Slice) -> bool:
    return is_true_word(granted.container.env.get(names.ENV_DISABLE_CONTROL, ""))


def _mounts(granted: Slice, limiter: Limiter, style: ResponseStyle) -> tuple[Mount, ...]:
    inside = style.hook_path / "vgpu"
    cache = inside / "containers" / granted.folder_name
    mounts = [
        Mount(container_path=str(inside), host_path=str(cache), is_read_only=False),
        Mount(container_path=str(LOCK_FOLDER), host_path=str(LOCK_FOLDER), is_read_only=False),
    ]
    if limiter.library is not None:
        mounts.append(_read_only(inside / LIBRARY, limiter.library))
    if limiter.preload is not None and not _is_control_disabled(granted):
        mounts.append(_read_only(Path("/etc") / PRELOAD, limiter.preload))
    if limiter.license is not None:
        mounts.append(_read_only(Path("/tmp/license"), limiter.license))  # noqa: S108 - fixed path
    if limiter.validator is not None:
        mounts.append(_read_only(Path("/usr/bin/vgpuvalidator"), limiter.validator))
    return tuple(mounts)


def _read_only(inside: Path, host: Path) -> Mount:
    return Mount(container_path=str(inside), host_path=str(host), is_read_only=True)


def response_style(settings: NvidiaSettings) -> ResponseStyle:
    """The style of responses by the settings."""
    is_core_limit_off = settings.disable_core_limit or settings.core_policy is CorePolicy.DISABLE
    return ResponseStyle(
        hook_path=settings.hook_path,
        is_oversubscribed=settings.memory_scaling > 1,
        log_level=str(settings.lib_cuda_log_level),
        is_core_limit_disabled=is_core_limit_off,
        is_limiter_required=settings.limiter is LimiterMode.REQUIRED,
        uses_cdi=settings.device_list_strategy is DeviceListStrategy.CDI_CRI,
    )


class NvidiaResponder:
    """Builds the responses for containers with NVIDIA cards; see `vendors.answer.Responder`."""

    def __init__(self, folder: HookFolder, settings: Callable[[], NvidiaSettings]) -> None:
        """Work in `folder`; the settings in force are read for each container."""
        self._folder, self._settings = folder, settings

    def respond(self, granted: Slice) -> ContainerResponse:
        """Environment, mounts and the container's own folder.

        Raises:
            AllocationError: it would run without its limits, or the folder can't be created.
        """
        style, limiter = response_style(self._settings()), self._folder.limiter()
        if style.is_limiter_required and not limiter.is_complete:
            raise self._folder.missing_limiter()
        response = build(granted, limiter, style)
        self._folder.prepare(granted)
        return response

    def warning(self, granted: Slice) -> str:
        """Warn of a container that switches its limiter off."""
        if not _is_control_disabled(granted):
            return ""
        return (
            f"container {granted.container.name} sets {names.ENV_DISABLE_CONTROL}: it runs without "
            "limits and can take its neighbours' memory"
        )

    def has_served(self, folder_name: str) -> bool:
        """True if the container's folder exists."""
        return self._folder.has_served(folder_name)

    def is_incomplete(self) -> bool:
        """True while the limiter's files are missing."""
        return not self._folder.limiter().is_complete


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
        """The refusal of a container that would run unlimited, with a hint."""
        return AllocationError(
            f"{self._root}/{LIBRARY} or {self._root}/{PRELOAD} is not on this node, so the "
            "container would run without its limits: install the limiter's files there, or start "
            "hami-node with --limiter optional"
        )

    def has_served(self, part_name: str) -> bool:
        """True if the container with that `<uid>_<name>` was served here before."""
        return _is_folder(self._root / "containers" / part_name)

    def prepare(self, granted: Slice) -> None:
        """Create the container's own cache folder; an existing folder is left as it is.

        Raises:
            AllocationError: the folder can't be created, or something else has its name.
        """
        cache = self._root / "containers" / granted.folder_name
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
    """Create a folder that any user in a container may write; never follow a link."""
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
