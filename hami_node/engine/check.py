"""The last check before a container gets its cards: is the reservation its own, and possible?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hami_node.engine import mig, neuron
from hami_node.engine.compat import Compat
from hami_node.engine.filters import (
    BEFORE_NUMA,
    WHOLE_CARD,
    FitContext,
    Reason,
    context,
    first_failing,
    has_cores,
    has_cores_left,
    has_memory,
    has_slot,
    has_uuid,
    is_healthy,
    is_idle_if_exclusive,
    is_idle_if_mutex,
    is_not_cordoned,
)
from hami_node.engine.usage import (
    Charge,
    DeviceUsage,
    PodGrants,
    charged,
    collapse,
    split_mig_uuid,
)
from hami_node.model import (
    Ask,
    Grant,
    MigPlacement,
    MigReservation,
    Mode,
    PodWishes,
    Uuid,
    Vendor,
)


class Doubt(StrEnum):
    """Why a reservation is not what the container asks for. Words for logs and metrics."""

    COUNT_DIFFERS = "count-differs"
    VENDOR_DIFFERS = "vendor-differs"
    UNKNOWN_CARD = "unknown-card"
    CARD_TWICE = "card-granted-twice"
    MEMORY_ABOVE_ASK = "memory-above-ask"
    MEMORY_WITHOUT_LIMIT = "memory-without-limit"
    CORES_ABOVE_ASK = "cores-above-ask"
    CORES_WITHOUT_LIMIT = "cores-without-limit"
    NEGATIVE = "negative-amount"
    CONTRADICTION = "contradicts-other-grants"
    CORES_TAKEN = "neuron-cores-taken"
    NO_INSTANCE = "no-such-mig-instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why the reservation is refused.

    Attributes:
        reason: a filter's reason, or a doubt about the reservation itself.
        uuid: the card it is about; None for the reservation as a whole.
        index: that card's index; None where the node has no such card.
        free: what is left of it, in `unit`; None where nothing is counted.
        asked: what the reservation holds, in `unit`.
        unit: `cards`, `slots`, `MiB`, `percent`, `mask`, or "" where nothing is counted.
        detail: more for people; "" without.
    """

    reason: Reason | Doubt
    uuid: Uuid | None = None
    index: int | None = None
    free: int | None = None
    asked: int | None = None
    unit: str = ""
    detail: str = ""


LIVE_FILTERS = (
    *BEFORE_NUMA,
    has_uuid,
    has_slot,
    is_idle_if_mutex,
    has_memory,
    has_cores,
    is_idle_if_exclusive,
    has_cores_left,
)
"""Everything about one card but the quota, which is the scheduler's."""

INSTANCE_FILTERS = (*BEFORE_NUMA, has_uuid, has_slot, is_idle_if_mutex)
"""For a MIG instance: its memory and cores are its own, and no two instances may overlap."""

NEURON_FILTERS = (is_healthy, is_not_cordoned, has_uuid, is_idle_if_mutex)
"""For a Neuron device; NVIDIA's type wishes don't concern it."""


def check_reservation(
    cards: Mapping[Uuid, DeviceUsage],
    grants: tuple[Grant, ...],
    ask: Ask,
    wishes: PodWishes,
    compat: Compat,
    *,
    own: PodGrants | None = None,
    reserved: Sequence[MigReservation] = (),
) -> Objection | None:
    """Say why these grants must not be served, or None when they may.

    Args:
        cards: the node's cards with what other pods hold, this pod left out.
        grants: what the scheduler reserved for this container, of one vendor.
        ask: what the container's own limits ask for: the most it may get.
        wishes: the pod's wishes.
        compat: the generation in force.
        own: what containers of this pod were served before. Init containers do not count: they
            have ended when this one starts.
        reserved: the MIG instances (2.10) of this container's grants, by their `device_index`.

    The grants are charged one after another: together they must fit.
    """
    objection = is_covered(cards, grants, ask)
    if objection is not None:
        return objection
    ctx = context(ask, wishes, compat, policy=wishes.gpu_policy or "")
    live = dict(cards)
    for charge in collapse(replace(own, are_inits_over=True)) if own is not None else ():
        if charge.uuid in live:
            live[charge.uuid] = charged(live[charge.uuid], charge)
    placements = {one.device_index: one.placement for one in reserved}
    charges = [_charge_of(grant, placements.get(place)) for place, grant in enumerate(grants)]
    return _all_possible(live, grants, charges, ctx)


