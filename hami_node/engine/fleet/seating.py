"""Whether containers that run side by side can share a node's cards in any way at all.

Stricter than `together`, which adds up: here each card is asked which containers it can hold at
once, and the cards are dealt out. Still necessary and not sufficient: placing takes one card after
another, and may miss a way that exists. Cards, and nodes, that are alike for the request are worked
out once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Final

from hami_node.engine.fleet.summaries import Room
from hami_node.engine.fleet.together import Share

MOST_WAYS: Final = 64
"""Ways in which one card may be shared that are told apart; beyond that nobody asks."""
MOST_OPEN: Final = 256
"""Ways of dealing cards out that are followed at once; beyond that the node may fit."""
MOST_STEPS: Final = 4_000
"""Comparisons for one node, a microsecond each: it is worked out under a lock. Beyond that the node
may fit."""
MOST_AHEAD: Final = 8_000
STEPS_A_SHARE: Final = 16
"""So many steps are spent in advance, and then so many for each container and node, on average:
a quarter of what it takes to try the node, which is quicker where no two nodes are alike."""
MOST_KEPT: Final = 1_024
"""Cards, and nodes, whose answer is kept."""

Amounts = tuple[int, ...]
"""For each sort of container: how many of them, or how many cards they still need."""


class Seating:
    """One request's containers with cards of one vendor. Not thread-safe: its owner has a lock.

    Attributes:
        is_asked: there are several containers, of few sizes; else `may_fit` is of no use.
        learned: how often a card was in a state that was not known.
    """

    def __init__(self, shares: Sequence[Share], *, is_bound: bool) -> None:
        """`is_bound`: all cards of a container are of one NUMA group."""
        equal: dict[tuple[object, ...], list[Share]] = {}
        for share in shares:
            amounts = tuple(share.memory_by_kind.items())
            key = (share.count, amounts, share.cores, share.idle_kinds)
            equal.setdefault(key, []).append(share)
        self._sorts = tuple(group[0] for group in equal.values())
        self._most = tuple(len(group) for group in equal.values())
        self._is_bound = is_bound
        self.is_asked = len(shares) > 1 and prod(most + 1 for most in self._most) <= MOST_WAYS
        self.learned = 0
        self._numbers: dict[tuple[Amounts, ...], int] = {(): 0}
        self._ways: list[tuple[Amounts, ...]] = [()]
        self._cards: dict[Room, int] = {}
        self._groups: dict[Amounts, frozenset[Amounts]] = {}
        self._nodes: dict[tuple[Amounts, ...], bool] = {}
        self._left = 0
        self._spare, self._steps_a_node = MOST_AHEAD, STEPS_A_SHARE * len(shares)

    def may_fit(self, rooms: Sequence[Room]) -> bool:
        """False when there is no way to share the cards, as far as there are steps to find out."""
        is_late = self._spare < 0
        if is_late and not self._cards.keys() >= set(rooms):
            self._spare += self._steps_a_node
            return True
        key = tuple(sorted(self._by_group(rooms)))
        answer = self._nodes.get(key)
        if answer is not None:
            return answer
        self._spare += self._steps_a_node
        return is_late or self._worked_out(key)

    def _worked_out(self, key: tuple[Amounts, ...]) -> bool:
        if len(self._nodes) >= MOST_KEPT:
            self._nodes.clear()
        self._left = MOST_STEPS
        try:
            answer = self._fits(key)
        except _TooLongError:
            answer = True
        self._spare -= MOST_STEPS - self._left
        self._nodes[key] = answer
        return answer

    def _by_group(self, rooms: Iterable[Room]) -> Iterator[Amounts]:
        """The cards of each NUMA group, or all of them, by what they can hold."""
        groups: dict[int, list[int]] = {}
        cards = self._cards
        for room in rooms:
            number = cards.get(room)
            if number is None:
                number = self._learned(room)
            if number:
                groups.setdefault(room.numa if self._is_bound else 0, []).append(number)
        for numbers in groups.values():
            numbers.sort()
            yield tuple(numbers)

    def _learned(self, room: Room) -> int:
        self.learned += 1
        held = list(self._held(room))
        ways = tuple(_largest(held))
        self._spare -= prod(most + 1 for most in self._most) + len(held) * len(ways)
        number = self._numbers.setdefault(ways, len(self._ways))
        if number == len(self._ways):
            self._ways.append(ways)
        if len(self._cards) >= MOST_KEPT:
            self._cards.clear()
        self._cards[room] = number
        return number

    def _held(self, room: Room) -> Iterator[Amounts]:
        """Everything that the card can hold at once."""
        if room.cores <= 0:
            return iter(())  # a card whose cores are all taken serves nobody
        choices = [range(most + 1) for most in self._most]
        return (way for way in product(*choices) if any(way) and self._can_hold(room, way))

    def _can_hold(self, room: Room, way: Amounts) -> bool:
        memory_mib = cores = 0
        count = sum(way)
        if count > room.slots:
            return False
        for share, times in zip(self._sorts, way, strict=True):
            if not times:
                continue
            each_mib = share.memory_by_kind.get(room.kind)
            if each_mib is None:
                return False
            if share.idle_kinds >> room.kind & 1 and (count > 1 or not room.is_idle):
                return False
            memory_mib += times * each_mib
            cores += times * share.cores
        return memory_mib <= room.memory_mib and cores <= room.cores

    def _fits(self, groups: tuple[Amounts, ...]) -> bool:
        """Whether the groups together serve every container."""
        if not self._is_bound:
            return bool(groups) and self._serves(groups[0], self._most)
        left = {self._most}
        for group in groups:
            served = self._served(group)
            self._take(len(left) * len(served))
            left = {_less(open_, way) for open_ in left for way in served}
            if len(left) > MOST_OPEN:
                return True
        return any(not any(open_) for open_ in left)

    def _served(self, group: Amounts) -> frozenset[Amounts]:
        """How many containers of each sort a NUMA group can serve as a whole."""
        answer = self._groups.get(group)
        if answer is None:
            if len(self._groups) >= MOST_KEPT:
                self._groups.clear()
            choices = [range(most + 1) for most in self._most]
            answer = frozenset(way for way in product(*choices) if self._serves(group, way))
            self._groups[group] = answer
        return answer

    def _serves(self, cards: Amounts, containers: Amounts) -> bool:
        """Whether these cards can be dealt out to so many containers of each sort."""
        needed = (times * share.count for share, times in zip(self._sorts, containers, strict=True))
        left = {tuple(needed)}
        for number, times in Counter(cards).items():
            ways = self._ways[number]
            for _ in range(times):
                self._take(len(left) * len(ways))
                open_ways = {_less(open_, way) for open_ in left for way in ways}
                self._take(len(open_ways) ** 2 // 2)
                left = set(_smallest(open_ways))
                if len(left) > MOST_OPEN:
                    return True
        return any(not any(open_) for open_ in left)

    def _take(self, steps: int) -> None:
        """Count work before it is done."""
        self._left -= steps
        if self._left < 0:
            raise _TooLongError


class _TooLongError(Exception):
    """Nobody asks further whether the node's cards can be shared."""


def _less(open_: Amounts, way: Amounts) -> Amounts:
    return tuple([max(have - take, 0) for have, take in zip(open_, way, strict=True)])


def _is_within(some: Amounts, more: Amounts) -> bool:
    return all(a <= b for a, b in zip(some, more, strict=True))


def _largest(ways: Iterable[Amounts]) -> list[Amounts]:
    """Those that are not part of another one."""
    kept: list[Amounts] = []
    for way in sorted(ways, key=sum, reverse=True):
        if not any(_is_within(way, larger) for larger in kept):
            kept.append(way)
    return sorted(kept)


def _smallest(ways: Iterable[Amounts]) -> list[Amounts]:
    """Those of which no other one is part."""
    kept: list[Amounts] = []
    for way in sorted(ways, key=sum):
        if not any(_is_within(smaller, way) for smaller in kept):
            kept.append(way)
    return kept
