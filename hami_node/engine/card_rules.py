"""The scheduling rules of plain cards, and what a vendor may override.

A plain card is shared by slots; its memory is granted in MiB and its cores in percent, and any
cards of a node may serve together. The engine calls these methods and depends on no vendor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Final

from hami_node.engine.compat import Compat, FilterName
from hami_node.engine.filters import (
    BEFORE_NUMA,
    FILTERS,
    WHOLE_CARD,
    Filter,
    FitContext,
    Reason,
    Rejection,
    first_failing,
    has_cores,
    has_cores_left,
    has_memory,
    has_slot,
    has_uuid,
    is_idle_if_exclusive,
    is_idle_if_mutex,
)
from hami_node.engine.objection import Amounts, Doubt, Objection, objection_to
from hami_node.engine.usage import (
    CardCounting,
    Charge,
    DeviceUsage,
    Taken,
    charge_of,
    charged,
)
from hami_node.model import Ask, Device, Grant, PairScores, Vendor

LIVE_FILTERS: Final = (
    *BEFORE_NUMA,
    has_uuid,
    has_slot,
    is_idle_if_mutex,
    has_memory,
    has_cores,
    is_idle_if_exclusive,
    has_cores_left,
)
"""Everything about one card except the quota, which only the scheduler checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The cards that serve an ask, in the order in which they were taken.

    A divided card may occur several times. `is_exact` is False where there may be better cards,
    which were not looked for any longer.
    """

    taken: tuple[Taken, ...]
    is_exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFilter:
    """A vendor's filter and the common filter that it directly follows; None: it comes last."""

    rule: Filter
    after: FilterName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The least that a node must have for an ask: this many cards, with this much free on each."""

    count: int
    memory_mib: int
    cores: int


class CardRules(CardCounting):
    """One vendor's rules; a vendor's own class overrides what differs.

    Attributes:
        has_quota: a namespace's quota limits memory and cores of these cards.
        chooses_by_links: the policy `topology-aware` chooses among all cards that fit.
        are_reasons_by_card: why a node can't serve is counted card by card; else only by
            placing an ask on the whole node.
        takes_in_order: undivided cards are taken one by one in visit order, by the common filters
            alone, and an init container leaves nothing behind on them.
        own_filters: filters beside the common ones, each with its position.
    """

    has_quota = False
    chooses_by_links = False
    are_reasons_by_card = True
    takes_in_order = False
    own_filters: tuple[OwnFilter, ...] = ()

    # -- choosing ----------------------------------------------------------------------------------
    def is_divided(self, device: Device) -> bool:
        """True for a card whose parts are granted separately: it may serve an ask twice."""
        del device
        return False

    def cards_wanted(self, ask: Ask, devices: Iterable[Device]) -> int:
        """How many of these cards of a node the ask requests."""
        del devices
        return ask.count

    def choose(self, cards: Sequence[DeviceUsage], ctx: FitContext) -> Placement | Rejection | None:
        """Choose for an ask that needs certain cards together; None: it is served card by card.

        `cards` are the node's cards of this vendor, in visit order.
        """
        del cards, ctx
        return None

    def why_never(self, ask: Ask, devices: Sequence[Device]) -> str:
        """Why these cards, all that a node has, can't ever serve the ask, for people; "": they may.

        It adds to the reason of a refusal, so it may leave out what the reason says.
        """
        del ask, devices
        return ""

    def best_linked(
        self,
        groups: Iterable[Sequence[Taken]],
        count: int,
        scores: PairScores,
        *,
        is_bound: bool,
        steps: LinkSteps | None = None,
    ) -> Placement | None:
        """The best linked cards out of those that fit, in NUMA groups; None if too few fit.

        `steps` are shared by all asks of a pod.
        """
        del groups, count, scores, is_bound, steps
        return None

    def with_part_taken(self, card: DeviceUsage, taken: Taken) -> DeviceUsage | None:
        """The card once that part is marked as taken; None for a card without parts."""
        del card, taken
        return None

    def grant(self, card: DeviceUsage, taken: Taken) -> tuple[Grant, DeviceUsage]:
        """The grant for one taken card, and the card afterwards."""
        grant = Grant(
            uuid=taken.device.uuid,
            vendor=self,
            memory_mib=taken.memory_mib,
            cores=taken.cores,
            part=taken.part,
        )
        return grant, charged(card, charge_of(grant))

    def after_init(self, before: DeviceUsage, used: DeviceUsage) -> DeviceUsage:
        """What stays of a card, as it was before, once an init container has used it."""
        del used
        return before

    # -- summing up --------------------------------------------------------------------------------
    def free_memory_mib(self, card: DeviceUsage) -> int:
        """Free memory; all of it where nobody is granted a part, whatever a pod claims to hold."""
        memory_mib = card.device.memory_mib
        return memory_mib if self.cores_are_mask else memory_mib - card.memory_used_mib

    def free_cores(self, card: DeviceUsage) -> int:
        """Free cores as a number; a card without cores takes any container that asks for none."""
        cores = card.device.cores
        if self.cores_are_mask:
            return (cores & ~card.cores_used).bit_count()
        return cores - card.cores_used if cores else 1

    def least(self, ask: Ask, device: Device) -> Least:
        """The minimum that the ask needs on cards of this kind; a lower value is always safe."""
        return Least(
            count=ask.count,
            memory_mib=ask.memory_mib_on(device.memory_mib),
            cores=max(min(ask.cores, WHOLE_CARD), 1),
        )

    # -- checking a reservation --------------------------------------------------------------------
    def beyond_ask(self, card: DeviceUsage, grant: Grant, ask: Ask) -> Objection | None:
        """Where one grant goes beyond the container's own limits.

        A grant of 0 means "no limit" inside the container.
        """
        memory = ask.memory_mib_on(card.device.memory_mib)
        cores = min(ask.cores, WHOLE_CARD)
        doubt: Doubt | None = None
        if memory > 0 and grant.memory_mib == 0:
            doubt = Doubt.MEMORY_WITHOUT_LIMIT
        elif cores > 0 and grant.cores == 0:
            doubt = Doubt.CORES_WITHOUT_LIMIT
        elif grant.memory_mib > memory:
            doubt = Doubt.MEMORY_ABOVE_ASK
        elif grant.cores > cores:
            doubt = Doubt.CORES_ABOVE_ASK
        if doubt is None:
            return None
        if doubt in (Doubt.MEMORY_WITHOUT_LIMIT, Doubt.MEMORY_ABOVE_ASK):
            amounts = Amounts(left=memory, asked=grant.memory_mib, unit="MiB", is_allowance=True)
        else:
            amounts = Amounts(left=cores, asked=grant.cores, unit="percent", is_allowance=True)
        return objection_to(card, doubt, amounts)

    def all_beyond_ask(
        self, devices: Sequence[Device], grants: Sequence[Grant], ask: Ask
    ) -> Objection | None:
        """Where all grants together, each on its device, go beyond the container's limits."""
        del devices, grants, ask
        return None

    def against(
        self, before: DeviceUsage, card: DeviceUsage, grant: Grant, charge: Charge, ctx: FitContext
    ) -> Objection | None:
        """Why a grant is not possible on the card as it is now.

        Args:
            before: the card without this container's other grants.
            card: the card with them.
            grant: what the reservation holds of the card.
            charge: the same as a charge.
            ctx: the container's ask and the pod's wishes.
        """
        del before
        wanted = replace(
            ctx.ask, memory_mib=grant.memory_mib, memory_percent=None, cores=grant.cores
        )
        reason = first_failing(card, replace(ctx, ask=wanted, cores=grant.cores), LIVE_FILTERS)
        if reason is None:
            return contradiction(card, charge)
        return objection_to(card, reason, _amounts(card, grant, reason), why_unhealthy(card))