def _all_possible(
    before: Mapping[Uuid, DeviceUsage],
    grants: tuple[Grant, ...],
    charges: Sequence[Charge],
    ctx: FitContext,
) -> Objection | None:
    live = dict(before)
    for grant, charge in zip(grants, charges, strict=True):
        card = live[charge.uuid]
        if card.device.mode == Mode.MIG:
            objection = _possible_instance(before[charge.uuid], card, grant, charge, ctx)
        else:
            objection = _possible(card, grant, charge, ctx)
        if objection is not None:
            return objection
        live[charge.uuid] = charged(card, charge)
    return None


def is_covered(
    cards: Mapping[Uuid, DeviceUsage], grants: tuple[Grant, ...], ask: Ask
) -> Objection | None:
    """Say where the reservation goes beyond the container's own limits, or None."""
    held = [(cards.get(uuid), uuid) for uuid in (split_mig_uuid(one.uuid)[0] for one in grants)]
    wanted = ask.count
    if ask.vendor is Vendor.AWS_NEURON:
        sizes = [card.device.cores.bit_count() for card, _ in held if card is not None]
        wanted, _ = neuron.wanted(ask, min(sizes, default=0))
    if len(grants) != wanted:
        return Objection(reason=Doubt.COUNT_DIFFERS, free=wanted, asked=len(grants), unit="cards")
    seen: set[Uuid] = set()
    for grant, (card, uuid) in zip(grants, held, strict=True):
        if card is None:
            return Objection(reason=Doubt.UNKNOWN_CARD, uuid=uuid)
        if uuid in seen and card.device.mode != Mode.MIG:
            return _object(Doubt.CARD_TWICE, card)
        seen.add(uuid)
        objection = _covered(card, grant, ask)
        if objection is not None:
            return objection
    return _cores_covered(cards, grants, ask) if ask.vendor is Vendor.AWS_NEURON else None


def _covered(card: DeviceUsage, grant: Grant, ask: Ask) -> Objection | None:
    if grant.vendor != ask.vendor or card.device.vendor is not ask.vendor:
        return _object(Doubt.VENDOR_DIFFERS, card)
    if grant.memory_mib < 0 or grant.cores < 0:
        return _object(Doubt.NEGATIVE, card)
    if ask.vendor is Vendor.AWS_NEURON or card.device.mode == Mode.MIG:
        return None
    memory = ask.memory_mib_on(card.device.memory_mib)
    cores = min(ask.cores, WHOLE_CARD)
    # A grant of 0 means "no limit" inside the container.
    if memory > 0 and grant.memory_mib == 0:
        return _object(Doubt.MEMORY_WITHOUT_LIMIT, card, memory, 0, "MiB")
    if cores > 0 and grant.cores == 0:
        return _object(Doubt.CORES_WITHOUT_LIMIT, card, cores, 0, "percent")
    if grant.memory_mib > memory:
        return _object(Doubt.MEMORY_ABOVE_ASK, card, memory, grant.memory_mib, "MiB")
    if grant.cores > cores:
        return _object(Doubt.CORES_ABOVE_ASK, card, cores, grant.cores, "percent")
    return None


