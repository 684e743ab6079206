"""The limits of a running container, in its region file: the limiter obeys them at once.

Once the file is made, its limits count and the container's variables do not, also for programs that
are started later. Source: HAMi-core, measured with its versions of 2024-01 to 2026-06.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from hami_node.engine.filters import WHOLE_CARD
from hami_node.errors import RegionError, RegionNotReady
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.node.handover.handed import in_order
from hami_node.vendors.nvidia.node.limiter.limiter_files import PRELOAD
from hami_node.vendors.nvidia.node.regions.region_file import RegionFile, open_region
from hami_node.vendors.nvidia.regions.region import Region, numbers_of
from hami_node.vendors.nvidia.regions.region_layouts import DEVICES
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, Slice
from hami_node.vendors.on_node.limits import CardLimit
from hami_node.wire.values import is_true_word

MIB: Final = 1 << 20


class NvidiaLimitWriter:
    """See `vendors.limits.LimitWriter`. What stands in a file is the container's own word."""

    def __init__(self, settings: Callable[[], NvidiaSettings]) -> None:
        """Find the files by the settings in force."""
        self._settings = settings

    def problem(self, granted: Slice, answer: ContainerResponse | None) -> str:
        """Without the limiter nobody reads the file, and a limit of the driver's is for good."""
        name = granted.container.name
        if is_true_word(granted.container.env.get(names.ENV_DISABLE_CONTROL, "")):
            return f"container {name} sets {names.ENV_DISABLE_CONTROL}: it runs without limits"
        if answer is None:
            return ""
        if names.ENV_DRIVER_MEMORY_LIMIT in dict(answer.envs):
            return f"the driver limits the memory of container {name} for as long as it runs"
        preload = f"/etc/{PRELOAD}"
        if all(mount.container_path != preload for mount in answer.mounts):
            return f"container {name} was started without the limiter: nothing limits it"
        return ""

    def wanted(self, granted: Slice) -> tuple[CardLimit, ...]:
        """As in the container's variables: the lowest core limit applies to all cards."""
        cores = min((grant.cores for grant in granted.grants), default=0) or WHOLE_CARD
        return tuple(
            CardLimit(
                uuid=grant.uuid,
                memory_mib=grant.memory_mib or granted.cards[grant.uuid].memory_mib,
                cores=cores,
            )
            for grant in in_order(granted)
        )

    def read(self, granted: Slice) -> tuple[CardLimit, ...]:
        """See `LimitWriter`; a card is found by its UUID."""
        with open_region(self._settings().hook_path, granted.folder_name) as file:
            region = file.read_settled()
        places = _places(region, granted)
        return tuple(
            CardLimit(
                uuid=grant.uuid,
                memory_mib=region.limit_bytes[place] // MIB,
                cores=region.core_percent[place] or WHOLE_CARD,
                used_mib=-(-region.used[place].total_bytes // MIB),
            )
            for grant, place in zip(in_order(granted), places, strict=True)
        )

    def write(self, granted: Slice) -> None:
        """See `LimitWriter`; each limit is one aligned number."""
        with open_region(self._settings().hook_path, granted.folder_name) as file:
            region = file.read()
            _put(file, region, zip(self.wanted(granted), _places(region, granted), strict=True))

    def keep(self, granted: Slice) -> bool:
        """See `LimitWriter`.

        A container that hides its cards, or says that they are others than its first ones, has
        limits on its first ones as well, as its variables had them.
        """
        with open_region(self._settings().hook_path, granted.folder_name) as file:
            region = file.read()
            limits = self.wanted(granted)
            named = numbers_of(region, [limit.uuid for limit in limits])
            found = list(zip(limits, named, strict=False))
            found += [(limit, i) for i, limit in enumerate(limits[:DEVICES]) if i not in named]
            return _put(file, region, found)

    def answer(self, given: ContainerResponse, granted: Slice) -> ContainerResponse:
        """The variables with the limits; all others as they were."""
        envs = dict(given.envs)
        for i, limit in enumerate(self.wanted(granted)):
            envs[f"{names.ENV_MEMORY_LIMIT}_{i}"] = f"{limit.memory_mib}m"
        cores = min((grant.cores for grant in granted.grants), default=0)
        envs[names.ENV_CORE_LIMIT] = str(cores)
        return replace(given, envs=tuple(sorted(envs.items())))


def _put(file: RegionFile, region: Region, limits: Iterable[tuple[CardLimit, int]]) -> bool:
    """Write what differs at each place; True if something did."""
    has_changed = False
    for limit, place in limits:
        if region.limit_bytes[place] != limit.memory_mib * MIB:
            file.write_memory_limit(place, limit.memory_mib * MIB)
            has_changed = True
        if (region.core_percent[place] or WHOLE_CARD) != limit.cores:
            file.write_core_limit(place, limit.cores)
            has_changed = True
    return has_changed


def _places(region: Region, granted: Slice) -> list[int]:
    """Where each card is in the file; by order, as in the variables, while it has no UUIDs."""
    grants, uuids = in_order(granted), region.device_uuids
    if not uuids:
        raise RegionNotReady("unnamed", "names no card yet: no program has opened one")
    if not any(uuids) and len(uuids) == len(grants):
        return list(range(len(grants)))
    known = {uuid: place for place, uuid in enumerate(uuids)}
    if missing := [grant.uuid for grant in grants if grant.uuid not in known]:
        raise RegionError("cards", f"does not name {', '.join(missing)}")
    return [known[grant.uuid] for grant in grants]
