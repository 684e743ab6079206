"""What a container with NVIDIA cards gets: environment and mounts.

`build` is pure. Source: HAMi-core's contract with its device plugin (environment, mounts and cache
file).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.vendors.answer import ContainerResponse, Mount, Slice
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.node.hook_folder import CONTAINERS, LOCK, HookFolder, cache_name
from hami_node.vendors.nvidia.node.limiter_files import LIBRARY, PRELOAD, Limiter
from hami_node.vendors.nvidia.settings import (
    CorePolicy,
    DeviceListStrategy,
    LimiterMode,
    NvidiaSettings,
)
from hami_node.wire.values.scalars import is_true_word

LOCK_INSIDE: Final = Path("/tmp/vgpulock")  # noqa: S108 - the limiter's own fixed path
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
    envs[names.ENV_CACHE] = str(inside / cache_name(granted.folder_name))
    if style.is_oversubscribed:
        envs[names.ENV_OVERSUBSCRIBE] = "true"
    if style.log_level:
        envs[names.ENV_LOG_LEVEL] = style.log_level
    if style.is_core_limit_disabled:
        envs[names.ENV_CORE_POLICY] = "disable"
    cdi = tuple(f"{CDI_KIND}={uuid}" for uuid in uuids) if style.uses_cdi else ()
    return ContainerResponse(
        envs=tuple(sorted(envs.items())),
        mounts=_mounts(granted, limiter, style),
        cdi_devices=cdi,
        limiter_version=str(limiter.version) if limiter.library is not None else "",
    )


def _is_control_disabled(granted: Slice) -> bool:
    return is_true_word(granted.container.env.get(names.ENV_DISABLE_CONTROL, ""))


def _mounts(granted: Slice, limiter: Limiter, style: ResponseStyle) -> tuple[Mount, ...]:
    inside = style.hook_path / "vgpu"
    cache = cache_name(granted.folder_name)
    own = inside / CONTAINERS / granted.folder_name
    mounts = [_writable(inside / cache, own / cache)]
    if limiter.uses_lock:
        mounts.append(_writable(LOCK_INSIDE, inside / LOCK))
    if limiter.library is not None:
        mounts.append(_read_only(inside / LIBRARY, limiter.library))
    if limiter.preload is not None and not _is_control_disabled(granted):
        mounts.append(_read_only(Path("/etc") / PRELOAD, limiter.preload))
    if limiter.license is not None:
        mounts.append(_read_only(Path("/tmp/license"), limiter.license))  # noqa: S108 - fixed path
    if limiter.validator is not None:
        mounts.append(_read_only(Path("/usr/bin/vgpuvalidator"), limiter.validator))
    return tuple(mounts)


def _writable(inside: Path, host: Path) -> Mount:
    return Mount(container_path=str(inside), host_path=str(host), is_read_only=False)


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
        """Environment, mounts and the container's own files.

        Raises:
            AllocationError: it would run without its limits, or its files can't be made.
        """
        style, limiter = response_style(self._settings()), self._folder.limiter()
        if style.is_limiter_required and not limiter.is_complete:
            raise AllocationError(
                f"{limiter.problem}, so the container would run without its limits: "
                f"{limiter.hint}, or start hami-node with --limiter optional"
            )
        return build(granted, self._folder.prepare(granted, limiter), style)

    def warning(self, granted: Slice) -> str:
        """Warn of a container that runs without its limits, or with some of them only."""
        limiter = self._folder.limiter()
        if _is_control_disabled(granted):
            return (
                f"container {granted.container.name} sets {names.ENV_DISABLE_CONTROL}: it runs "
                "without limits and can take its neighbours' memory"
            )
        if not limiter.is_complete:
            return f"{limiter.problem}: container {granted.container.name} runs without limits"
        return limiter.defect

    def is_incomplete(self) -> bool:
        """True while the limiter's files are missing or unusable."""
        return not self._folder.limiter().is_complete

    def is_defective(self) -> bool:
        """True while the limiter is of a version that does not limit every program."""
        return bool(self._folder.limiter().defect)
