"""The scheduling rules of NVIDIA cards beyond those of plain cards: links, MIG, quota."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from hami_node.engine.card_rules import (
    CardRules,
    LinkSteps,
    OwnFilter,
    Placement,
    contradiction,
    why_unhealthy,
)
from hami_node.engine.compat import V2_8
from hami_node.engine.filters import (
    BEFORE_NUMA,
    FitContext,
    first_failing,
    has_slot,
    has_uuid,
    is_idle_if_mutex,
    takes_of,
)
from hami_node.engine.objection import Amounts, Objection, objection_to
from hami_node.engine.usage import Charge, DeviceUsage, Taken
from hami_node.model import Ask, Device, Grant, PairScores, Uuid
from hami_node.vendors.nvidia import link_groups
from hami_node.vendors.nvidia.mig.choice import (
    before_choice,
    choices,
    use_of,
    with_choice,
    with_instances,
)
from hami_node.vendors.nvidia.mig.layout import (
    is_instance,
)
from hami_node.vendors.nvidia.mode import Mode

MOST_LINKED: Final = 64
"""Cards that are chosen among by their links; of more, the first are taken: the links alone of 256
are 32,000, and no machine has a quarter of that."""


class MigReason(StrEnum):
    """Why a card in MIG mode can't serve; the texts are HAMi's. Source: common/common.go:25-44.

    `NO_TEMPLATE` is the word of the generation 2.8, `NO_PLACEMENT` that of 2.10.
    """

    NO_PLACEMENT = "CardMigTopologyInfeasible"
    NO_TEMPLATE = "CardNotFoundCustomFilterRule"


class MigDoubt(StrEnum):
    """Why a reservation on a card in MIG mode is refused."""

    NO_INSTANCE = "no-such-mig-instance"


INSTANCE_FILTERS: Final = (*BEFORE_NUMA, has_uuid, has_slot, is_idle_if_mutex)
"""For a MIG instance: it has its own memory and cores, and no two instances may overlap."""


def has_mig_instance(card: DeviceUsage, ctx: FitContext) -> MigReason | None:
    """Reject a card in MIG mode that can't hold an instance of the requested size."""
    if card.device.mode != Mode.MIG:
        return None
    if any(takes_of(card, ctx.ask)):
        return None
    return MigReason.NO_TEMPLATE if ctx.compat is V2_8 else MigReason.NO_PLACEMENT


class NvidiaCards(CardRules):
    """Rules for cards that are linked with each other, and are divided when in MIG mode."""

    has_quota = True
    chooses_by_links = True
    takes_in_order = True
    own_filters = (OwnFilter(rule=has_mig_instance),)

    # -- counting ----------------------------------------------------------------------------------
    def with_parts(self, card: DeviceUsage, charge: Charge) -> DeviceUsage:
        """Record MIG instances, and what is wrong with them."""
        is_mig = card.device.mode == Mode.MIG
        if not is_mig and not charge.parts:
            return card
        return with_instances(card, charge, is_mig=is_mig)

    def takes(self, card: DeviceUsage, memory_mib: int, cores: int) -> Iterable[Taken]:
        """In MIG mode the instances that hold it."""
        is_divided = self.is_divided(card.device)
        return choices(card, memory_mib) if is_divided else super().takes(card, memory_mib, cores)

    # -- choosing ----------------------------------------------------------------------------------
    def is_divided(self, device: Device) -> bool:
        """True in MIG mode."""
        return device.mode == Mode.MIG

    def with_part_taken(self, card: DeviceUsage, taken: Taken) -> DeviceUsage | None:
        """The card with another instance marked as taken; its sums stay as they are."""
        if taken.part is None:
            return None
        if (more := with_choice(card, taken)) is not None:
            return more
        _, used = self.grant(card, taken)
        return replace(card, parts=used.parts, contradiction=used.contradiction)

    def best_linked(
        self,
        groups: Iterable[Sequence[Taken]],
        count: int,
        scores: PairScores,
        *,
        is_bound: bool,
        steps: LinkSteps | None = None,
    ) -> Placement | None:
        """The best linked cards, all of one NUMA group where bound; one card: the worst linked."""
        if count == 1 or not is_bound:
            groups = [[taken for group in groups for taken in group]]
        best: tuple[Taken, ...] | None = None
        best_sum, steps = 0, LinkSteps() if steps is None else steps
        for group in groups:
            if len(group) < count:
                continue
            chosen = _of_group(group, count, scores, steps)
            links = _link_sum([taken.device.uuid for taken in chosen], scores)
            if best is None or links > best_sum:
                best, best_sum = chosen, links
        return None if best is None else Placement(taken=best, is_exact=steps.is_exact)

    def grant(self, card: DeviceUsage, taken: Taken) -> tuple[Grant, DeviceUsage]:
        """A slice of the card, or in MIG mode an instance."""
        return super().grant(before_choice(card, taken), taken)

    def after_init(self, before: DeviceUsage, used: DeviceUsage) -> DeviceUsage:
        """Later containers may not choose another geometry than an init container's (2.8)."""
        parts = use_of(used)
        if not parts.slots:
            return before
        kept = replace(use_of(before), template=parts.template, slots=parts.slots)
        return replace(before, parts=kept)

    # -- checking ----------------------------------------------------------------------------------
    def beyond_ask(self, card: DeviceUsage, grant: Grant, ask: Ask) -> Objection | None:
        """An instance may exceed the ask; everything else is as on plain cards."""
        return None if self.is_divided(card.device) else super().beyond_ask(card, grant, ask)

    def against(
        self, before: DeviceUsage, card: DeviceUsage, grant: Grant, charge: Charge, ctx: FitContext
    ) -> Objection | None:
        """An instance has to be offered by the card and not be in use."""
        if not self.is_divided(card.device):
            return super().against(before, card, grant, charge, ctx)
        reason = first_failing(before, ctx, INSTANCE_FILTERS)
        if reason is not None:
            return objection_to(card, reason, detail=why_unhealthy(before))
        objection = contradiction(card, charge)
        if objection is not None:
            return objection
        memory = ctx.ask.memory_mib_on(card.device.memory_mib)
        is_offered = is_instance(card.device, charge.memory_mib, grant.part)
        if is_offered and grant.memory_mib >= memory:
            return None
        amounts = Amounts(left=memory, asked=grant.memory_mib, unit="MiB", is_allowance=True)
        return objection_to(card, MigDoubt.NO_INSTANCE, amounts)


def _of_group(
    group: Sequence[Taken], count: int, scores: PairScores, steps: LinkSteps
) -> tuple[Taken, ...]:
    if len(group) == count:
        return tuple(group)
    if len(group) > MOST_LINKED:
        steps.is_exact = False
        return tuple(group[:count])
    uuids = [taken.device.uuid for taken in group]
    if count == 1:
        return (group[link_groups.worst_single(uuids, scores)],)
    return tuple(group[i] for i in link_groups.best_set(uuids, count, scores, steps))


def _link_sum(uuids: Sequence[Uuid], scores: PairScores) -> int:
    return sum(
        link_groups.link_score(uuid, other, scores)
        for i, uuid in enumerate(uuids)
        for other in uuids[i + 1 :]
    )


NVIDIA: Final = NvidiaCards("NVIDIA")
"""The vendor of every NVIDIA card."""
