"""Why a card can't serve an ask: one function, one rule, one reason. Their order: compat.py.

A vendor's own filters are in its folder, with their position here (`card_rules.OwnFilter`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hami_node.engine.compat import FILTERS_BEFORE_NUMA, Compat, FilterName
from hami_node.engine.quota import QuotaTally
from hami_node.engine.ranking import has_word
from hami_node.engine.usage import DeviceUsage, Taken, counting_of
from hami_node.model import Ask, CardWishes, Device, Uuid

WHOLE_CARD: Final = 100
"""Percent of cores that mean the whole card, unshared."""


class Reason(StrEnum):
    """Why a card or a node can't serve; the texts are HAMi's. Vendors have reasons of their own.

    `TOO_LITTLE_ROOM` is ours: that the node's cards can't take the whole pod is certain, and which
    card lacks what was not looked at. Source: common/common.go:25-44.
    """

    NOT_HEALTHY = "CardNotHealth"
    CORDONED = "CardCordoned"
    TYPE_MISMATCH = "CardTypeMismatch"
    UUID_MISMATCH = "CardUuidMismatch"
    NO_SLOT = "CardTimeSlicingExhausted"
    NOT_EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
    OVER_QUOTA = "ResourceQuotaNotFit"
    TOO_LITTLE_MEMORY = "CardInsufficientMemory"
    TOO_FEW_CORES = "CardInsufficientCore"
    NO_CORES_LEFT = "CardComputeUnitsExhausted"
    OTHER_NUMA = "NumaNotFit"
    TOO_FEW_CARDS_FIT = "AllocatedCardsInsufficientRequest"
    TOO_FEW_CARDS = "NodeInsufficientDevice"
    NOT_REGISTERED = "node unregistered"
    TOO_LITTLE_ROOM = "NodeInsufficientRoom"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitContext:
    """What a filter needs besides the card.

    Attributes:
        wishes: the pod's, for cards of the ask's vendor.
        cordoned: the node's cards that are cordoned.
        quota: room left in the namespace; None without a quota.
        is_mutex: the pod requests unused cards.
        cores: percent of a card that is asked for, at most 100.
    """

    ask: Ask
    wishes: CardWishes
    compat: Compat
    cordoned: frozenset[Uuid] = frozenset()
    quota: QuotaTally | None = None
    is_mutex: bool = False
    cores: int = 0


def context(
    ask: Ask,
    wishes: CardWishes,
    compat: Compat,
    *,
    policy: str = "",
    cordoned: frozenset[Uuid] = frozenset(),
    quota: QuotaTally | None = None,
) -> FitContext:
    """Make the context of one ask; `policy` is the card policy in force."""
    return FitContext(
        ask=ask,
        wishes=wishes,
        compat=compat,
        cordoned=cordoned,
        quota=quota,
        is_mutex=has_word(policy, "mutex"),
        cores=min(ask.cores, WHOLE_CARD),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why one node can't serve: how many of its `total` cards failed for each reason.

    `whole` is set where the node fails as a whole; then nothing is counted. `never` says why a node
    of this kind can't serve the ask whatever other pods do, for people; "" where it may.
    """

    counts: Mapping[StrEnum, int] = field(default_factory=lambda: MappingProxyType({}))
    total: int = 0
    whole: StrEnum | None = None
    never: str = ""

    def text(self) -> str:
        """As HAMi writes it: `1/8 CardTypeMismatch, 3/8 CardInsufficientMemory`."""
        if self.whole is not None:
            return self.whole.value
        texts = [f"{count}/{self.total} {reason}" for reason, count in self.counts.items()]
        return ", ".join(sorted(texts))

    @classmethod
    def of(cls, counts: Counter[StrEnum], total: int, never: str = "") -> Rejection:
        """Freeze a count."""
        return cls(counts=MappingProxyType(dict(counts)), total=total, never=never)


Filter = Callable[[DeviceUsage, FitContext], StrEnum | None]
"""Why the card can't serve the ask, as a `Reason` or one of its vendor's; None when it can."""


def is_healthy(card: DeviceUsage, _: FitContext) -> Reason | None:
    """Reject an unhealthy card, and a card whose grants contradict it."""
    return None if card.device.healthy and not card.contradiction else Reason.NOT_HEALTHY


def is_not_cordoned(card: DeviceUsage, ctx: FitContext) -> Reason | None:
    """Reject a cordoned card."""
    return Reason.CORDONED if card.device.uuid in ctx.cordoned else None


