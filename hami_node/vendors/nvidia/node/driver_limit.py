"""The memory limit that the driver itself enforces, on the cgroup of a container.

NVIDIA's container toolkit, from 1.20.1 on, has a hook that reads a number from the container's
environment and hands it to the driver (nvmlDeviceSetMemoryLimits_v1), for each of its full cards.
Experimental: docs/driver.md says what is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.logs import kv
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import MemoryLimitBy
from hami_node.vendors.nvidia.driver import has_function
from hami_node.vendors.on_node.answer import Slice

FUNCTION: Final = "nvmlDeviceSetMemoryLimits_v1"
"""The driver's function, from the NVML of driver 615 on."""
RESERVED: Final = (names.ENV_DRIVER_MEMORY_LIMIT, names.ENV_DRIVER_MEMORY_REQUEST)
OTHERWISE: Final = "or start hami-node with --memory-limit-by limiter"
NOT_VERIFIED: Final = (
    "whether the container toolkit applies the driver's limit (1.20.1 and later do) can't be seen "
    "from here: look into a container with nvidia-smi"
)


class Toolkit(Enum):
    """Whether the runtime hands the number to the driver."""

    APPLIES = auto()
    TOO_OLD = auto()
    LEGACY = auto()
    """Its legacy mode runs no such hook, whatever its version."""
    NO_HOOK = auto()
    """Containers get cards by CDI specs of our own, which name no such hook."""
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSigns:
    """What is seen of driver, kernel and toolkit.

    Attributes:
        has_function: the loaded library can set limits; None while none is loaded.
        has_cgroup_v2: the node's cgroups are of version 2.
        toolkit: what its runtime does with the number.
    """

    has_function: bool | None = None
    has_cgroup_v2: bool = True
    toolkit: Toolkit = Toolkit.UNKNOWN

    @property
    def problem(self) -> str:
        """Why the driver can't limit containers here, and what to do; "" if nothing is known."""
        if self.has_function is False:
            return (
                f"the driver's library has no {FUNCTION}: install driver 615 or later, {OTHERWISE}"
            )
        if not self.has_cgroup_v2:
            return f"the driver needs cgroups of version 2: boot the node with them, {OTHERWISE}"
        why = {
            Toolkit.TOO_OLD: "the container toolkit is older than 1.20.1: install a newer one",
            Toolkit.LEGACY: "the container toolkit runs in its legacy mode: switch it to mode cdi",
            Toolkit.NO_HOOK: (
                "our own CDI specs name no nvidia-cdi-hook that sets the driver's limit: install "
                "the container toolkit 1.20.1 or later and name it by --nvidia-cdi-hook-path"
            ),
        }.get(self.toolkit, "")
        return f"{why}, {OTHERWISE}" if why else ""

    @property
    def is_verified(self) -> bool:
        """True when everything that is needed was seen."""
        return self.has_function is True and self.toolkit is Toolkit.APPLIES


def toolkit_of(visible_devices: tuple[str, ...], *, has_injected_driver: bool) -> Toolkit:
    """What this daemon's own environment tells of the runtime that made its container.

    Its CDI modes write `void`: up to 1.19.1 behind the value that the pod has, from 1.20.1 on
    instead of it. Its legacy mode leaves the variable alone.
    """
    if not visible_devices or not has_injected_driver:
        return Toolkit.UNKNOWN
    if names.HIDES_ALL_CARDS not in visible_devices:
        return Toolkit.LEGACY
    is_alone = set(visible_devices) == {names.HIDES_ALL_CARDS}
    return Toolkit.APPLIES if is_alone else Toolkit.TOO_OLD


def limits_of(granted: Slice) -> tuple[int, ...]:
    """The different limits of a container's full cards, MiB, none above what the card has.

    A part of a card is limited by what it is.
    """
    found = set()
    for grant in granted.grants:
        if grant.part is not None:
            continue
        card = granted.cards[grant.uuid]
        whole_mib = card.physical_memory_mib or card.memory_mib
        found.add(min(grant.memory_mib or whole_mib, whole_mib))
    return tuple(sorted(found))


