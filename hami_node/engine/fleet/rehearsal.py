"""What really happens on a node when containers take one card after another, in a few numbers.

`Seating` asks whether there is any way to share the cards. Placing goes only one way, and a small
container may take the card that a later one needs as a whole. That way is gone here in a fraction
of the time of placing, for the usual pods on undivided cards: a node is refused only if placing
refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from hami_node.engine.card_rules import rules_of
from hami_node.engine.fleet.summaries import Room
from hami_node.engine.place import Plan
from hami_node.engine.ranking import (
    BINPACK,
    MUTEX,
    NO_NUMA,
    NUMA,
    TOPOLOGY,
    card_score,
    has_word,
)
from hami_node.model import Ask, Device, UuidWish

ANY_CARD: Final = UuidWish()
"""Of a pod that names no card."""


class Step(NamedTuple):
    """What one container takes of each of its cards, see `needs.Need`."""

    ask: Ask
    cores: int
    memory_by_kind: Mapping[int, int]
    idle_kinds: int

    def serves(self, room: Room) -> bool:
        """Whether no filter rejects the card."""
        memory_mib = self.memory_by_kind.get(room.kind)
        return (
            memory_mib is not None
            and room.memory_mib >= memory_mib
            and room.cores >= (self.cores or 1)
            and room.slots > 0
            and (room.is_idle or not self.idle_kinds >> room.kind & 1)
        )

    def taken(self, room: Room) -> Room:
        """The card once the container has taken it."""
        return room._replace(
            memory_mib=room.memory_mib - self.memory_by_kind[room.kind],
            cores=room.cores - self.cores,
            is_idle=False,
            slots=room.slots - 1,
        )


class Rehearsal:
    """One request's containers, in their order, on the cards of one node after another."""

    def __init__(self, ready: Plan, steps: Sequence[Step], kinds: Mapping[int, Device]) -> None:
        """For a request of which `can_rehearse` is true."""
        self._steps, self._kinds, self._plan = tuple(steps), kinds, ready
        self._is_numa_first = ready.compat.is_numa_first

    def may_fit(self, rooms: Iterable[Room]) -> bool:
        """False when placing the containers on these cards comes to a refusal."""
        left = list(rooms)
        for step in self._steps[:-1]:
            count = step.ask.count
            fitting = [at for at, room in enumerate(left) if step.serves(room)]
            if len(fitting) < count:
                return False
            if len(fitting) > count:
                ranked = sorted([(self._rank(step, left[at]), -at) for at in fitting])
                fitting = [-at for _, at in ranked[:count]]
            for at in fitting:
                left[at] = step.taken(left[at])
        last = self._steps[-1]
        return sum(map(last.serves, left)) >= last.ask.count

    def _rank(self, step: Step, room: Room) -> tuple[float, float]:
        """As `ranking.visit_order` sorts: the later of equal cards comes first."""
        policy, numa = self._plan.policy, max(room.numa, NO_NUMA)
        device, ask = self._kinds[room.kind], step.ask
        used = device.slots - room.slots
        if policy == MUTEX:
            return used, -numa
        compat = self._plan.compat
        score = card_score(
            device,
            used + (ask.count if compat.slot_term_counts_cards else 1),
            device.cores - room.cores + ask.cores,
            device.memory_mib - room.memory_mib + step.memory_by_kind[room.kind],
            self._plan.weights,
        )
        if policy == BINPACK:
            return (numa, -score) if self._is_numa_first else (-score, -numa)
        return (-numa, score) if self._is_numa_first else (score, -numa)


def can_rehearse(ready: Plan, steps: Sequence[Step], kinds: Mapping[int, Device]) -> bool:
    """Several containers, with cards of one vendor that are taken one by one in visit order."""
    vendors = {ask.vendor for item in ready.request.containers for ask in item.asks}
    if len(steps) < 2 or len(vendors) != 1 or ready.quota is not None:
        return False
    vendor, policy = vendors.pop(), ready.policy
    wishes = ready.request.wishes.of(vendor)
    return (
        rules_of(vendor).takes_in_order
        and "," not in policy
        and policy != NUMA
        and not has_word(policy, TOPOLOGY)
        and not wishes.is_numa_bound
        and wishes.uuids == ANY_CARD
        and all(kinds[kind].cores and kinds[kind].slots for kind in steps[0].memory_by_kind)
    )
