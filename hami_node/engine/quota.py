"""What a namespace may still take.

Memory of asks and of `used` is already multiplied by the memory factor, the limit is not; cores are
never scaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hami_node.engine.compat import Compat
from hami_node.engine.usage import Taken
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


class _OfCard(NamedTuple):
    """Memory in MiB and cores in percent that a pod takes of one card.

    `steady` is what apps and sidecars take together, `init` what the present init container does,
    `peak` the most that is taken at one time.
    """

    uuid: Uuid
    steady: tuple[int, int] = (0, 0)
    init: tuple[int, int] = (0, 0)
    peak: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTally:
    """A quota and what the pod under placement takes of it so far.

    The pod counts as it will once it is placed, see `usage.collapse`: with its peak on each card,
    where an init container runs beside the sidecars that started before it. Without `collapses`
    everything is summed, which is never less.

    Attributes:
        cards: what it takes of each card.
        peak: the peaks of all cards together.
    """

    quota: Quota
    collapses: bool
    zero_is_limit: bool
    cards: tuple[_OfCard, ...] = ()
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
        """The tally while the next container, of that kind, is placed."""
        cards = tuple(card._replace(init=(0, 0)) for card in self.cards)
        return replace(self, is_init=is_init, cards=cards)

    def with_taken(self, taken: Taken) -> QuotaTally:
        """The tally after the present container took something."""
        held, now = self._held_and_then(taken)
        others = tuple(card for card in self.cards if card is not held)
        return replace(self, cards=(*others, now), peak=self._peak(held, now))

    def admits(self, taken: Taken) -> bool:
        """True while the namespace stays within its limits when this is taken too."""
        return not self.exceeds(*self._peak(*self._held_and_then(taken)))

    def exceeds(self, memory_mib: int, cores: int) -> bool:
        """True if the namespace would be beyond its limits with a pod that takes so much."""
        quota = self.quota
        return self._is_beyond(
            quota.memory_used_mib + memory_mib, quota.memory_limit_mib, quota.memory_factor
        ) or self._is_beyond(quota.cores_used + cores, quota.core_limit, 1)

    def _held_and_then(self, taken: Taken) -> tuple[_OfCard, _OfCard]:
        uuid, memory_mib, cores = taken.device.uuid, taken.memory_mib, taken.cores
        held = next((card for card in self.cards if card.uuid == uuid), _OfCard(uuid))
        steady, init = held.steady, held.init
        if self.is_init and self.collapses:
            init = init if taken.part is not None else (0, 0)
            init = init[0] + memory_mib, init[1] + cores
        else:
            steady = steady[0] + memory_mib, steady[1] + cores
        peak = max(held.peak[0], steady[0] + init[0]), max(held.peak[1], steady[1] + init[1])
        return held, _OfCard(uuid, steady, init, peak)

    def _peak(self, held: _OfCard, now: _OfCard) -> tuple[int, int]:
        memory_mib, cores = self.peak
        return memory_mib + now.peak[0] - held.peak[0], cores + now.peak[1] - held.peak[1]

    def _is_beyond(self, wanted: int, limit: int | None, factor: int) -> bool:
        if limit is None or (limit == 0 and not self.zero_is_limit):
            return False
        return wanted > limit * factor


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
