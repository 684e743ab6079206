"""Which of the instances on a card are this daemon's, by its record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hami_node.model import Device, Uuid
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.mig.details import DriverCard
from hami_node.vendors.nvidia.mig.found import FoundInstance
from hami_node.vendors.nvidia.mig.layout import MigPlacement


class Identity(NamedTuple):
    """An instance among all that a card has had: its number alone is used again."""

    gpu_instance_id: int
    uuid: str
    profile_id: int
    placement: MigPlacement


def identity_of(found: FoundInstance) -> Identity:
    """What tells it from others; one without a device has no UUID."""
    uuid = found.device.uuid if found.device is not None else ""
    return Identity(found.gpu_instance_id, uuid, found.profile_id, found.placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The instances on a card by whose they are.

    Attributes:
        ours: made, or being made, for a container; or going.
        stale: ours, of no container any more, and not to be removed yet.
        others: made by somebody else.
    """

    ours: tuple[FoundInstance, ...] = ()
    stale: tuple[FoundInstance, ...] = ()
    others: tuple[FoundInstance, ...] = ()


def owned_on(
    card: Uuid,
    instances: Iterable[FoundInstance],
    own: Sequence[PartView],
    had: frozenset[Identity] = frozenset(),
) -> Owned:
    """Whose the instances are.

    Args:
        card: the card.
        instances: as a scan has found them.
        own: what is on record.
        had: what was ours, and is still shown because the scan is older than the record.
    """
    sorted_out: dict[PartState, list[FoundInstance]] = {}
    for found in instances:
        part = next((part for part in own if part.card == card and is_same(part, found)), None)
        if part is not None:
            state = PartState.STALE if part.state is PartState.STALE else PartState.LIVE
        else:
            is_going = any(_is_again(identity_of(found), then) for then in had)
            state = PartState.LIVE if is_going else PartState.FOREIGN
        sorted_out.setdefault(state, []).append(found)
    return Owned(
        ours=tuple(sorted_out.get(PartState.LIVE, ())),
        stale=tuple(sorted_out.get(PartState.STALE, ())),
        others=tuple(sorted_out.get(PartState.FOREIGN, ())),
    )


def _is_again(seen: Identity, before: Identity) -> bool:
    """True for one that was seen before, perhaps before it was whole, or since it is not."""
    is_told = seen.uuid == before.uuid or "" in (seen.uuid, before.uuid)
    return is_told and seen._replace(uuid="") == before._replace(uuid="")


def is_same(part: PartView, found: FoundInstance) -> bool:
    """True for the instance of an entry of the record.

    Until the driver has told an instance's number, its place tells it; numbers are used again, so
    that the UUID counts too, where both have one.
    """
    if part.state is PartState.LOST:
        return False
    place = found.placement
    if not part.numbers:
        return (part.kind, part.start, part.size) == (found.profile, place.start, place.size)
    if part.numbers[0] != found.gpu_instance_id:
        return False
    return not part.uuid or found.device is None or part.uuid == found.device.uuid


def with_marks(card: Device, owned: Owned, waits_for: str) -> Device:
    """The card with whose its instances are, and why it can't be divided now."""
    if not isinstance(card.detail, DriverCard):
        return card
    detail = replace(
        card.detail,
        ours=frozenset(found.gpu_instance_id for found in owned.ours),
        stale=frozenset(found.gpu_instance_id for found in owned.stale),
        waits_for=waits_for,
    )
    return replace(card, detail=detail)
