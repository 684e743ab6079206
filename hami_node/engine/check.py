"""The last check before a container gets its cards: is the reservation its own, and possible?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hami_node.engine.card_rules import contradiction, rules_of
from hami_node.engine.compat import Compat
from hami_node.engine.filters import FitContext, context
from hami_node.engine.objection import Amounts, Doubt, Objection, objection_to
from hami_node.engine.usage import DeviceUsage, PodGrants, charge_of, charged, collapse
from hami_node.model import Ask, Grant, PodWishes, Uuid

NO_WISHES: Final = PodWishes()


def check_reservation(
    cards: Mapping[Uuid, DeviceUsage],
    grants: tuple[Grant, ...],
    ask: Ask,
    wishes: PodWishes,
    compat: Compat,
    *,
    own: PodGrants | None = None,
) -> Objection | None:
    """Return why these grants must not be served, or None if they may be.

    Args:
        cards: the node's cards with what other pods hold, this pod left out.
        grants: what the scheduler reserved for this container, of one vendor.
        ask: what the container's own limits ask for: the most it may get.
        wishes: the pod's wishes.
        compat: the generation in force.
        own: what was served to containers of this pod before. Init containers do not count: they
            have ended when this one starts.

    The grants are charged one after another: together they must fit.
    """
    objection = is_covered(cards, grants, ask)
    if objection is not None:
        return objection
    return _fits(cards, grants, ask, wishes, compat, own=own)


def check_fixed(
    cards: Mapping[Uuid, DeviceUsage],
    grants: tuple[Grant, ...],
    ask: Ask,
    compat: Compat,
    *,
    own: PodGrants,
) -> Objection | None:
    """As `check_reservation`, for fixed shares: they are what the container asks for.

    Nobody chose the cards by the pod's wishes, and kubelet counts the shares, so slots don't.
    """
    return _fits(cards, grants, ask, NO_WISHES, compat, own=own, counts_slots=False)


def is_free(card: DeviceUsage, grant: Grant) -> bool:
    """True where nobody holds the part of the card that the grant names."""
    return contradiction(card, charge_of(grant)) is None


def _fits(
    cards: Mapping[Uuid, DeviceUsage],
    grants: tuple[Grant, ...],
    ask: Ask,
    wishes: PodWishes,
    compat: Compat,
    *,
    own: PodGrants | None,
    counts_slots: bool = True,
) -> Objection | None:
    """Where the grants, charged one after another, do not fit beside what else is held."""
    ctx = context(ask, wishes.of(ask.vendor), compat, policy=wishes.gpu_policy or "")
    live = dict(cards)
    for charge in collapse(replace(own, are_inits_over=True)) if own is not None else ():
        if charge.uuid in live:
            live[charge.uuid] = charged(live[charge.uuid], charge)
    if not counts_slots:
        live = {uuid: _with_a_slot(card) for uuid, card in live.items()}
    return _all_possible(live, grants, ctx)


def _with_a_slot(card: DeviceUsage) -> DeviceUsage:
    slots = max(card.device.slots, card.slots_used + 1)
    return replace(card, device=replace(card.device, slots=slots))


def _all_possible(
    before: Mapping[Uuid, DeviceUsage], grants: tuple[Grant, ...], ctx: FitContext
) -> Objection | None:
    live, rules = dict(before), rules_of(ctx.ask.vendor)
    for grant in grants:
        charge = charge_of(grant)
        card = live[charge.uuid]
        objection = rules.against(before[charge.uuid], card, grant, charge, ctx)
        if objection is not None:
            return objection
        live[charge.uuid] = charged(card, charge)
    return None


def is_covered(
    cards: Mapping[Uuid, DeviceUsage],
    grants: tuple[Grant, ...],
    ask: Ask,
    approved: tuple[Grant, ...] = (),
) -> Objection | None:
    """Return where the reservation goes beyond the container's own limits, or None.

    `approved` are grants that may: the container was resized to exactly these.
    """
    rules = rules_of(ask.vendor)
    held = [cards.get(grant.uuid) for grant in grants]
    devices = [card.device for card in held if card is not None]
    wanted = rules.cards_wanted(ask, devices)
    if len(grants) != wanted:
        amounts = Amounts(left=wanted, asked=len(grants), unit="cards", is_allowance=True)
        return Objection(reason=Doubt.COUNT_DIFFERS, amounts=amounts)
    seen: set[Uuid] = set()
    for grant, card in zip(grants, held, strict=True):
        if card is None:
            return Objection(reason=Doubt.UNKNOWN_CARD, uuid=grant.uuid)
        if grant.uuid in seen and not rules.is_divided(card.device):
            return objection_to(card, Doubt.CARD_TWICE)
        seen.add(grant.uuid)
        objection = _covered(card, grant, ask, is_approved=grant in approved)
        if objection is not None:
            return objection
    return rules.all_beyond_ask(devices, grants, ask)


def _covered(card: DeviceUsage, grant: Grant, ask: Ask, *, is_approved: bool) -> Objection | None:
    if grant.vendor is not ask.vendor or card.device.vendor is not ask.vendor:
        return objection_to(card, Doubt.VENDOR_DIFFERS)
    if grant.memory_mib < 0 or grant.cores < 0:
        return objection_to(card, Doubt.NEGATIVE)
    if is_approved:
        return None
    return rules_of(ask.vendor).beyond_ask(card, grant, ask)
