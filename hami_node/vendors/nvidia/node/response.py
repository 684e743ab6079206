"""What a container with NVIDIA cards gets: environment and mounts.

`build` is pure. Source: HAMi-core's contract with its device plugin (environment, mounts and cache
file).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hami_node.errors import AllocationError, NodeUnfit
from hami_node.model import Grant
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import CorePolicy, LimiterMode, MemoryLimitBy
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.driver_limit import DriverLimits, core_warning
from hami_node.vendors.nvidia.node.handover.choice import Named
from hami_node.vendors.nvidia.node.handover.handed import Handed, Instance, handed_of, in_order
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.limiter.hook_folder import (
    CONTAINERS,
    LOCK,
    HookFolder,
    cache_name,
)
from hami_node.vendors.nvidia.node.limiter.limiter_files import PRELOAD, Limiter
from hami_node.vendors.nvidia.node.limiter.versions import LIBRARY
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import (
    ContainerResponse,
    HandOverState,
    Mount,
    NodeSituation,
    Slice,
)
from hami_node.vendors.on_node.limiter import LimiterState
from hami_node.wire.values import is_true_word

LOCK_INSIDE: Final = Path("/tmp/vgpulock")  # noqa: S108 - the limiter's own fixed path
LIMITERS_DEFAULT: Final = Path("/usr/local/vgpu/libvgpu.so")
"""Where the limiter looks for its own library unless it is told."""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStyle:
    """Settings that shape a response."""

    hook_path: Path = LIMITERS_DEFAULT.parents[1]
    is_oversubscribed: bool = False
    log_level: str = ""
    core_policy: CorePolicy = CorePolicy.DEFAULT
    is_limiter_required: bool = True


def build(
    granted: Slice,
    limiter: Limiter | None,
    style: ResponseStyle,
    named: Named,
    driver_env: Mapping[str, str] = NOTHING,
) -> ContainerResponse:
    """Build the response; `named` is its part that names the cards.

    A memory grant of 0 would mean "no limit" inside: the card's size is written instead. Without
    a limiter nothing of it is in there; `driver_env` is what the driver limits by.
    """
    envs, mounts, version = dict(named.envs), named.mounts, ""
    if limiter is not None:
        envs |= _limiter_env(granted, in_order(granted), style)
        mounts = (*_mounts(granted, limiter, style), *mounts)
        version = str(limiter.version) if limiter.library is not None else ""
    return ContainerResponse(
        envs=tuple(sorted((envs | dict(driver_env)).items())),
        mounts=mounts,
        cdi_devices=named.cdi_devices,
        devices=named.devices,
        annotations=named.annotations,
        limiter_version=version,
    )


def _limiter_env(granted: Slice, grants: Sequence[Grant], style: ResponseStyle) -> dict[str, str]:
    """What the limiter reads; `grants` are in the order of the cards."""
    envs: dict[str, str] = {}
    for i, grant in enumerate(grants):
        limit_mib = grant.memory_mib or granted.cards[grant.uuid].memory_mib
        envs[f"{names.ENV_MEMORY_LIMIT}_{i}"] = f"{limit_mib}m"
    inside = style.hook_path / "vgpu"
    # the same limit applies to all cards of a container: the lowest that any grant allows
    envs[names.ENV_CORE_LIMIT] = str(min((grant.cores for grant in grants), default=0))
    envs[names.ENV_CACHE] = str(inside / cache_name(granted.folder_name))
    if inside / LIBRARY != LIMITERS_DEFAULT:
        envs[names.ENV_REDIRECT] = str(inside / LIBRARY)
    if style.is_oversubscribed:
        envs[names.ENV_OVERSUBSCRIBE] = "true"
    if style.log_level:
        envs[names.ENV_LOG_LEVEL] = style.log_level
    if style.core_policy is not CorePolicy.DEFAULT:
        envs[names.ENV_CORE_POLICY] = style.core_policy.value
    return envs


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
    return ResponseStyle(
        hook_path=settings.hook_path,
        is_oversubscribed=settings.memory_scaling > 1,
        log_level=str(settings.lib_cuda_log_level),
        core_policy=settings.core_policy_here,
        is_limiter_required=settings.limiter is LimiterMode.REQUIRED,
    )


def _refuse_mixed(granted: Slice, handed: Handed, by: MemoryLimitBy) -> None:
    """The limiter numbers the devices of a program, and CUDA gives it either cards or an instance.

    The driver limits each full card by itself.

    Raises:
        AllocationError: the container has full cards, too, which the limiter would limit.
    """
    if not handed.cards or by is MemoryLimitBy.DRIVER:
        return
    raise AllocationError(
        f"container {granted.container.name} has MIG instances ({_few(handed.instances)}) "
        f"beside full cards ({', '.join(handed.cards[:4])}), which the limiter can't limit "
        f"together: set the pod's annotation {names.VGPU_MODE} to mig or to hami-core"
    )


def _few(instances: Sequence[Instance]) -> str:
    return ", ".join(f"{found.uuid} of {found.card}" for found in instances[:4])


class NvidiaResponder:
    """Builds the responses for containers with NVIDIA cards; see `vendors.answer.Responder`."""

    def __init__(
        self,
        folder: HookFolder,
        settings: Callable[[], NvidiaSettings],
        hand_over: NodeHandOver,
        driver: DriverLimits | None = None,
    ) -> None:
        """Work in `folder`; the settings in force are read for each container."""
        self._folder, self._settings, self._hand_over = folder, settings, hand_over
        self._driver = driver or DriverLimits(hand_over.toolkit)

    def respond(self, granted: Slice) -> ContainerResponse:
        """Environment, mounts and the container's own files.

        A MIG instance is its own limit: a container with instances has nothing of the limiter.

        Raises:
            AllocationError: it would run without its limits, or its files can't be made.
        """
        settings, handed = self._settings(), handed_of(granted)
        by, style = settings.memory_limit_by, response_style(settings)
        if handed.instances:
            _refuse_mixed(granted, handed, by)
        driver_env = self._driver.env_of(granted, by)
        if handed.instances or by is MemoryLimitBy.DRIVER:
            return build(granted, None, style, self._hand_over.name(granted), driver_env)
        limiter = self._folder.limiter_of(granted.folder_name)
        if style.is_limiter_required and not limiter.is_complete:
            raise NodeUnfit(
                f"{limiter.problem}, so the container would run without its limits: "
                f"{limiter.hint}, or start hami-node with --limiter optional"
            )
        named = self._hand_over.name(granted)
        return build(granted, self._folder.prepare(granted, limiter), style, named, driver_env)

    def warning(self, granted: Slice) -> str:
        """Warn of a container that runs without its limits, or with some of them only."""
        if granted.grants and all(grant.part is not None for grant in granted.grants):
            return ""
        if self._settings().memory_limit_by is MemoryLimitBy.DRIVER:
            return core_warning(granted)
        limiter = self._folder.limiter()
        if _is_control_disabled(granted):
            return (
                f"container {granted.container.name} sets {names.ENV_DISABLE_CONTROL}: it runs "
                "without limits and can take its neighbours' memory"
            )
        if not limiter.is_complete:
            return f"{limiter.problem}: container {granted.container.name} runs without limits"
        return limiter.defect

    def limiter(self) -> LimiterState:
        """The limiter of containers that start now; with a wanted sha256 it has to be there."""
        settings = self._settings()
        if settings.operating_mode is Mode.MIG:
            return LimiterState()  # nothing is missing: instances need none
        if settings.memory_limit_by is MemoryLimitBy.DRIVER:
            problem = self._driver.signs().problem
            return LimiterState(is_missing=bool(problem), unready=problem)
        found = self._folder.limiter()
        is_pinned = bool(settings.limiter_sha256) and settings.limiter is LimiterMode.REQUIRED
        is_awaited = is_pinned or bool(self._folder.problem)
        return LimiterState(
            version=str(found.version) if found.library is not None else "",
            sha256=found.sha256,
            is_missing=not found.is_complete,
            is_defective=bool(found.defect),
            unready=f"{found.problem}: {found.hint}" if is_awaited and found.problem else "",
        )

    def keep(self, situation: NodeSituation) -> None:
        """See `NodeHandOver.keep`."""
        self._hand_over.keep(situation)

    def hand_over(self) -> HandOverState:
        """See `NodeHandOver.state`."""
        return self._hand_over.state()

    def close(self) -> None:
        """See `NodeHandOver.close`."""
        self._hand_over.close()
