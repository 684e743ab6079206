"""The last check before a container gets its cards: is the reservation its own, and possible?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

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
    is_idle_if_exclusive,
    is_idle_if_mutex,
)
from hami_node.engine.usage import (
    Charge,
    DeviceUsage,
    PodGrants,
    charged,
    collapse,
    split_mig_uuid,
)
from hami_node.model import Ask, Grant, Mode, PodWishes, Uuid, Vendor


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
"""Everything about one card but the quota, which is the scheduler's, and MIG, checked apart."""


def check_reservation(
    cards: Mapping[Uuid, DeviceUsage],
    grants: tuple[Grant, ...],
    ask: Ask,
    wishes: PodWishes,
    compat: Compat,
    *,
    own: PodGrants | None = None,
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
    for grant in grants:
        uuid, _ = split_mig_uuid(grant.uuid)
        card = live[uuid]
        objection = _possible(card, grant, ctx)
        if objection is not None:
            return objection
        after = charged(card, _charge_of(grant))
        if after.contradiction:
            return _object(Doubt.CONTRADICTION, after, detail=after.contradiction)
        live[uuid] = after
    return None


def is_covered(
    cards: Mapping[Uuid, DeviceUsage], grants: tuple[Grant, ...], ask: Ask
) -> Objection | None:
    """Say where the reservation goes beyond the container's own limits, or None."""
    if len(grants) != ask.count:
        return Objection(
            reason=Doubt.COUNT_DIFFERS, free=ask.count, asked=len(grants), unit="cards"
        )
    seen: set[Uuid] = set()
    for grant in grants:
        uuid, _ = split_mig_uuid(grant.uuid)
        card = cards.get(uuid)
        if card is None:
            return Objection(reason=Doubt.UNKNOWN_CARD, uuid=uuid)
        if uuid in seen and card.device.mode != Mode.MIG:
            return _object(Doubt.CARD_TWICE, card)
        seen.add(uuid)
        objection = _covered(card, grant, ask)
        if objection is not None:
            return objection
    return None


def _covered(card: DeviceUsage, grant: Grant, ask: Ask) -> Objection | None:
    if grant.vendor is not ask.vendor or card.device.vendor is not ask.vendor:
        return _object(Doubt.VENDOR_DIFFERS, card)
    if grant.memory_mib < 0 or grant.cores < 0:
        return _object(Doubt.NEGATIVE, card)
    if ask.vendor is Vendor.AWS_NEURON:
        return _at_most(Doubt.CORES_ABOVE_ASK, card, ask.cores, grant.cores.bit_count(), "cores")
    if card.device.mode == Mode.MIG:
        return _instance_covered(card, grant, ask)
    memory = ask.memory_mib_on(card.device.memory_mib)
    cores = min(ask.cores, WHOLE_CARD)
    # A grant of 0 means "no limit" inside the container.
    if memory > 0 and grant.memory_mib == 0:
        return _object(Doubt.MEMORY_WITHOUT_LIMIT, card, memory, 0, "MiB")
    if cores > 0 and grant.cores == 0:
        return _object(Doubt.CORES_WITHOUT_LIMIT, card, cores, 0, "percent")
    return _at_most(Doubt.MEMORY_ABOVE_ASK, card, memory, grant.memory_mib, "MiB") or _at_most(
        Doubt.CORES_ABOVE_ASK, card, cores, grant.cores, "percent"
    )


def _instance_covered(card: DeviceUsage, grant: Grant, ask: Ask) -> Objection | None:
    """An instance is larger than the ask; it must be of a size that the card offers."""
    device = card.device
    sizes = {profile.memory_mib for profile in device.mig_profiles}
    sizes.update(entry.memory_mib for geometry in device.mig_templates for entry in geometry)
    if grant.memory_mib in sizes:
        return None
    memory = ask.memory_mib_on(device.memory_mib)
    return _object(Doubt.MEMORY_ABOVE_ASK, card, memory, grant.memory_mib, "MiB")


def _at_most(
    doubt: Doubt, card: DeviceUsage, limit: int, asked: int, unit: str
) -> Objection | None:
    return _object(doubt, card, limit, asked, unit) if asked > limit else None


def _possible(card: DeviceUsage, grant: Grant, ctx: FitContext) -> Objection | None:
    """The first filter that refuses the grant's own amounts on the card as it is now."""
    if ctx.ask.vendor is Vendor.AWS_NEURON:
        return _possible_neuron(card, grant, ctx)
    wanted = replace(ctx.ask, memory_mib=grant.memory_mib, memory_percent=None, cores=grant.cores)
    now = replace(ctx, ask=wanted, cores=grant.cores)
    reason = first_failing(card, now, LIVE_FILTERS)
    if reason is None:
        return None
    free, asked, unit = _numbers(card, grant, reason)
    return _object(reason, card, free, asked, unit, card.device.unhealthy_reason)


def _possible_neuron(card: DeviceUsage, grant: Grant, ctx: FitContext) -> Objection | None:
    reason = first_failing(card, ctx, (*BEFORE_NUMA, has_uuid, is_idle_if_mutex))
    if reason is not None:
        return _object(reason, card, detail=card.device.unhealthy_reason)
    if grant.cores & ~card.cores_free:
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


def _charge_of(grant: Grant) -> Charge:
    uuid, instance = split_mig_uuid(grant.uuid)
    return Charge(
        uuid=uuid,
        vendor=grant.vendor,
        slots=1,
        memory_mib=grant.memory_mib,
        cores=grant.cores,
        mig_slots=frozenset() if instance is None else frozenset({instance}),
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
