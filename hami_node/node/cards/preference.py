"""Which device IDs kubelet should take: those of the reserved cards, else of cards that fit best.

An ID stands for a slot of a card, so a container that asks for several gets several cards.
Loaded with the first question: it needs the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.engine.ranking import BINPACK, words
from hami_node.engine.usage import Taken
from hami_node.model import NO_SCORES, Device, PairScores, Uuid, own_ids, uuid_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CardChoice:
    """What a free choice between cards depends on.

    Attributes:
        cards: those that are offered.
        scores: links between them.
        policy: the order of cards as the settings have it: fuller ones first where it says binpack,
            else emptier ones.
    """

    cards: tuple[Device, ...] = ()
    scores: PairScores = field(default_factory=lambda: NO_SCORES)
    policy: str = ""


ANY_CARD: Final = CardChoice()


def choose_ids(
    available: Iterable[str],
    must: Iterable[str],
    size: int,
    *,
    reserved: Iterable[Uuid] = (),
    choice: CardChoice = ANY_CARD,
) -> list[str]:
    """At most `size` IDs: all that must be there, then of reserved cards, then of the best others.

    Cards come one ID each before any card twice; IDs of no card of ours come last.
    """
    own = own_ids(choice.cards)
    chosen = list(dict.fromkeys(must))[: max(size, 0)]
    had, held = [uuid_of(name, own) for name in chosen], frozenset(chosen)
    free: dict[Uuid, list[str]] = {}
    for name in dict.fromkeys(available):
        if name not in held:
            free.setdefault(uuid_of(name, own), []).append(name)
    for uuid in reserved:
        if uuid in had:
            had.remove(uuid)
        elif free.get(uuid) and len(chosen) < size:
            chosen.append(free[uuid].pop(0))
    missing = min(max(size, 0) - len(chosen), sum(map(len, free.values())))
    if missing > 0:
        used = {uuid_of(name, own) for name in chosen}
        chosen += _in_turns(_visits(free, used, missing, choice), missing)
    return chosen


def _visits(
    free: Mapping[Uuid, list[str]], used: Collection[Uuid], count: int, choice: CardChoice
) -> list[list[str]]:
    """The free IDs of each card, in the order in which the cards are taken."""
    cards = {card.uuid: card for card in choice.cards}
    sign = 1 if BINPACK in words(choice.policy) else -1
    ours = [card for card in choice.cards if free.get(card.uuid)]
    ours.sort(key=lambda card: (sign * len(free[card.uuid]), card.index))
    fresh = [card for card in ours if card.uuid not in used]
    near = {cards[uuid].numa for uuid in used if uuid in cards}
    best = _best(_level(fresh, free, count), near, count, choice.scores)
    order = dict.fromkeys(card.uuid for card in (*best, *fresh, *ours))
    return [free[uuid] for uuid in (*order, *(uuid for uuid in free if uuid not in order))]


def _level(fresh: Sequence[Device], free: Mapping[Uuid, list[str]], count: int) -> Sequence[Device]:
    """For one card alone the policy decides, so only those as full as the first are left."""
    if count > 1 or not fresh:
        return fresh
    return [card for card in fresh if len(free[card.uuid]) == len(free[fresh[0].uuid])]


def _best(
    cards: Sequence[Device], near: Collection[int | None], count: int, scores: PairScores
) -> Sequence[Device]:
    """The best linked of these cards, all of one NUMA node where one has enough.

    Args:
        cards: in the order of preference.
        near: the NUMA nodes of cards that are taken already; they come before others.
        count: how many are wanted.
        scores: links between cards.
    """
    if count >= len(cards):
        return cards
    groups: dict[object, list[Taken]] = {}
    for card in cards:
        key = card.uuid if card.numa is None else card.numa  # unknown ones may be far apart
        groups.setdefault(key, []).append(Taken(device=card, memory_mib=0, cores=0))
    large = [group for group in groups.values() if len(group) >= count]
    nearest = [group for group in large if group[0].device.numa in near] or large
    best = rules_of(cards[0].vendor).best_linked(
        nearest or groups.values(), count, scores, is_bound=bool(nearest) and count > 1
    )
    chosen = (nearest or [[*chain(*groups.values())]])[0][:count] if best is None else best.taken
    return [taken.device for taken in chosen]


def _in_turns(visits: Sequence[Sequence[str]], count: int) -> list[str]:
    """One ID of each card, in turns."""
    turns = (names for names in zip_longest(*visits))
    return list(islice((name for names in turns for name in names if name is not None), count))