def reserved_problem(granted: Slice) -> str:
    """Why the container's own environment can't be allowed; "" if it can."""
    for name in RESERVED:
        if name in granted.container.env:
            return (
                f"container {granted.container.name} sets {name}, which decides what memory the "
                "driver gives it and keeps for it: remove it from env"
            )
    return ""


def limit_env(granted: Slice, signs: LimitSigns) -> dict[str, str]:
    """The number for the driver, where it alone limits the container.

    Raises:
        AllocationError: the driver can't limit it.
    """
    if signs.problem:
        raise AllocationError(f"{signs.problem}; the container would run without a memory limit")
    limits = limits_of(granted)
    if len(limits) > 1:
        shown = " and ".join(map(str, limits))
        raise AllocationError(
            f"its cards have different memory limits ({shown} MiB), and the driver takes one "
            f"number for all cards of a container: ask for the same on each, {OTHERWISE}"
        )
    return _env(limits)


def backstop_env(granted: Slice, signs: LimitSigns) -> dict[str, str]:
    """The number beside the limiter's; nothing where the container could not run with it."""
    limits = limits_of(granted)
    return {} if signs.problem or len(limits) > 1 else _env(limits)


def core_warning(granted: Slice) -> str:
    """What the driver's limit leaves out, for an Event; "" for nothing."""
    full = (grant for grant in granted.grants if grant.part is None)
    asked = [grant.cores for grant in full if 0 < grant.cores < 100]
    if not asked:
        return ""
    return (
        f"container {granted.container.name} asks for {min(asked)} percent of a card's cores: the "
        "driver limits memory only, so it can use all of them (--memory-limit-by driver)"
    )


def _env(limits: tuple[int, ...]) -> dict[str, str]:
    return {names.ENV_DRIVER_MEMORY_LIMIT: str(limits[0])} if limits else {}


# -- on this node ----------------------------------------------------------------------------------
log = logging.getLogger(__name__)

CGROUPS: Final = Path("/sys/fs/cgroup")
_OF_VERSION_2: Final = "cgroup.controllers"


class DriverLimits:
    """Asks again for each container: a driver may be loaded, or replaced, after the start."""

    def __init__(
        self,
        toolkit: Callable[[], Toolkit],
        *,
        knows: Callable[[str], bool | None] = has_function,
        cgroups: Path = CGROUPS,
    ) -> None:
        """Use these sources; `knows` says whether the loaded library has a function."""
        self._toolkit, self._knows, self._cgroups = toolkit, knows, cgroups
        self._logged: LimitSigns | None = None

    def signs(self) -> LimitSigns:
        """What is seen now; logged when it changes."""
        found = LimitSigns(
            has_function=self._knows(FUNCTION),
            has_cgroup_v2=self._cgroups.joinpath(_OF_VERSION_2).exists(),
            toolkit=self._toolkit(),
        )
        if found != self._logged:
            self._logged = found
            if found.problem:
                log.error("driver_limits_no_memory", extra=kv(reason=found.problem))
            elif not found.is_verified:
                log.warning("driver_limit_not_verified", extra=kv(hint=NOT_VERIFIED))
            else:
                log.info("driver_limits_memory")
        return found

    def env_of(self, granted: Slice, by: MemoryLimitBy) -> dict[str, str]:
        """The variables for the driver's limit; none where only the limiter is to limit.

        Nor for a container that has parts of cards only, which are limited by what they are.

        Raises:
            AllocationError: the container sets them itself, or the driver alone can't limit it.
        """
        if problem := reserved_problem(granted):
            raise AllocationError(problem)
        parts = [grant.part is not None for grant in granted.grants]
        if by is MemoryLimitBy.LIMITER or (parts and all(parts)):
            return {}
        signs = self.signs()
        if by is MemoryLimitBy.DRIVER:
            return limit_env(granted, signs)
        return backstop_env(granted, signs)
