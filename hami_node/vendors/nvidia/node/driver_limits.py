"""Memory limits by the driver on this node: what is seen of it, and what a container is given."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.logs import kv
from hami_node.vendors.nvidia.choices import MemoryLimitBy
from hami_node.vendors.nvidia.driver.library import has_function
from hami_node.vendors.nvidia.node.driver_limit import (
    FUNCTION,
    NOT_VERIFIED,
    LimitSigns,
    Toolkit,
    backstop_env,
    limit_env,
    reserved_problem,
)
from hami_node.vendors.on_node.answer import Slice

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