def has_type(card: DeviceUsage, ctx: FitContext) -> Reason | None:
    """Reject a card of another vendor, sharing mode or model than requested."""
    device, wishes = card.device, ctx.wishes
    if device.vendor is not ctx.ask.vendor:
        return Reason.TYPE_MISMATCH
    if wishes.modes is not None and device.mode and device.mode not in wishes.modes:
        return Reason.TYPE_MISMATCH
    if not wishes.use_types and not wishes.nouse_types:
        return None
    model = device.model.lower()
    if wishes.use_types and not any(word in model for word in wishes.use_types):
        return Reason.TYPE_MISMATCH
    if any(word in model for word in wishes.nouse_types):
        return Reason.TYPE_MISMATCH
    return None


def has_uuid(card: DeviceUsage, ctx: FitContext) -> Reason | None:
    """Reject a card that the pod's UUID lists exclude."""
    return None if ctx.wishes.uuids.admits(card.device.uuid) else Reason.UUID_MISMATCH


def has_slot(card: DeviceUsage, _: FitContext) -> Reason | None:
    """Reject a card that is already shared by as many containers as allowed."""
    return Reason.NO_SLOT if card.slots_used >= card.device.slots else None


def is_idle_if_mutex(card: DeviceUsage, ctx: FitContext) -> Reason | None:
    """Reject a used card under the policy word `mutex`."""
    return Reason.NOT_EXCLUSIVE if ctx.is_mutex and card.slots_used > 0 else None


def is_within_quota(card: DeviceUsage, ctx: FitContext) -> Reason | None:
    """Reject a card of which everything that it can give would exceed the namespace's quota.

    Source: HAMi nvidia/device.go:666, which compares what is asked.
    """
    if ctx.quota is None or taken_of(card, ctx) is not None:
        return None
    return Reason.OVER_QUOTA if any(takes_of(card, ctx.ask)) else None


def takes_of(card: DeviceUsage, ask: Ask) -> Iterable[Taken]:
    """What the ask may take of the card now, as it will count; by preference."""
    memory_mib = ask.memory_mib_on(card.device.memory_mib)
    return counting_of(card.device.vendor).takes(card, memory_mib, min(ask.cores, WHOLE_CARD))


def taken_of(card: DeviceUsage, ctx: FitContext) -> Taken | None:
    """What the ask takes of the card: the first that the quota admits; None for nothing."""
    takes, quota = takes_of(card, ctx.ask), ctx.quota
    return next((taken for taken in takes if quota is None or quota.admits(taken)), None)


def has_memory(card: DeviceUsage, ctx: FitContext) -> Reason | None:
    """Reject when free memory is below the ask, in MiB. Source: HAMi nvidia/device.go:789."""
    wanted = ctx.ask.memory_mib_on(card.device.memory_mib)
    return Reason.TOO_LITTLE_MEMORY if card.memory_free_mib < wanted else None


def has_cores(card: DeviceUsage, ctx: FitContext) -> Reason | None:
    """Reject when free cores are below the ask, in percent."""
    return Reason.TOO_FEW_CORES if card.device.cores - card.cores_used < ctx.cores else None


def is_idle_if_exclusive(card: DeviceUsage, ctx: FitContext) -> Reason | None:
    """Reject a used card for a whole-card ask; with scaled cores no ask means a whole card.

    Source: HAMi nvidia/device.go:800.
    """
    is_asked = needs_idle_card(card.device, ctx)
    return Reason.NOT_EXCLUSIVE if is_asked and card.slots_used > 0 else None


def needs_idle_card(device: Device, ctx: FitContext) -> bool:
    """Whether the ask takes a card of this kind as a whole: all of its 100 cores are asked for."""
    return ctx.cores == WHOLE_CARD == device.cores


def has_cores_left(card: DeviceUsage, ctx: FitContext) -> Reason | None:
    """Reject a container without a core limit on a card whose cores are all taken."""
    total = card.device.cores
    is_full = total != 0 and card.cores_used >= total
    return Reason.NO_CORES_LEFT if is_full and ctx.cores == 0 else None


FILTERS: Final[Mapping[FilterName, Filter]] = MappingProxyType(
    {
        FilterName.HEALTH: is_healthy,
        FilterName.CORDON: is_not_cordoned,
        FilterName.TYPE: has_type,
        FilterName.UUID: has_uuid,
        FilterName.SLOTS: has_slot,
        FilterName.MUTEX: is_idle_if_mutex,
        FilterName.QUOTA: is_within_quota,
        FilterName.MEMORY: has_memory,
        FilterName.CORES: has_cores,
        FilterName.EXCLUSIVE: is_idle_if_exclusive,
        FilterName.NO_CORES_LEFT: has_cores_left,
    }
)

BEFORE_NUMA: Final = tuple(FILTERS[name] for name in FILTERS_BEFORE_NUMA)


def first_failing(
    card: DeviceUsage, ctx: FitContext, filters: tuple[Filter, ...]
) -> StrEnum | None:
    """The reason of the first filter that rejects the card, or None."""
    for rule in filters:
        reason = rule(card, ctx)
        if reason is not None:
            return reason
    return None
