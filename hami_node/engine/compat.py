"""The two generations of scheduling semantics, as named fields.

Every difference that concerns all vendors is here; what differs only for one vendor's cards is in
that vendor's folder, by the generation's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class FilterName(StrEnum):
    """The filters whose order is part of a generation."""

    HEALTH = "health"
    CORDON = "cordon"
    TYPE = "type"
    UUID = "uuid"
    SLOTS = "slots"
    MUTEX = "mutex"
    QUOTA = "quota"
    MEMORY = "memory"
    CORES = "cores"
    EXCLUSIVE = "exclusive"
    NO_CORES_LEFT = "no-cores-left"


_F = FilterName

FILTERS_BEFORE_NUMA: Final = (_F.HEALTH, _F.CORDON, _F.TYPE)
"""Run before the NUMA group is compared; the same in both generations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compat:
    """What differs between the generations.

    Attributes:
        name: value of the setting `compat`.
        filters: order of the filters after the NUMA group; decides which reason is given.
        is_numa_first: cards are sorted by NUMA node first even without numa-bind.
        slot_term_counts_cards: a request adds its count, not 1, to a card's slot term.
        score_matches_vendor: a request counts only for cards of its vendor.
        is_zero_quota_a_limit: a quota of 0 blocks; else it means no limit.
        quota_collapses: init containers count by their peak in the quota; else all is summed.
        reasons_count_cards: NumaNotFit and AllocatedCardsInsufficientRequest count the cards held
            at that moment; else they count 1.
    """

    name: str
    filters: tuple[FilterName, ...]
    is_numa_first: bool
    slot_term_counts_cards: bool
    score_matches_vendor: bool
    is_zero_quota_a_limit: bool
    quota_collapses: bool
    reasons_count_cards: bool


V2_8: Final = Compat(
    name="2.8",
    filters=(
        _F.UUID, _F.SLOTS, _F.MUTEX, _F.CORES, _F.MEMORY, _F.EXCLUSIVE, _F.NO_CORES_LEFT, _F.QUOTA,
    ),
    is_numa_first=True,
    slot_term_counts_cards=True,
    score_matches_vendor=False,
    is_zero_quota_a_limit=False,
    quota_collapses=False,
    reasons_count_cards=False,
)  # fmt: skip
"""What the specification documents 000 to 004 describe; the default."""

V2_10: Final = Compat(
    name="2.10",
    filters=(
        _F.UUID, _F.SLOTS, _F.MUTEX, _F.QUOTA, _F.MEMORY, _F.CORES, _F.EXCLUSIVE, _F.NO_CORES_LEFT,
    ),
    is_numa_first=False,
    slot_term_counts_cards=False,
    score_matches_vendor=True,
    is_zero_quota_a_limit=True,
    quota_collapses=True,
    reasons_count_cards=True,
)  # fmt: skip
"""What HAMi 2.10 does."""

COMPATS: Final = {compat.name: compat for compat in (V2_8, V2_10)}
"""By the value of the setting."""
