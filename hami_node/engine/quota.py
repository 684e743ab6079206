"""What a namespace may still take.

Memory of asks and of `used` is already multiplied by the memory factor, the limit is not; cores are
never scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import add

from hami_node.engine.compat import Compat
from hami_node.model import Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A namespace's limits and what its pods hold; None is no limit.

    Attributes:
        requests: limits of memory and cores that Kubernetes keeps when a pod is created: what a
            running pod gets beyond that has to be kept here.
    """

    memory_limit_mib: int | None = None
    core_limit: int | None = None
    requests: tuple[int | None, int | None] = (None, None)
    memory_used_mib: int = 0
    cores_used: int = 0
    memory_factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """What one container takes of one card."""

    uuid: Uuid
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTally:
    """A quota and what the pod under placement takes of it so far.

    Init containers run one after another: of each card the pod counts with its largest init take or
    the sum of its other takes, whichever is more; without `collapses` everything is summed.

    Attributes:
        init_takes: the largest of each card.
        app_takes: the sum of each card.
        peak: memory in MiB and cores in percent that the pod takes at its peak, over all cards.
    """

    quota: Quota
    collapses: bool
    zero_is_limit: bool
    init_takes: tuple[Take, ...] = ()
    app_takes: tuple[Take, ...] = ()
    peak: tuple[int, int] = (0, 0)
    is_init: bool = False

    @classmethod
    def start(cls, quota: Quota, compat: Compat) -> QuotaTally:
        """Nothing taken yet."""
        return cls(
            quota=quota,
            collapses=compat.quota_collapses,
            zero_is_limit=compat.is_zero_quota_a_limit,
        )

    def at(self, *, is_init: bool) -> QuotaTally:
        """The tally while a container of that kind is placed."""
        return replace(self, is_init=is_init)

    def with_take(self, take: Take) -> QuotaTally:
        """The tally after the present container took something."""
        peak = self._peak_with(take.uuid, take.memory_mib, take.cores)
        if self.is_init and self.collapses:
            return replace(self, init_takes=_merged(self.init_takes, take, max), peak=peak)
        return replace(self, app_takes=_merged(self.app_takes, take, add), peak=peak)

    def admits(self, uuid: Uuid, memory_mib: int, cores: int) -> bool:
        """True while the namespace stays within its limits when this card is taken too."""
        return not self.exceeds(*self._peak_with(uuid, memory_mib, cores))

    def exceeds(self, memory_mib: int, cores: int) -> bool:
        """True if the namespace would be beyond its limits with a pod that takes so much."""
        quota = self.quota
        return self._is_beyond(
            quota.memory_used_mib + memory_mib, quota.memory_limit_mib, quota.memory_factor
        ) or self._is_beyond(quota.cores_used + cores, quota.core_limit, 1)

    def _peak_with(self, uuid: Uuid, memory_mib: int, cores: int) -> tuple[int, int]:
        inits, apps = _amounts(self.init_takes, uuid), _amounts(self.app_takes, uuid)
        memory_before, cores_before = map(max, inits, apps)
        if self.is_init and self.collapses:
            inits = max(inits[0], memory_mib), max(inits[1], cores)
        else:
            apps = apps[0] + memory_mib, apps[1] + cores
        memory_after, cores_after = map(max, inits, apps)
        memory, core = self.peak
        return memory + memory_after - memory_before, core + cores_after - cores_before

    def _is_beyond(self, wanted: int, limit: int | None, factor: int) -> bool:
        if limit is None or (limit == 0 and not self.zero_is_limit):
            return False
        return wanted > limit * factor


def _amounts(takes: tuple[Take, ...], uuid: Uuid) -> tuple[int, int]:
    for take in takes:
        if take.uuid == uuid:
            return take.memory_mib, take.cores
    return 0, 0


def _merged(
    takes: tuple[Take, ...], more: Take, join: Callable[[int, int], int]
) -> tuple[Take, ...]:
    """One take of each card: a pod may have hundreds of a node's few cards, one after another."""
    for at, held in enumerate(takes):
        if held.uuid == more.uuid:
            memory_mib = join(held.memory_mib, more.memory_mib)
            both = Take(uuid=held.uuid, memory_mib=memory_mib, cores=join(held.cores, more.cores))
            return (*takes[:at], both, *takes[at + 1 :])
    return (*takes, more)


def _lowest(limits: Iterable[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one ResourceQuota object allows; None is no limit. `requests` as of `Quota`."""

    memory_mib: int | None = None
    cores: int | None = None
    requests: tuple[int | None, int | None] = (None, None)


class QuotaBook:
    """Limits and use of every namespace. Not thread-safe: its owner holds a lock.

    All ResourceQuota objects of a namespace apply: the lowest limit counts.
    """

    def __init__(self, memory_factor: int = 1) -> None:
        """`memory_factor` is the MiB that one unit of a memory limit means; at least 1."""
        self._factor = max(memory_factor, 1)
        self._limits: dict[str, dict[str, Limits]] = {}
        self._used: dict[str, tuple[int, int]] = {}

    def set_limits(self, namespace: str, name: str, limits: Limits | None) -> None:
        """Set the limits of one ResourceQuota object; None removes it."""
        if limits is not None:
            self._limits.setdefault(namespace, {})[name] = limits
            return
        objects = self._limits.get(namespace, {})
        objects.pop(name, None)
        if not objects:
            self._limits.pop(namespace, None)

    def use(self, namespace: str, memory_mib: int, cores: int) -> None:
        """Count what a pod takes; negative amounts release it."""
        memory, core = self._used.get(namespace, (0, 0))
        total = (memory + memory_mib, core + cores)
        if total == (0, 0):
            self._used.pop(namespace, None)
        else:
            self._used[namespace] = total

    def quota(self, namespace: str) -> Quota | None:
        """The namespace's quota now; None when nothing limits it."""
        objects = self._limits.get(namespace)
        if not objects:
            return None
        used_memory, used_cores = self._used.get(namespace, (0, 0))
        return Quota(
            memory_limit_mib=_lowest(limits.memory_mib for limits in objects.values()),
            core_limit=_lowest(limits.cores for limits in objects.values()),
            requests=(
                _lowest(limits.requests[0] for limits in objects.values()),
                _lowest(limits.requests[1] for limits in objects.values()),
            ),
            memory_used_mib=used_memory,
            cores_used=used_cores,
            memory_factor=self._factor,
        )

    def snapshot(self) -> dict[str, Quota]:
        """Limits and use of every namespace that has either."""
        names = sorted(self._limits.keys() | self._used.keys())
        return {name: self.quota(name) or self._unlimited(name) for name in names}

    def _unlimited(self, namespace: str) -> Quota:
        memory, cores = self._used.get(namespace, (0, 0))
        return Quota(memory_used_mib=memory, cores_used=cores, memory_factor=self._factor)
