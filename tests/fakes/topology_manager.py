"""How kubelet aligns containers with NUMA nodes: its topology manager, on values.

As in kubelet 1.28 to 1.36, container scope: hints of each provider, merged by the node's policy;
IDs are then taken from the merged NUMA nodes first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations, product

Mask = frozenset[int]


class Policy(StrEnum):
    """kubelet's topologyManagerPolicy."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE = "single-numa-node"


@dataclass(frozen=True, slots=True)
class Hint:
    """NUMA nodes that would do; None: any."""

    nodes: Mask | None
    is_preferred: bool


ANY = Hint(None, True)
NOWHERE = Hint(None, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A device ID as the plugin lists it; `nodes` is empty without topology."""

    id: str
    is_healthy: bool = True
    nodes: Mask = frozenset()


def masks(nodes: Sequence[int]) -> list[Mask]:
    """All sets of NUMA nodes, small ones first."""
    sizes = range(1, len(nodes) + 1)
    return [frozenset(chosen) for size in sizes for chosen in combinations(nodes, size)]


def device_hints(
    slots: Sequence[Slot], available: Collection[str], count: int, nodes: Sequence[int]
) -> list[Hint] | None:
    """The device manager's hints; None where no ID has a NUMA node."""
    if not any(slot.nodes for slot in slots):
        return None
    if len(available) < count:
        return []
    fitting: list[Mask] = []
    least = len(nodes)
    for mask in masks(nodes):
        if sum(bool(slot.nodes & mask) for slot in slots) >= count:
            least = min(least, len(mask))
        if sum(bool(slot.nodes & mask) for slot in slots if slot.id in available) >= count:
            fitting.append(mask)
    return [Hint(mask, len(mask) == least) for mask in fitting]


def cpu_hints(free: Mapping[int, int], total: Mapping[int, int], count: int) -> list[Hint] | None:
    """The static CPU manager's hints; None for a pod that needs no CPUs of its own."""
    if not count:
        return None
    nodes = sorted(total)
    fitting = [mask for mask in masks(nodes) if sum(free[node] for node in mask) >= count]
    able = [len(mask) for mask in masks(nodes) if sum(total[node] for node in mask) >= count]
    return [Hint(mask, len(mask) == min(able)) for mask in fitting]


def merged(
    providers: Iterable[list[Hint] | None], nodes: Sequence[int], policy: Policy
) -> tuple[Mask | None, bool]:
    """The affinity that the providers get, and whether the container is admitted."""
    if policy is Policy.NONE:
        return None, True
    lists = [[ANY] if hints is None else hints or [NOWHERE] for hints in providers]
    if policy is Policy.SINGLE:
        lists = [[hint for hint in hints if _is_single(hint)] for hints in lists]
    everything = frozenset(nodes)
    best: Hint | None = None
    for permutation in product(*lists):
        named = [hint.nodes for hint in permutation if hint.nodes is not None]
        together = everything.intersection(*named)
        is_preferred = all(hint.is_preferred for hint in permutation) and len(set(named)) <= 1
        if together and _is_better(Hint(together, is_preferred), best):
            best = Hint(together, is_preferred)
    best = best or Hint(everything, False)
    affinity = None if policy is Policy.SINGLE and best.nodes == everything else best.nodes
    return affinity, policy is Policy.BEST_EFFORT or best.is_preferred


def _is_single(hint: Hint) -> bool:
    return hint.is_preferred and (hint.nodes is None or len(hint.nodes) == 1)


def _is_better(hint: Hint, best: Hint | None) -> bool:
    if best is None or hint.is_preferred is not best.is_preferred:
        return best is None or hint.is_preferred
    assert hint.nodes is not None
    assert best.nodes is not None
    return (len(hint.nodes), sorted(hint.nodes)) < (len(best.nodes), sorted(best.nodes))


Prefer = Callable[[list[str], int], list[str]]
"""GetPreferredAllocation: of these IDs, so many."""


@dataclass(kw_only=True)
class NumaNode:
    """A machine with some CPUs on each NUMA node and one resource of a device plugin."""

    policy: Policy
    cpus: dict[int, int]
    slots: list[Slot]
    free_cpus: dict[int, int] = field(init=False)
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cpus_of: dict[str, dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free_cpus = dict(self.cpus)

    def admit(self, pod: str, cpus: int, count: int, prefer: Prefer) -> tuple[str, ...] | None:
        """The IDs of a pod with one container; None: it is rejected for good."""
        nodes = sorted(self.cpus)
        taken = {name for ids in self.held.values() for name in ids}
        available = {slot.id for slot in self.slots if slot.is_healthy} - taken
        providers = (
            cpu_hints(self.free_cpus, self.cpus, cpus),
            device_hints(self.slots, available, count, nodes),
        )
        affinity, is_admitted = merged(providers, nodes, self.policy)
        if not is_admitted or len(available) < count:
            return None
        wanted = self._take_cpus(cpus, affinity)
        if wanted is None:
            return None
        near = [
            slot.id for slot in self.slots if slot.id in available and self._is_near(slot, affinity)
        ]
        if count < len(near):
            ids = prefer(near, count)
        else:
            ids = (near + prefer(sorted(available - set(near)), count))[:count]
        self.held[pod], self.cpus_of[pod] = tuple(ids), wanted
        return tuple(ids)

    def _is_near(self, slot: Slot, affinity: Mask | None) -> bool:
        return affinity is not None and bool(slot.nodes & affinity)

    def _take_cpus(self, count: int, affinity: Mask | None) -> dict[int, int] | None:
        order = sorted(self.cpus, key=lambda node: (node not in (affinity or ()), node))
        found: dict[int, int] = {}
        for node in order:
            found[node] = min(self.free_cpus[node], count - sum(found.values()))
        if sum(found.values()) < count:
            return None
        for node, number in found.items():
            self.free_cpus[node] -= number
        return {node: number for node, number in found.items() if number}

    def end(self, pod: str) -> None:
        """The pod has ended."""
        self.held.pop(pod)
        for node, number in self.cpus_of.pop(pod).items():
            self.free_cpus[node] += number

    def killed_by_restart(self) -> list[str]:
        """Running pods that kubelet would reject when it restarts and admits them again."""
        nodes, gone = sorted(self.cpus), []
        for pod, ids in self.held.items():
            own = self.cpus_of[pod]
            providers = (
                [Hint(frozenset(own), len(own) == self._least(sum(own.values())))] if own else None,
                device_hints(self.slots, ids, len(ids), nodes),
            )
            if not merged(providers, nodes, self.policy)[1]:
                gone.append(pod)
        return gone

    def _least(self, count: int) -> int:
        able = [m for m in masks(sorted(self.cpus)) if sum(self.cpus[node] for node in m) >= count]
        return min(map(len, able))