def contradiction(card: DeviceUsage, charge: Charge) -> Objection | None:
    """An objection where the charge contradicts what the card holds."""
    why = charged(card, charge).contradiction
    return objection_to(card, Doubt.CONTRADICTION, detail=why) if why else None


def why_unhealthy(card: DeviceUsage) -> str:
    """Why a card serves nobody, for people; "" for one that does."""
    return card.device.unhealthy_reason or card.contradiction


def _amounts(card: DeviceUsage, grant: Grant, reason: StrEnum) -> Amounts | None:
    if reason is Reason.TOO_LITTLE_MEMORY:
        return Amounts(left=card.memory_free_mib, asked=grant.memory_mib, unit="MiB")
    if reason in (Reason.TOO_FEW_CORES, Reason.NO_CORES_LEFT):
        return Amounts(left=card.cores_free, asked=grant.cores, unit="percent")
    if reason in (Reason.NO_SLOT, Reason.NOT_EXCLUSIVE):
        return Amounts(left=card.slots_free, asked=1, unit="slots")
    return None


PLAIN_RULES: Final = CardRules("")
"""The rules for cards of an unknown vendor."""


def rules_of(vendor: Vendor | str) -> CardRules:
    """The vendor's rules."""
    return vendor if isinstance(vendor, CardRules) else PLAIN_RULES


def is_overcommitted(card: DeviceUsage) -> bool:
    """True where more is granted of a card than it has.

    The parts of a divided card are counted one by one; the sums of their rounded amounts may
    exceed the card's.
    """
    rules = rules_of(card.device.vendor)
    if card.slots_free < 0 or rules.is_divided(card.device):
        return card.slots_free < 0
    return card.memory_free_mib < 0 or (not rules.cores_are_mask and card.cores_free < 0)


@cache
def filters_after_numa(vendor: Vendor, compat: Compat) -> tuple[Filter, ...]:
    """The filters after the NUMA group in the generation's order, the vendor's own among them."""
    own = rules_of(vendor).own_filters
    found: list[Filter] = []
    for name in compat.filters:
        found += [FILTERS[name], *(added.rule for added in own if added.after is name)]
    return (*found, *(added.rule for added in own if added.after is None))


MOST_STEPS: Final = 32_000
"""Cards that the searches for one pod on one node may weigh against each other: 10 to 20 ms. No
known machine takes a third of that, and neither do 16 cards with random links."""


@dataclass(slots=True)
class LinkSteps:
    """What is left for a pod on a node; `is_exact` until something was left out because of that."""

    left: int = MOST_STEPS
    is_exact: bool = True

    def take(self, cards: int) -> bool:
        """Weigh so many cards; False when no step is left."""
        if self.left <= 0:
            self.is_exact = False
            return False
        self.left -= cards
        return True
