"""Which card and which node is tried first: scores, policies and the order they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from hami_node.engine.compat import Compat
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask, Device

WEIGHT: Final = 10
"""Makes scores readable. Source: HAMi util.Weight."""

DIGITS: Final = 9
"""Scores are rounded to these digits, so that equal loads tie in whatever order they are summed."""

BINPACK: Final = "binpack"
SPREAD: Final = "spread"
NUMA: Final = "numa"
MUTEX: Final = "mutex"
TOPOLOGY: Final = "topology-aware"

NO_NUMA: Final = -1
"""The NUMA node by which cards of unknown NUMA node are sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much slots, cores and memory count in a card's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


EVEN: Final = Weights()


def parse_weights(text: str) -> Weights | None:
    """Read `slot=1,core=1,memory=3`; None when the text is wrong.

    All three keys once, whole numbers from 0, not all of them 0; order and blanks are free.
    Source: HAMi util/device_scoring_weights.go:43-102.
    """
    values: dict[str, int] = {}
    for item in text.split(","):
        key, sign, number = item.partition("=")
        key, number = key.strip(), number.strip()
        is_number = number.isascii() and number.removeprefix("+").isdigit() and len(number) < 10
        if not sign or not is_number or key in values:
            return None
        values[key] = int(number)
    if values.keys() != {"slot", "core", "memory"} or not any(values.values()):
        return None
    return Weights(slot=values["slot"], core=values["core"], memory=values["memory"])


MAX_USUAL: Final = 64
"""Characters of a policy whose words are remembered."""


def words(policy: str) -> tuple[str, ...]:
    """The words of a comma-chained policy, without blanks.

    A pod's annotation may name one of 256 KiB: what is longer than any policy is not remembered.
    """
    return _usual(policy) if len(policy) <= MAX_USUAL else _split(policy)


@lru_cache(maxsize=64)
def _usual(policy: str) -> tuple[str, ...]:
    return _split(policy)


def _split(policy: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in policy.split(","))


def has_word(policy: str, word: str) -> bool:
    """True when the policy contains the word."""
    return word in words(policy)


def device_score(
    card: DeviceUsage, asks: Sequence[Ask], compat: Compat, weights: Weights = EVEN
) -> float:
    """How full the card would be: 10 x the weighted sum of three shares, from 0 (idle).

    A card with a total of 0 scores 0. Source: document 003, 3; HAMi policy/gpu_policy.go:194.
    """
    device = card.device
    slots, cores, memory = card.slots_used, card.cores_used, card.memory_used_mib
    for ask in asks:
        if compat.score_matches_vendor and ask.vendor is not device.vendor:
            continue
        slots += ask.count if compat.slot_term_counts_cards else 1
        cores += ask.cores
        memory += ask.memory_mib_on(device.memory_mib)
    return card_score(device, slots, cores, memory, weights)


def card_score(device: Device, slots: int, cores: int, memory_mib: int, weights: Weights) -> float:
    """The score of a card of which so much would be used."""
    if not (device.slots and device.cores and device.memory_mib):
        return 0.0
    share = (
        weights.slot * slots / device.slots
        + weights.core * cores / device.cores
        + weights.memory * memory_mib / device.memory_mib
    )
    return round(WEIGHT * share, DIGITS)


def node_score(cards: Iterable[DeviceUsage]) -> float:
    """How full the node is: 10 x the sum of its three shares; 0 when a total is 0.

    Source: document 003, section 5; HAMi policy/node_policy.go:106-130.
    """
    slots = slots_used = cores = cores_used = memory = memory_used = 0
    for card in cards:
        device = card.device
        slots += device.slots
        cores += device.cores
        memory += device.memory_mib
        slots_used += card.slots_used
        cores_used += card.cores_used
        memory_used += card.memory_used_mib
    if not (slots and cores and memory):
        return 0.0
    share = slots_used / slots + cores_used / cores + memory_used / memory
    return round(WEIGHT * share, DIGITS)


class Scored(NamedTuple):
    """A card with its score and its position in the order of registration."""

    card: DeviceUsage
    score: float
    position: int


_Key = Callable[[Scored], tuple[float, ...]]


def visit_order(
    scored: Iterable[Scored], policy: str, compat: Compat, *, is_numa_bound: bool
) -> list[Scored]:
    """The cards in visit order; of equal cards, the one registered later comes first.

    A chained policy compares the index before that: the higher index comes first.

    Source: document 003, section 4; HAMi 2.10 policy/gpu_policy.go:62-167.
    """
    key = _key(policy, is_numa_first=compat.is_numa_first or is_numa_bound)
    return sorted(scored, key=lambda item: (*key(item), -item.position))


def _key(policy: str, *, is_numa_first: bool) -> _Key:
    if "," in policy or policy == NUMA:
        return _chained(words(policy), is_numa_first=is_numa_first)
    if policy == MUTEX:
        return lambda item: (item.card.slots_used, -_numa(item))
    if policy == BINPACK:
        if is_numa_first:
            return lambda item: (_numa(item), -item.score)
        return lambda item: (-item.score, -_numa(item))
    if is_numa_first:
        return lambda item: (-_numa(item), item.score)
    return lambda item: (item.score, -_numa(item))


def _chained(chain: Sequence[str], *, is_numa_first: bool) -> _Key:
    known = [word for word in chain if word in (BINPACK, SPREAD, NUMA)] or [SPREAD]
    if is_numa_first:
        known.insert(0, NUMA)
    keys = tuple(dict.fromkeys(known))
    return lambda item: (*(_CHAIN_KEYS[word](item) for word in keys), -item.card.device.index)


_CHAIN_KEYS: Final[dict[str, Callable[[Scored], float]]] = {
    BINPACK: lambda item: -item.score,
    SPREAD: lambda item: item.score,
    NUMA: lambda item: -_numa(item),
}


def _numa(item: Scored) -> int:
    numa = item.card.device.numa
    return NO_NUMA if numa is None else numa
