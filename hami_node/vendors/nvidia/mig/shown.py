"""The MIG cards of a node for people: what the driver has found, and what is on record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from hami_node.model import Device
from hami_node.vendors.divided import DividedCard, PartKind, PartState, PartView
from hami_node.vendors.nvidia.mig.layout import (
    CardProfile,
    DriverCard,
    FoundInstance,
    MigCard,
    mig_of,
)
from hami_node.vendors.nvidia.mode import Mode

OFF: Final = "off"
"""The word for a card that is not in MIG mode."""
NOT_OURS: Final = "it was not made by hami-node, which leaves it alone"
REMOVED: Final = "whoever manages the instances has removed it"
UNKNOWN: Final = "unknown"
"""Stands for a profile that the driver does not list."""


def divided_cards(
    cards: Iterable[Device], own: Sequence[PartView], *, is_offered: bool
) -> tuple[DividedCard, ...]:
    """The cards in MIG mode, and those that should be or are about to be.

    Args:
        cards: all cards, those that are offered as they are offered.
        own: the instances on record.
        is_offered: instances of others are served as they are.
    """
    shown = []
    for card in cards:
        mig = mig_of(card)
        if mig is not None and (mig.is_enabled or mig.is_pending or card.mode == Mode.MIG):
            ours = [part for part in own if part.card == card.uuid]
            shown.append(_divided(card, mig, ours, is_offered=is_offered))
    return tuple(shown)


def _divided(
    card: Device, mig: MigCard, own: Sequence[PartView], *, is_offered: bool
) -> DividedCard:
    if is_offered and not mig.problem:
        held = [(part, _held(part, mig.instances)) for part in own]
        parts = [_placed(part, found) for part, found in held]
        known = {found.gpu_instance_id for _, found in held if found is not None}
    else:
        parts = list(own)
        detail = card.detail
        known = set(detail.ours | detail.stale) if isinstance(detail, DriverCard) else set()
    parts += [
        _of_others(card, found, is_offered=is_offered)
        for found in mig.instances
        if found.gpu_instance_id not in known
    ]
    return DividedCard(
        uuid=card.uuid,
        index=card.index,
        mode=_word(is_enabled=mig.is_enabled),
        pending="" if mig.is_pending == mig.is_enabled else _word(is_enabled=mig.is_pending),
        kinds=tuple(map(_kind, mig.profiles)),
        parts=tuple(sorted(parts, key=lambda part: (part.start, part.numbers))),
        problem=mig.problem or mig.restriction or card.unhealthy_reason,
    )


def _placed(part: PartView, found: FoundInstance | None) -> PartView:
    """An instance of others that a container holds, at its place; only the driver knows that."""
    if found is None:
        return replace(part, kind=UNKNOWN, state=PartState.LOST, why=REMOVED)
    place = found.placement
    return replace(part, kind=found.profile, start=place.start, size=place.size)


def _word(*, is_enabled: bool) -> str:
    return Mode.MIG.value if is_enabled else OFF


def _kind(profile: CardProfile) -> PartKind:
    places = profile.placements
    return PartKind(
        name=profile.name,
        memory_mib=profile.memory_mib,
        size=places[0].size if places else 0,
        starts=tuple(place.start for place in places),
    )


def _held(part: PartView, instances: Sequence[FoundInstance]) -> FoundInstance | None:
    """Numbers are used again, so that the UUID counts too, where both have one."""
    for found in instances:
        if part.numbers[:1] == (found.gpu_instance_id,):
            is_same = not part.uuid or found.device is None or part.uuid == found.device.uuid
            return found if is_same else None
    return None


def _of_others(card: Device, found: FoundInstance, *, is_offered: bool) -> PartView:
    device = found.device
    computes = found.compute_instance_ids[:1] if device is None else (device.compute_instance_id,)
    return PartView(
        card=card.uuid,
        kind=found.profile or UNKNOWN,
        start=found.placement.start,
        size=found.placement.size,
        state=PartState.OFFERED if is_offered and device is not None else PartState.FOREIGN,
        numbers=(found.gpu_instance_id, *computes),
        uuid="" if device is None else device.uuid,
        why="" if is_offered and device is not None else NOT_OURS,
    )