def _cores_covered(
    cards: Mapping[Uuid, DeviceUsage], grants: tuple[Grant, ...], ask: Ask
) -> Objection | None:
    """Neuron cores are asked for over all devices; whole devices bring all of theirs."""
    least = min((cards[one.uuid].device.cores.bit_count() for one in grants), default=0)
    _, cores = neuron.wanted(ask, least)
    given = sum(one.cores.bit_count() for one in grants)
    if cores is None or given <= cores:
        return None
    return Objection(reason=Doubt.CORES_ABOVE_ASK, free=cores, asked=given, unit="cores")


def _possible(card: DeviceUsage, grant: Grant, charge: Charge, ctx: FitContext) -> Objection | None:
    """What stands against the grant's own amounts on the card as it is now."""
    why = card.device.unhealthy_reason
    if ctx.ask.vendor is Vendor.AWS_NEURON:
        return _possible_neuron(card, grant, ctx)
    wanted = replace(ctx.ask, memory_mib=grant.memory_mib, memory_percent=None, cores=grant.cores)
    reason = first_failing(card, replace(ctx, ask=wanted, cores=grant.cores), LIVE_FILTERS)
    if reason is None:
        return _contradiction(card, charge)
    free, asked, unit = _numbers(card, grant, reason)
    return _object(reason, card, free, asked, unit, why)


def _possible_instance(
    before: DeviceUsage, card: DeviceUsage, grant: Grant, charge: Charge, ctx: FitContext
) -> Objection | None:
    """What stands against an instance; `before` is the card without this container's others."""
    reason = first_failing(before, ctx, INSTANCE_FILTERS)
    if reason is not None:
        return _object(reason, card, detail=card.device.unhealthy_reason)
    objection = _contradiction(card, charge)
    if objection is not None:
        return objection
    memory = ctx.ask.memory_mib_on(card.device.memory_mib)
    if not mig.is_instance(card.device, charge) or grant.memory_mib < memory:
        return _object(Doubt.NO_INSTANCE, card, memory, grant.memory_mib, "MiB")
    return None


def _contradiction(card: DeviceUsage, charge: Charge) -> Objection | None:
    why = charged(card, charge).contradiction
    return _object(Doubt.CONTRADICTION, card, detail=why) if why else None


def _possible_neuron(card: DeviceUsage, grant: Grant, ctx: FitContext) -> Objection | None:
    reason = first_failing(card, ctx, NEURON_FILTERS)
    if reason is not None:
        return _object(reason, card, detail=card.device.unhealthy_reason)
    if grant.cores & ~card.cores_free or not grant.cores:
        return _object(Doubt.CORES_TAKEN, card, card.cores_free, grant.cores, "mask")
    return None


def _numbers(card: DeviceUsage, grant: Grant, reason: Reason) -> tuple[int | None, int | None, str]:
    if reason is Reason.TOO_LITTLE_MEMORY:
        return card.memory_free_mib, grant.memory_mib, "MiB"
    if reason in (Reason.TOO_FEW_CORES, Reason.NO_CORES_LEFT):
        return card.cores_free, grant.cores, "percent"
    if reason in (Reason.NO_SLOT, Reason.NOT_EXCLUSIVE):
        return card.slots_free, 1, "slots"
    return None, None, ""


def _charge_of(grant: Grant, placement: MigPlacement | None) -> Charge:
    uuid, instance = split_mig_uuid(grant.uuid)
    return Charge(
        uuid=uuid,
        vendor=grant.vendor,
        slots=1,
        memory_mib=grant.memory_mib,
        cores=grant.cores,
        mig_slots=frozenset() if instance is None else frozenset({instance}),
        mig_placements=() if placement is None else (placement,),
    )


def _object(
    reason: Reason | Doubt,
    card: DeviceUsage,
    free: int | None = None,
    asked: int | None = None,
    unit: str = "",
    detail: str = "",
) -> Objection:
    return Objection(
        reason=reason,
        uuid=card.device.uuid,
        index=card.device.index,
        free=free,
        asked=asked,
        unit=unit,
        detail=detail,
    )
